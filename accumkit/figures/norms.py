"""How far the norms turn the gradient: a dial for each at one micro-batch size, and its cosine over all sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import acos, ceil, cos, degrees, log2, radians, sin

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Rectangle, Wedge

from accumkit.figures import large_type, palette
from accumkit.figures.marks import write
from accumkit.figures.norm_words import cosine_text, describe_cosines, describe_dials, on_it
from accumkit.figures.numbers import below, number
from accumkit.figures.picture import card
from accumkit.studies.norms import Row

WIDTH = 648.0  # points
DIALS, COSINES = 136.0, 214.0  # heights, points
REACH = 64.0  # length of a dial's arrows, at most
NARROWEST = 100.0  # points that a dial with its words needs
LEFT, RIGHT, TOP, BOTTOM = 50.0, 150.0, 14.0, 38.0  # around the cosines
MARKERS = "sD^v"


@dataclass(frozen=True)
class Look:
    """How a norm's gradient is drawn: blue and plain on the big batch's, vermillion and dotted off it."""

    colour: str
    style: object
    face: float  # opacity of the wedge


ON, OFF = Look(palette.BLUE, "solid", 0.0), Look(palette.VERMILLION, (0, (1.2, 1.2)), 0.16)


class NormsPicture:
    """Two pictures kept between drawings, as a control moves: dials at one size, and cosines over all sizes.

    Examples
    --------
    >>> from accumkit.figures.norms import NormsPicture
    >>> from accumkit.studies import norms
    >>> rows = norms.compare(("batch", "group"), (64, 4), seeds=2).rows
    >>> NormsPicture().html(rows, 4)[0].startswith("<figure")
    True
    """

    def __init__(self, width: float = WIDTH) -> None:
        self.width = width
        self._figures = [palette.new_figure(width / 72, high / 72) for high in (DIALS, COSINES)]
        self._axes = [
            palette.bare_axes(f, 0, 0, width, high) for f, high in zip(self._figures, (DIALS, COSINES), strict=True)
        ]

    def html(self, rows: Sequence[Row], size: int) -> tuple[str, str]:
        """Draw the norms at a micro-batch size; return both pictures with their sentences."""
        width = large_type.page(self.width)
        lines = dial_lines(len(rows), width)
        for figure, high in zip(self._figures, (DIALS * lines, COSINES), strict=True):
            figure.set_size_inches(width / 72, high / 72)  # the axes fill it, whatever its size
        draw_dials(self._axes[0], rows, size)
        draw_cosines(self._axes[1], rows, size)
        svgs = [palette.to_svg(figure) for figure in self._figures]
        return (
            card(
                svgs[0],
                describe_dials(rows, size),
                f"Where the gradient points, micro-batches of {size}",
                caption=False,
            ),  # a panel says it above
            card(svgs[1], describe_cosines(rows), "How well it keeps its direction"),
        )


def draw_dials(axes: Axes, rows: Sequence[Row], size: int) -> None:
    """Draw, for each norm, the accumulated gradient as an arrow, turned from the big batch's by its angle.

    Thin lines are seeds, the arrow is their mean; the dashed arrow, to the right, is the big batch's.
    """
    width, _ = _clean(axes)
    lines = dial_lines(len(rows), width)
    across = ceil(len(rows) / lines) or 1
    cell = width / across
    reach = min(REACH, cell / 2 - 12)
    for i, row in enumerate(rows):
        line = lines - 1 - i // across
        _dial(axes, row, size, (i % across + 0.5) * cell, 40.0 + DIALS * line, reach)


def dial_lines(dials: int, width: float) -> int:
    """Return on how many lines dials stand in a picture of some width in points; usually on one."""
    return 1 if width / max(dials, 1) >= NARROWEST else ceil(dials * NARROWEST / width)


def _dial(axes: Axes, row: Row, size: int, x: float, y: float, reach: float) -> None:
    write(axes, x, y + reach + 20, row.title, palette.BODY + 1, palette.INK, gid="title")
    axes.add_patch(Wedge((x, y), reach + 4, 0, 180, facecolor=palette.SHADE, edgecolor="none", gid="dial"))
    _arrow(axes, x, y, reach, 0.0, palette.INK, (0, (4, 2.5)), 1.2, "big batch")
    mean = row.cosine(size)
    if mean is None:
        write(axes, x, y + reach / 2, "torch refuses", palette.BODY, palette.VERMILLION, gid="refused", paper=True)
        write(axes, x, y - 18, "no gradient", palette.BODY, palette.INK, gid="number")
        return
    exact = on_it(row, size)
    look = ON if exact else OFF
    for value in row.cosines[row.sizes.index(size)] if not exact else ():
        angle = acos(max(-1.0, min(1.0, value)))
        end = (x + reach * cos(angle), y + reach * sin(angle))
        axes.add_line(Line2D([x, end[0]], [y, end[1]], color=look.colour, linewidth=0.6, alpha=0.6, gid="seed"))
    turned = degrees(acos(max(-1.0, min(1.0, mean)))) if not exact else 0.0
    if not exact:
        axes.add_patch(
            Wedge((x, y), reach * 0.45, 0, turned, facecolor=look.colour, alpha=look.face, hatch="..", gid="turned")
        )
    _arrow(axes, x, y, reach, turned, look.colour, look.style, 2.4, "gradient")
    first = "cosine 1" if exact else f"cosine {cosine_text(mean)}, {turned:.0f}\N{DEGREE SIGN}"
    write(axes, x, y - 18, first, palette.BODY, palette.INK, gid="number")
    write(axes, x, y - 30, f"error {below(row.error(size))}", palette.SMALL, palette.MUTED, gid="number")


def _arrow(axes: Axes, x: float, y: float, reach: float, angle: float, colour: str, style, wide: float, gid: str):
    end = (x + reach * cos(radians(angle)), y + reach * sin(radians(angle)))
    axes.add_patch(
        FancyArrowPatch(
            (x, y), end, arrowstyle="-|>", mutation_scale=9, color=colour, linewidth=wide, linestyle=style,
            shrinkA=0, shrinkB=0, gid=gid, zorder=3,
        )
    )  # fmt: skip


def draw_cosines(axes: Axes, rows: Sequence[Row], size: int | None = None) -> None:
    """Draw each norm's cosine over micro-batch sizes, large ones left; whiskers reach over the seeds.

    Norms whose gradient is the big batch's share one line; ``size`` is marked.
    """
    width, height = _clean(axes)
    if not rows:
        return
    sizes = rows[0].sizes
    lowest = min([0.0, *(c for row in rows for cosines in row.cosines for c in cosines)])
    if lowest == 0.0 and all(min(map(min, filter(None, row.cosines)), default=1) > 0.85 for row in rows):
        lowest = 0.85  # a convolutional net: all happens near 1, and the scale says so
    right, high = width - RIGHT, height - TOP - BOTTOM

    def across(b: int) -> float:
        last = log2(sizes[0] / sizes[-1]) or 1.0
        return LEFT + 16 + (right - LEFT - 32) * log2(sizes[0] / b) / last

    def up(value: float) -> float:
        return BOTTOM + high * (value - lowest) / (1 - lowest)

    axes.add_patch(Rectangle((LEFT, BOTTOM), right - LEFT, high, facecolor=palette.SHADE, edgecolor="none"))
    if size in sizes:
        axes.add_patch(
            Rectangle((across(size) - 13, BOTTOM), 26, high, facecolor=palette.LINE, edgecolor="none", gid="chosen")
        )
    for mark in (0, 0.25, 0.5, 0.75, 1) if lowest <= 0 else (0.85, 0.9, 0.95, 1):
        axes.add_line(Line2D([LEFT, right], [up(mark)] * 2, color=palette.PAPER, linewidth=0.8))
        write(axes, LEFT - 6, up(mark) - 3, number(mark), palette.SMALL, palette.MUTED, "right", gid="scale")
    write(axes, 12, BOTTOM - 28, "cosine", palette.SMALL, palette.MUTED, "left")
    for b in sizes:
        write(axes, across(b), BOTTOM - 13, str(b), palette.SMALL, palette.MUTED, gid="size")
    write(axes, (LEFT + right) / 2, BOTTOM - 28, "examples in a micro-batch", palette.SMALL, palette.MUTED)
    exact = [row for row in rows if row.exact]
    others = [row for row in rows if not row.exact and any(row.cosines)]
    ends: list[tuple[float, str, str]] = []
    if exact:
        ends.append((up(1), ", ".join(row.title for row in exact), palette.BLUE))
        xs = [across(b) for b in sizes]
        axes.add_line(Line2D(xs, [up(1)] * len(xs), color=palette.BLUE, linewidth=2.2, marker="o", ms=4, gid="exact"))
    for i, row in enumerate(others):
        shown = [(b, row.cosine(b), cosines) for b, cosines in zip(sizes, row.cosines, strict=True) if cosines]
        for b, _, cosines in shown:
            ys = [up(min(cosines)), up(max(cosines))]
            axes.add_line(Line2D([across(b)] * 2, ys, color=palette.INK, linewidth=0.8, marker="_", ms=5, gid="range"))
        axes.add_line(
            Line2D([across(b) for b, _, _ in shown], [up(mean) for _, mean, _ in shown], color=palette.VERMILLION,
                   linewidth=1.8, linestyle=OFF.style, marker=MARKERS[i % 4], ms=5, gid=f"line {row.norm}")
        )  # fmt: skip
        ends.append((up(shown[-1][1]), row.title, palette.VERMILLION))
        for b in row.refused:
            write(axes, across(b), up(lowest) + 6, "refused", palette.SMALL, palette.VERMILLION, gid="refused")
    _names(axes, ends, right + 8, width - right - 10)


def _names(axes: Axes, ends: list[tuple[float, str, str]], x: float, room: float) -> None:
    """Write the lines' names beside their ends, none over another."""
    floor = None
    for y, text, colour in sorted(ends, reverse=True):
        lines, line = [], ""
        for word in text.replace(", ", ",\n").split("\n"):  # a name is not torn apart
            if line and palette.text_width(f"{line} {word}", palette.SMALL) > room:
                lines.append(line)
                line = word
            else:
                line = f"{line} {word}".strip()
        lines.append(line)
        top = y - 3 if floor is None else min(y - 3, floor - 12)
        for i, said in enumerate(lines):
            write(axes, x, top - 11 * i, said, palette.SMALL, colour, "left", gid="name")
        floor = top - 11 * (len(lines) - 1)


def _clean(axes: Axes) -> tuple[float, float]:
    palette.wipe(axes)
    width, height = palette.size_in_points(axes)
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    return width, height
