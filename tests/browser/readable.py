"""How large a panel's text is on the screen, and whether any of it is cut off or lies over another."""

from __future__ import annotations

USUAL_FONT, USUAL_POINTS, USUAL_MOST, EDGES = 13, 648, 900, 34  # pixels; points; pixels; pixels beside a picture

LARGER = 1.49  # times the usual size, at least; 1.5 but for a pixel that the browser rounds

# In a panel: what is cut off, the smallest type in its controls and sentences, and of each picture the pixels a point.
# Pictures are images: each is laid out once more beside the page, to ask where its words are.
MEASURE = r"""
panel => {
  const wrong = [], sizes = [], pictures = [];
  const beyond = panel.scrollWidth - panel.clientWidth;
  if (beyond > 1) wrong.push(`wider than its place by ${beyond}`);
  const words = '.widget-label,.widget-readout,.widget-radio-box label,button,select,.widget-html-content';
  for (const part of panel.querySelectorAll(words)) {
    const text = part.textContent.trim().slice(0, 40);
    if (!part.offsetParent || !text) continue;
    if (part.clientWidth < 3 || part.clientHeight < 3) continue;  // for screen readers
    if (part.scrollWidth > part.clientWidth + 1) wrong.push(`cut at the right: ${text}`);
    if (!part.matches('select,.widget-html-content') && part.scrollHeight > part.clientHeight + 3)
      wrong.push(`cut below: ${text}`);
    sizes.push(parseFloat(getComputedStyle(part).fontSize));
  }
  for (const part of panel.querySelectorAll('.widget-html-content *')) {
    const own = [...part.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
    if (part.offsetParent && own) sizes.push(parseFloat(getComputedStyle(part).fontSize));
  }
  for (const image of panel.querySelectorAll('figure img[src^="data:image/svg"]')) {
    if (!image.offsetParent) continue;
    const bytes = Uint8Array.from(atob(image.src.split(',')[1]), letter => letter.charCodeAt(0));
    const text = new TextDecoder().decode(bytes), beside = document.createElement('div');
    beside.style = 'position:absolute;left:-9999px;top:0';
    beside.innerHTML = text.slice(text.indexOf('<svg'));
    document.body.append(beside);
    const svg = beside.querySelector('svg'), page = svg.viewBox.baseVal;
    svg.setAttribute('width', page.width);
    svg.setAttribute('height', page.height);
    const origin = svg.getBoundingClientRect();
    const boxes = [...svg.querySelectorAll('text')].map(word => {
      const box = word.getBoundingClientRect();
      return {said: word.textContent, left: box.left - origin.left, right: box.right - origin.left,
              top: box.top - origin.top, bottom: box.bottom - origin.top};
    });
    boxes.forEach((one, i) => {
      if (one.left < -.5 || one.top < -.5 || one.right > page.width + .5 || one.bottom > page.height + .5)
        wrong.push(`out of the picture: ${one.said}`);
      for (const other of boxes.slice(i + 1)) {
        const across = Math.min(one.right, other.right) - Math.max(one.left, other.left);
        const down = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
        if (across > 1 && down > 2.5) wrong.push(`one over the other: ${one.said} | ${other.said}`);
      }
    });
    pictures.push(Math.min(image.clientWidth / page.width, image.clientHeight / page.height));
    beside.remove();
  }
  return {wrong, least: Math.min(...sizes), pictures, wide: panel.clientWidth};
}
"""


def measured(panel) -> tuple[list[str], float, list[float]]:
    """Return what is cut off in a panel, and how many times the usual size its text and each of its pictures have."""
    found = panel.evaluate(MEASURE)
    usual = (min(found["wide"], USUAL_MOST) - EDGES) / USUAL_POINTS  # pixels a point
    return found["wrong"], found["least"] / USUAL_FONT, [scale / usual for scale in found["pictures"]]
