"""A picture kept between drawings, so that a control can move it: one figure, drawn into again and again."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from html import escape

from accumkit.figures import large_type, palette
from accumkit.figures.timeline import draw_timeline, height_of
from accumkit.figures.unnamed import unnamed
from accumkit.figures.weights import draw_weights
from accumkit.figures.words import describe_timeline, describe_weights
from accumkit.trace.record import Trace


class Picture:
    """A picture of traces as HTML, made for drawing often: the figure is kept, its artists are replaced.

    Attributes
    ----------
    figure : matplotlib.figure.Figure
        What was drawn last; pyplot does not know of it.

    Examples
    --------
    >>> from accumkit import figures
    >>> from accumkit.trace.record import MicroBatch, Trace, Update
    >>> micro = MicroBatch(0, 0, 4, 4, 1.0, 1.0, "kept", None)
    >>> picture = figures.weights_picture(height=190)
    >>> picture.html(Trace(1, unit="examples", updates=[Update(0, 0, (micro,), 4)])).startswith("<figure")
    True
    """

    def __init__(
        self,
        draw: Callable[..., object],
        say: Callable[[Trace], str],
        height: float | Callable[[Trace, float], float],
        width: float = 648,
        name: str = "",
        prepare: Callable[[Trace], Trace] = lambda trace: trace,
    ) -> None:
        self._draw, self._say, self._height, self._width, self.name = draw, say, height, width, name
        self._prepare = prepare  # what of a trace is drawn
        self.figure = palette.new_figure(width / 72, 2)
        self._axes = palette.bare_axes(self.figure, 0, 0, width, 144)

    def svg(self, trace: Trace, **how: object) -> str:
        """Draw ``trace`` and return the picture as SVG; ``how`` goes to the drawing function, such as ``chosen``."""
        width = large_type.page(self._width)
        trace = self._prepare(trace)
        height = self._height(trace, width) if callable(self._height) else self._height
        self.figure.set_size_inches(width / 72, height / 72)  # the axes fill it, whatever its size
        self._draw(self._axes, trace, **how)
        return palette.to_svg(self.figure)

    def sentence(self, trace: Trace) -> str:
        """Return what the picture of ``trace`` says, in words."""
        return self._say(trace)

    def html(self, trace: Trace, caption: bool = True, **how: object) -> str:
        """Draw ``trace`` and return picture and sentence as HTML; the sentence is also the alternative text."""
        return card(self.svg(trace, **how), self.sentence(trace), self.name, caption)


def weights_picture(
    height: float = 224,
    width: float = 648,
    name: str = "What each example weighs",
    up_to_scale: bool = False,
    names: bool = True,
) -> Picture:
    """Return a picture of weights to draw into; its size is in points, ``up_to_scale`` as in ``weights``.

    Without ``names`` it shows what is weighed and does not call it lost, leaked, erased or left over.
    """
    shown = {} if names else {"prepare": unnamed}
    return Picture(
        partial(draw_weights, up_to_scale=up_to_scale),
        lambda trace: describe_weights(trace if names else unnamed(trace), up_to_scale),
        height, width, name, **shown,
    )  # fmt: skip


def timeline_picture(width: float = 648, name: str = "What the loop did", names: bool = True) -> Picture:
    """Return a picture of a timeline to draw into, ``width`` points wide and as high as its rows need.

    Without ``names`` every backward has the same mark, whatever became of it.
    """
    shown = {} if names else {"prepare": unnamed}
    return Picture(draw_timeline, describe_timeline, height_of, width, name, **shown)


def card(svg: str, sentence: str, name: str = "", caption: bool = True) -> str:
    """Return a picture with its sentence as HTML: a white card, which reads alike in light and dark themes.

    Parameters
    ----------
    svg : str
        The picture.
    sentence : str
        What it says; shown under it and given as its alternative text.
    name : str
        A heading for it, if any.
    caption : bool
        Whether the sentence is shown; it is the alternative text in any case.

    Returns
    -------
    str
    """
    # As an image, not as inline SVG: identifiers cannot clash, and notebooks that are not trusted show it too.
    source = b64encode(svg.encode()).decode()
    large = large_type.is_large()
    heading = f'<div style="font-weight:600;margin:0 0 4px">{escape(name)}</div>' if name else ""
    said = f'<figcaption style="margin:4px 0 0;color:#1a1a1a">{escape(sentence)}</figcaption>' if caption else ""
    wide = f"none;font-size:{large_type.TEXT}px" if large else "900px"
    high = _on_screen(svg) if large else ""
    return (
        f'<figure style="margin:0 0 8px;padding:10px 14px;max-width:{wide};box-sizing:border-box;background:#fff;'
        'color:#1a1a1a;border:1px solid #bdbdbd;border-radius:6px;line-height:1.45">'
        f'{heading}<img alt="{escape(sentence)}" src="data:image/svg+xml;base64,{source}" '
        f'style="display:block;width:100%;height:auto;{high}background:#fff">{said}</figure>'
    )


def _on_screen(svg: str) -> str:
    """Return what keeps a large picture on the screen with the controls above it, as long as it can be read there."""
    high = re.search(r'<svg[^>]*? height="([\d.]+)pt"', svg)
    return f"object-fit:contain;max-height:max(58vh,{large_type.LEAST * float(high[1]):.0f}px);" if high else ""
