"""The frame of the picture of weights: where bars stand, its scale, its legend, and its gap."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from accumkit.figures import palette
from accumkit.figures.bars import Bar, Panel, Row
from accumkit.figures.marks import write
from accumkit.figures.numbers import number

LEFT, RIGHT, TOP, BOTTOM = 58, 34, 22, 22  # points around the bars: scale, "fair", titles, counts
KEY = 21.0  # points for a patch of the legend
GAP, PAD, BETWEEN = 4.0, 7.0, 9.0  # points between bars, at a panel's sides, between panels
WIDEST, LEFT_OUT = 120.0, 96.0  # points: a bar at most, the gap that stands for windows left out
HIGHEST = 20.0  # a weight beyond this gets a broken bar: the fair line must stay visible


@dataclass(frozen=True)
class Place:
    """Where things stand: x in points, y in weights; ``point`` is the height of one point in weights."""

    low: float
    high: float
    point: float
    bottom: float  # points below the bars
    unit: float  # points for one unit of count
    squeeze: float  # gaps are this part of their usual width
    ceiling: float  # bars beyond this weight are drawn broken

    def width(self, bar: Bar) -> float:
        """Return the width of a bar in points; one that counts nothing is still to be seen."""
        return max(bar.count * self.unit, 3.0)


def place_of(row: Row, width: float, height: float, legend: int) -> Place:
    """Return where the bars of a row stand in axes of a width and height in points, above so many lines of legend."""
    known = [abs(value) for bar in row.bars for value in (bar.weight, bar.high) if isfinite(value)]
    top = max([1.0, *known])
    # With a bar to break, the others and the fair line get the room.
    ceiling = top if top <= HIGHEST else max([4.0, *(1.5 * value for value in known if value <= HIGHEST / 1.5)])
    lowest = min([0.0, *(bar.weight for bar in row.bars if isfinite(bar.weight))])
    room = 1.3 if any(panel.carried for panel in row.panels) else 1.16  # above the highest bar's number
    low, high = 1.1 * max(lowest, -ceiling), max(room * ceiling, 1.3)
    gaps = sum(2 * PAD + GAP * (len(p.bars) - 1) for p in row.panels if not p.left_out)
    gaps += BETWEEN * (len(row.panels) - 1)
    room = width - LEFT - RIGHT - LEFT_OUT * any(p.left_out for p in row.panels)
    squeeze = min(1.0, 0.4 * room / gaps) if gaps else 1.0
    total, largest = sum(bar.count for bar in row.bars), max((bar.count for bar in row.bars), default=0)
    unit = min((room - gaps * squeeze) / total, WIDEST / largest) if total else 0.0
    bottom = BOTTOM + 17 * legend + 8 * bool(legend)
    return Place(low, high, (high - low) / (height - TOP - bottom), bottom, unit, squeeze, ceiling)


def left_out(axes: Axes, panel: Panel, place: Place, x: float) -> float:
    """Write how many windows are not shown, and whether one of them is wrong."""
    end = x + LEFT_OUT
    unfair = panel.left_out_unfair
    what = "all fair" if not unfair else f"{unfair:,} not fair" if unfair < panel.left_out else "none fair"
    middle = (place.low + place.high) / 2
    lines = ["· · ·", f"{panel.left_out:,} windows", "left out,", what]
    for i, line in enumerate(lines):
        write(
            axes,
            (x + end) / 2,
            middle + (22 - 13 * i) * place.point,
            line,
            palette.SMALL,
            palette.INK if i == 3 else palette.MUTED,
            gid="gap",
        )
    return end


def scale(axes: Axes, row: Row, place: Place, end: float) -> None:
    """Draw the scale at the left, and the fair line with its word at the right."""
    x = LEFT - 8
    axes.add_artist(Line2D([x, x], [place.low, place.high], color=palette.LINE, linewidth=0.8))
    broken = any(isfinite(bar.weight) and abs(bar.weight) > place.ceiling for bar in row.bars)
    top = (
        0.7 * place.ceiling if broken else place.high - 20 * place.point
    )  # no mark beside a break: it would not be true
    step = next(step for step in (0.5, 1, 2, 5, 10, 20) if top / step <= 4.5)
    marks = sorted({0.0, 1.0, *(float(i * step) for i in range(int(place.low // step) + 1, int(top // step) + 1))})
    for mark in marks:
        if mark not in (0.0, 1.0) and min(abs(mark - 1), abs(mark)) < 11 * place.point:
            continue
        axes.add_artist(Line2D([x - 3, x], [mark, mark], color=palette.MUTED, linewidth=0.8))
        if mark != 0.0 or place.point < 1 / 11:
            write(
                axes,
                x - 6,
                mark - 3 * place.point,
                number(mark),
                palette.SMALL,
                palette.MUTED,
                align="right",
                gid="scale",
            )
    write(axes, x - 6, place.high - 8 * place.point, "weight", palette.SMALL, palette.MUTED, align="right")
    write(axes, x - 6, place.low - 13 * place.point, row.unit, palette.SMALL, palette.MUTED, align="right")
    axes.add_artist(
        Line2D([x, end + 6], [1, 1], color=palette.INK, linewidth=1.2, linestyle=(0, (5, 3)), gid="fair", zorder=3)
    )
    write(axes, end + 9, 1 - 3 * place.point, "fair", palette.BODY, palette.INK, align="left", gid="word")


def legend_of(axes: Axes, lines: list[list[tuple[str, str]]], place: Place) -> None:
    """Write under the bars what :func:`legend_lines` found to be said."""
    y = place.low - 20 * place.point
    for line in lines:
        x, y = float(LEFT), y - 17 * place.point
        for kind, word in line:
            if kind:
                _key(axes, kind, x, y - 2 * place.point, 10 * place.point)
                x += KEY
            write(axes, x, y, word, palette.SMALL, palette.MUTED, align="left", gid="legend")
            x += palette.text_width(word, palette.SMALL) + 12


def legend_lines(row: Row, width: float) -> list[list[tuple[str, str]]]:
    """Return what the looks in a picture mean, and how it was shortened: kind ("" for none) and words, by line."""
    kinds = [kind for kind in palette.LOOKS if any(bar.kind == kind for bar in row.bars)]
    entries = [(kind, palette.LOOKS[kind].word) for kind in kinds] if kinds != ["fair"] else []
    lines: list[list[tuple[str, str]]] = []
    left = 0.0
    for kind, word in [*entries, *(("", note) for note in notes_of(row))]:
        wide = KEY * bool(kind) + palette.text_width(word, palette.SMALL) + 12
        if not lines or wide > left:
            lines.append([])
            left = width - LEFT
        lines[-1].append((kind, word))
        left -= wide
    return lines


def _key(axes: Axes, kind: str, x: float, y: float, high: float) -> None:
    look = palette.LOOKS[kind]
    axes.add_artist(
        Rectangle(
            (x, y), KEY - 5, high, facecolor=look.face, edgecolor=look.edge, hatch=look.hatch or None, linewidth=0.8,
            linestyle=(0, (3, 2)) if look.dashed else "solid", gid="key",
        )
    )  # fmt: skip


def notes_of(row: Row) -> list[str]:
    """Return what has to be said about how a picture was shortened."""
    notes = []
    if any(isfinite(bar.weight) and abs(bar.weight) > HIGHEST for bar in row.bars):
        notes.append("a broken bar goes on: read its number")
    if row.summed:
        ranged = any(bar.high - bar.low > 1e-3 for bar in row.bars)
        notes.append("one bar is one window" + (", its line the range in it" if ranged else ""))
    return notes
