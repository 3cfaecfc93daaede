"""The picture of what each example weighs: a bar a micro-batch, as wide as its count, as high as its weight."""

from __future__ import annotations

from math import isfinite

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from accumkit.figures import palette
from accumkit.figures.bars import Bar, Panel, Row, arrange
from accumkit.figures.frame import (
    BETWEEN,
    GAP,
    LEFT,
    PAD,
    TOP,
    Place,
    left_out,
    legend_lines,
    legend_of,
    place_of,
    scale,
)
from accumkit.figures.labels import Slot, counts_under, left_over, mark, numbers_on, titles, words_in
from accumkit.figures.marks import cut, write
from accumkit.trace.record import Trace

WIDTH, HEIGHT = 9.0, 3.1  # inches


def weights(trace: Trace, title: str = "What each example weighs", up_to_scale: bool = False) -> Figure:
    """Draw what one example of each micro-batch weighs in its update.

    A shaded panel is a window. A bar is a micro-batch: its width is its count, its height the weight of one of
    its examples (share / fair share, 1 is fair), so that its area is its pull on the update. Beyond 24
    micro-batches the numbers are given by window, beyond 60 a window is one bar, and of more than 24 windows
    the first and the last are shown, with the number left out between them.

    Parameters
    ----------
    trace : Trace
        What ``ak.watch`` recorded.
    title : str
        Written above the picture; "" for none.
    up_to_scale : bool
        Weights away from 1 are a constant chosen on purpose; they are then green and not called unfair.

    Returns
    -------
    matplotlib.figure.Figure
        Not known to pyplot; 9 by 3.4 inches.

    Examples
    --------
    >>> from accumkit import figures
    >>> from accumkit.trace.record import MicroBatch, Trace, Update
    >>> micro = MicroBatch(0, 0, 4, 4, 1.0, 1.0, "kept", None)
    >>> figure = figures.weights(Trace(1, unit="examples", updates=[Update(0, 0, (micro,), 4)]))
    >>> [patch.get_height() for patch in figure.axes[0].patches if patch.get_gid() == "bar fair"]
    [1.0]
    """
    heading = 24 if title else 0
    figure = palette.new_figure(WIDTH, HEIGHT + heading / 72)
    axes = palette.bare_axes(figure, 0, 0, WIDTH * 72, HEIGHT * 72)
    if title:
        figure.text(
            12 / (WIDTH * 72), 1 - 18 / (HEIGHT * 72 + heading), title, fontsize=11, weight="bold", color=palette.INK
        )
    draw_weights(axes, trace, up_to_scale)
    return figure


def draw_weights(
    axes: Axes, trace: Trace, up_to_scale: bool = False, legend: bool = True, chosen: int | None = None
) -> Row:
    """Draw a trace's weights into axes of any size, in the place of what was drawn there before.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
        Best from ``palette.bare_axes``: the picture brings its own scale and margins. Bars are rectangles with
        a ``gid`` of "bar " and their kind; y is in weights, x in points.
    trace : Trace
    up_to_scale : bool
        See :func:`weights`.
    legend : bool
        Say under the bars what colours and hatches mean.
    chosen : int, optional
        Index of a micro-batch; a small triangle stands under its bar.

    Returns
    -------
    Row
        What was drawn, in numbers.
    """
    palette.wipe(axes)
    row = arrange(trace, up_to_scale)
    width, height = palette.size_in_points(axes)
    lines = legend_lines(row, width) if legend else []
    place = place_of(row, width, height, len(lines))
    axes.set_xlim(0, width)
    axes.set_ylim(place.low - place.bottom * place.point, place.high + TOP * place.point)
    if not row.panels:
        write(axes, width / 2, (place.low + place.high) / 2, "no micro-batch was seen", palette.BODY, palette.MUTED)
        return row
    x, slots = float(LEFT), []
    for panel in row.panels:
        if panel.left_out:
            x = left_out(axes, panel, place, x)
        else:
            slots.append(_window(axes, panel, place, x, fine=row.labelled or row.summed))
            x = slots[-1].end
        x += BETWEEN * place.squeeze
    titles(axes, slots, place)
    for slot in slots:
        numbers_on(axes, slot, row, place)
        counts_under(axes, slot, row, place)
        words_in(axes, slot, place)
        left_over(axes, slot, place)
        mark(axes, slot, place, chosen)
    scale(axes, row, place, x - BETWEEN * place.squeeze)
    legend_of(axes, lines, place)
    return row


def _window(axes: Axes, panel: Panel, place: Place, x: float, fine: bool) -> Slot:
    """Draw one window from ``x`` on: its shade and its bars."""
    pad, gap = PAD * place.squeeze, GAP * place.squeeze
    widths = tuple(place.width(bar) for bar in panel.bars)
    end = x + 2 * pad + sum(widths) + gap * max(len(widths) - 1, 0)
    high = place.high - place.low
    axes.add_artist(Rectangle((x, place.low), end - x, high, facecolor=palette.SHADE, edgecolor="none", gid="window"))
    left, tops, spots = x + pad, [], []
    for bar, wide in zip(panel.bars, widths, strict=True):
        tops.append(_bar(axes, bar, place, left, wide, fine))
        spots.append(left + wide / 2)
        left += wide + gap
    return Slot(panel, x, end, tuple(spots), widths, tuple(tops))


def _bar(axes: Axes, bar: Bar, place: Place, left: float, wide: float, fine: bool) -> float:
    """Draw one bar; return the height at which its number may stand."""
    look = palette.LOOKS[bar.kind]
    height = 1.0 if look.outline else bar.weight
    broken = abs(height) > place.ceiling
    shown = float(np.clip(height, -place.ceiling, place.ceiling))
    if not look.outline and abs(shown) < 2.5 * place.point:  # too low to see: a sliver, and its number
        shown = 2.5 * place.point
    axes.add_artist(
        Rectangle(
            (left, 0), wide, shown, facecolor=look.face, edgecolor=look.edge, hatch=look.hatch or None,
            linewidth=0.9 if fine else 0.4, linestyle=(0, (3, 2)) if look.dashed else "solid", gid=f"bar {bar.kind}",
        )
    )  # fmt: skip
    if broken:
        cut(axes, left, wide, shown, place.point)
    if bar.members > 1 and bar.high - bar.low > 1e-3 and not broken and isfinite(bar.high):
        middle = left + wide / 2
        ends = [bar.low, min(bar.high, place.ceiling)]
        axes.add_artist(Line2D([middle, middle], ends, color=palette.PAPER, linewidth=3.4, solid_capstyle="butt"))
        axes.add_artist(
            Line2D([middle, middle], ends, color=palette.INK, linewidth=1.4, marker="_", markersize=7, gid="range")
        )
        shown = max(shown, ends[1])
    return max(shown, 0.0)
