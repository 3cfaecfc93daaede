"""A source beside another one, with the lines that differ marked: by a sign, a border and a tint, in any theme."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from accumkit.figures import large_type

AROUND, FOLDED = 3, 3  # lines shown around a change; as many others at least are folded away

# Tints that let the theme's own colours shine through, so that text on them keeps its contrast.
REMOVED, ADDED = ("213,94,0", "dashed"), ("0,114,178", "solid")
BOX = (
    "max-width:900px;box-sizing:border-box;margin:4px 0 8px;padding:8px 0;border:1px solid rgba(128,128,128,.6);"
    "border-radius:6px;overflow-x:auto;line-height:1.5"
)
FONT = "font-family:var(--jp-code-font-family,monospace)"
NUMBER = "display:inline-block;width:2.6em;text-indent:0;text-align:right;opacity:.75;user-select:none"
SIGN, HANG = 3, 4  # characters before a line's text, and how much further in it goes on where it is broken


@dataclass(frozen=True)
class Line:
    """One line of a difference."""

    sign: str  # "-" taken out, "+" put in, " " in both
    number: int | None  # its place in the later source, from 1; None for one that was taken out
    text: str


def lines_of(before: str, after: str) -> list[Line]:
    r"""Return every line of two sources in order, those that were taken out before those put in their place.

    Examples
    --------
    >>> from accumkit.figures.diff import lines_of
    >>> [(line.sign, line.number, line.text) for line in lines_of("a\nb\n", "a\nc\n")]
    [(' ', 1, 'a'), ('-', None, 'b'), ('+', 2, 'c')]
    """
    old, new = before.splitlines(), after.splitlines()
    found: list[Line] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if kind == "equal":
            found += [Line(" ", i + 1, new[i]) for i in range(c, d)]
        else:
            found += [Line("-", None, old[i]) for i in range(a, b)]
            found += [Line("+", i + 1, new[i]) for i in range(c, d)]
    return found


def describe_diff(before: str, after: str) -> str:
    r"""Say in a sentence what was changed: the text twin of :func:`diff_html`.

    Examples
    --------
    >>> from accumkit.figures.diff import describe_diff
    >>> describe_diff("a = 1\nb = 2\nstep()\n", "a = 0\nb = 2\n")
    'Line 1 is now `a = 0` instead of `a = 1`; `step()` is gone.'
    """
    parts: list[str] = []
    lines = lines_of(before, after)
    i = 0
    while i < len(lines):
        if lines[i].sign == " ":
            i += 1
            continue
        gone, come = [], []
        while i < len(lines) and lines[i].sign != " ":
            (gone if lines[i].sign == "-" else come).append(lines[i])
            i += 1
        parts.append(_change(gone, come))
    if not parts:
        return "Nothing is changed."
    text = "; ".join(parts) + "."
    return text[0].upper() + text[1:]


def diff_html(before: str, after: str, title: str, pointed: Mapping[int, str] | None = None) -> str:
    r"""Return the later source as HTML, its changed lines marked and what is far from them folded away.

    Lines that were taken out stand before those that replace them. A sign and the shape of a border say what the tint
    says; text takes its colour from the notebook's theme.

    Parameters
    ----------
    before, after : str
        Sources.
    title : str
        Written above.
    pointed : mapping from int to str, optional
        By line of ``after``, from 1: a remark that is written behind the line.

    Returns
    -------
    str

    Examples
    --------
    >>> from accumkit.figures.diff import diff_html
    >>> html = diff_html("a = 1\n", "a = 2\n", "what differs")
    >>> "<del" in html and "<ins" in html
    True
    """
    pointed = pointed or {}
    lines = lines_of(before, after)
    near = {i for i, line in enumerate(lines) if line.sign != " " or line.number in pointed}
    shown = {j for i in near for j in (*range(i - AROUND, i + AROUND + 1), _head(lines, i))}
    rows: list[str] = []
    folded: list[str] = []
    for i, line in enumerate(lines):
        (rows if i in shown else folded).append(_row(line, pointed.get(line.number, "")))
        if folded and (i + 1 in shown or i + 1 == len(lines)):
            rows += _fold(folded)
            folded = []
    return (
        f'<div style="{BOX}"><div style="padding:0 12px 4px;font-weight:600">{escape(title)}</div>'
        f'<div style="{_code()}">{"".join(rows)}</div></div>'
    )


def _head(lines: list[Line], i: int) -> int:
    """Return the line that a line stands under, such as its `if`; the line itself where it stands under none."""
    own = _indent(lines[i].text)
    return next((j for j in range(i - 1, -1, -1) if lines[j].text.strip() and _indent(lines[j].text) < own), i)


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def _row(line: Line, remark: str) -> str:
    number = "" if line.number is None else str(line.number)
    said = f'<span style="opacity:.85">  ◂ {escape(remark)}</span>' if remark else ""
    inside = f'<span style="{NUMBER}">{number}</span> {_sign(line.sign)} {escape(line.text)}{said}'
    hung = _hung(line.text)
    if line.sign == " ":
        return f'<div style="border-left:4px solid transparent;padding-right:12px{hung}">{inside}</div>'
    tag, (color, border) = ("del", REMOVED) if line.sign == "-" else ("ins", ADDED)
    style = f"display:block;text-decoration:none;padding-right:12px;background:rgba({color},.18){hung}"
    return f'<{tag} style="{style};border-left:4px {border} rgb({color})">{inside}</{tag}>'


def _hung(text: str) -> str:
    """Return the style of a line that may be broken: it goes on under its own text, and not under the numbers."""
    if not large_type.is_large():
        return ""
    deep = f"(2.6em + {SIGN + _indent(text) + HANG}ch)"
    return f";padding-left:calc{deep};text-indent:calc(-1 * {deep})"


def _sign(sign: str) -> str:
    return f"<b>{'−' if sign == '-' else sign}</b>"  # noqa: RUF001 - a minus as wide as the plus


def _fold(rows: list[str]) -> list[str]:
    if len(rows) < FOLDED:
        return rows
    summary = f'<summary style="padding-left:12px;opacity:.85;cursor:pointer">{len(rows)} lines alike</summary>'
    return [f"<details>{summary}{''.join(rows)}</details>"]


def _change(gone: list[Line], come: list[Line]) -> str:
    old, new = (", ".join(f"`{line.text.strip()}`" for line in lines) for lines in (gone, come))
    if not come:
        return f"{old} {'is' if len(gone) == 1 else 'are'} gone"
    if [line.text.strip() for line in gone] == [line.text.strip() for line in come]:
        return f"{new} {'is' if len(come) == 1 else 'are'} moved {_moved(gone[0].text, come[0].text)}"
    where = f"line {come[0].number}" if len(come) == 1 else f"lines {come[0].number} to {come[-1].number}"
    if not gone:
        return f"{where} {'is' if len(come) == 1 else 'are'} new: {new}"
    return f"{where} {'is' if len(come) == 1 else 'are'} now {new} instead of {old}"


def _moved(old: str, new: str) -> str:
    """Return how far a line was moved: what it belongs to has changed, not what it says."""
    levels = (_indent(old) - _indent(new)) // 4
    many = {1: "one level", 2: "two levels"}.get(abs(levels), f"{abs(levels)} levels")
    return f"{many} {'out' if levels > 0 else 'in'}"


def _code() -> str:
    """Return the style of lines of code; in large type they are broken rather than pushed off the screen."""
    lines = "pre-wrap;width:auto" if large_type.is_large() else "pre;width:max-content"
    return f"{FONT};font-size:{large_type.pixels(13)}px;white-space:{lines};min-width:100%"
