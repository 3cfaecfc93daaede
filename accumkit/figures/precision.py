"""Pictures of mixed precision: where gradients were scaled, call by call, and how the error of a sum grows."""

from __future__ import annotations

from math import isfinite, log10

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from accumkit.figures import palette
from accumkit.figures.marks import write
from accumkit.figures.numbers import number
from accumkit.figures.picture import Picture
from accumkit.figures.precision_words import describe_order, describe_sums
from accumkit.studies.precision import Moment, Order, Passed, Sums
from accumkit.studies.precision.problem import times

LEFT, RIGHT, TOP, BOTTOM, BETWEEN = 60, 62, 26, 64, 12  # points
NARROW, WIDE = 15.0, 52.0  # points: a backward, another call
TIGHT = 560.0  # points: in a narrower picture a backward has less room, and what was said is not said again
UNSCALED = 1e-3  # relative
MARKS = {"true": ("o", palette.BLUE), "scaled": ("D", palette.VERMILLION)}
SERIES = {  # field: marker, colour, line, words
    "in_grad": ("s", palette.VERMILLION, (0, (1, 1.5)), "added up in {dtype}"),
    "one_rounding": ("", palette.MUTED, (0, (5, 3)), "exact, rounded once"),
    "in_float32": ("o", palette.BLUE, "solid", "added up in float32"),
}
FLOOR = 1e-9  # errors below are drawn here


def order_picture(height: float = 270, width: float = 648) -> Picture:
    """Return a picture to draw orders into: the length of ``.grad`` after every call; its size is in points."""
    return Picture(draw_order, describe_order, height, width, "Where the gradients were scaled")


def sums_picture(height: float = 250, width: float = 648) -> Picture:
    """Return a picture to draw sums into: their error over N, a Sums and an N at a time; its size is in points."""
    return Picture(
        lambda axes, shown: draw_sums(axes, *shown), lambda shown: describe_sums(*shown), height, width,
        "How far the sum is off",
    )  # fmt: skip


def draw_order(axes: Axes, order: Order) -> None:
    """Draw the length of ``.grad`` after every call, on a logarithmic scale, into axes; units are points.

    Stretches in which a scale is in the gradients are hatched, with diamonds for the calls; elsewhere calls are
    circles. A dashed line is the length of the true gradient of each window, a dotted one is max_norm.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
        Best from ``palette.bare_axes``; what was drawn there before goes.
    order : Order
    """
    palette.wipe(axes)
    width, height = palette.size_in_points(axes)
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    lines = [*(w.true_norm for w in order.windows), order.max_norm]
    tight = width < TIGHT
    narrow, beside = (8.0, BETWEEN) if tight else (NARROW, RIGHT)
    legend = _legend_lines(width)
    seen = [m.norm for m in order.moments] + lines
    lows = [log10(v) for v in seen if isfinite(v) and v > 0]
    low, high = min(lows) - 0.4, max(lows) + 0.6
    top, bottom = height - TOP - 14 * tight, BOTTOM + 14 * (len(legend) - 1)

    def y(value: float) -> float:
        if not isfinite(value):
            return top - 22
        return bottom + (log10(max(value, 10**low)) - low) / (high - low) * (top - bottom)

    count = 1 + max((m.window for m in order.moments), default=0)
    refused = order.refused_at is not None
    room = sum(WIDE if m.call != "backward" else narrow for m in order.moments) + WIDE * refused
    stretch = min(1.3, (width - LEFT - beside - BETWEEN * (count - 1)) / room)
    _scale(axes, low, high, y, 20 if tight else 6)
    x = float(LEFT)
    path: list[tuple[float, float]] = []
    for window in range(count):
        start = x
        moments = [m for m in order.moments if m.window == window]
        backwards = sum(m.call == "backward" for m in moments)
        for i, moment in enumerate(moments, 1):
            wide = (narrow if moment.call == "backward" else WIDE) * stretch
            path.append((x + wide / 2, y(moment.norm)))
            said = "" if tight and i > 1 and _length(moments[i - 2].norm) == _length(moment.norm) else None
            number = str(i) if not tight or i == backwards else ""
            _column(axes, moment, x, wide, (bottom, top), path[-1], number, said)
            x += wide
        if refused and order.refused_at[0] == window:
            _refusal(axes, x + WIDE * stretch / 2, bottom, order.refused_at[1])
            x += WIDE * stretch
        _window(axes, window, (start, x), (bottom, top))
        if window < len(order.windows):
            passed = order.windows[window]
            step = next(
                (spot for m, spot in zip(moments, path[-len(moments) :], strict=True) if m.call == "step"), None
            )
            if step is not None:
                write(axes, step[0], bottom - 26, _made(passed), palette.SMALL, palette.INK, gid="update")
            _level(axes, start, x, y(passed.true_norm), (5, 3), f"true {window}")
        x += BETWEEN
    x -= BETWEEN
    if isfinite(order.max_norm):
        _level(axes, LEFT, x, y(order.max_norm), (1, 1.5), "limit")
        if not tight:
            spot = x + 4, y(order.max_norm) - 3
            write(axes, *spot, "max_norm", palette.SMALL, palette.MUTED, align="left", gid="word")
    axes.add_artist(Line2D(*zip(*path, strict=True), color=palette.INK, linewidth=0.8, zorder=2, gid="order"))
    _legend(axes, legend)


def _column(
    axes, moment: Moment, x: float, wide: float, reach: tuple[float, float], spot, count: str, said: str | None
) -> None:
    """Draw one call: its mark, its length, its name, and the hatch where a scale is in the gradients."""
    kind = "true" if abs(moment.scaled - 1) <= UNSCALED else "scaled"
    marker, colour = MARKS[kind]
    if kind == "scaled":
        axes.add_artist(
            Rectangle(
                (x, reach[0]), wide, reach[1] - reach[0], facecolor="none", edgecolor="#E8B48F", hatch="//",
                linewidth=0, gid="scaled", zorder=1,
            )
        )  # fmt: skip
    back = moment.call == "backward"
    size = 5 if back else 10 if moment.call == "step" else 8
    marker = "^" if moment.call == "step" else marker
    axes.add_artist(
        Line2D([spot[0]], [spot[1]], linestyle="none", marker=marker, markersize=size, gid=f"mark {kind}",
               markerfacecolor=colour, markeredgecolor=palette.INK, markeredgewidth=0.8, zorder=3)
    )  # fmt: skip
    if back:
        if count:
            write(axes, spot[0], reach[0] - 12, count, 7, palette.MUTED, gid="number")
        return
    write(axes, spot[0], reach[0] - 12, moment.call, palette.SMALL, palette.INK, gid="call")
    said = _length(moment.norm) if said is None else said
    if said:
        write(axes, spot[0], spot[1] + 8, said, palette.SMALL, palette.INK, gid="length", paper=True)


def _made(window: Passed) -> str:
    ratio = times(window.ratio)
    return "skipped" if window.skipped else "update right" if ratio == "1" else f"update x {ratio}"


def _length(norm: float) -> str:
    return f"{norm:.1e}" if 0 < norm < 1e-3 else number(norm)


def _refusal(axes, x: float, bottom: float, call: str) -> None:
    axes.add_artist(
        Line2D([x], [bottom + 16], linestyle="none", marker="X", markersize=10, markerfacecolor=palette.PAPER,
               markeredgecolor=palette.VERMILLION, zorder=3, gid="refused")
    )  # fmt: skip
    write(axes, x, bottom - 12, call, palette.SMALL, palette.INK, gid="call")
    write(axes, x, bottom + 28, "refused", palette.SMALL, palette.INK, gid="word", paper=True)


def _window(axes, window: int, ends: tuple[float, float], reach: tuple[float, float]) -> None:
    shade = Rectangle((ends[0], reach[0]), ends[1] - ends[0], reach[1] - reach[0], gid="window", zorder=0)
    shade.set(facecolor=palette.SHADE, edgecolor="none")
    axes.add_artist(shade)
    write(axes, sum(ends) / 2, reach[1] + 6, f"window {window + 1}", palette.BODY, palette.MUTED, gid="title")


def _level(axes, start: float, end: float, y: float, dashes: tuple, gid: str) -> None:
    axes.add_artist(Line2D([start, end], [y, y], color=palette.INK, linewidth=1.0, linestyle=(0, dashes), gid=gid))


def _scale(axes, low: float, high: float, y, above: float) -> None:
    step = 1 if high - low < 8 else 2 if high - low < 16 else 4
    for power in range(int(low // 1) + 1, int(high // 1) + 1):
        if power % step == 0:
            write(axes, LEFT - 8, y(10.0**power) - 3, number(10.0**power), palette.SMALL, palette.MUTED, align="right")
    write(axes, LEFT - 8, y(10**high) + above, "length of .grad", palette.SMALL, palette.MUTED, align="left")


Legend = list[list[tuple[str, str]]]  # by line: the key of a mark ("" for none) and words


def _legend_lines(width: float) -> Legend:
    """Return what marks and lines mean, on one line where there is room for it."""
    keys = [("true", "unscaled"), ("scaled", "a scale is in it (hatched)")]
    words = "triangle: what the optimizer gets; dashed: the true gradient; small numbers: backward"
    if width >= TIGHT:
        return [[*keys, ("", words)]]
    first, second, third = words.split("; ")
    return [keys, [("", first)], [("", f"{second}; dotted: max_norm; {third}")]]


def _legend(axes, lines: Legend) -> None:
    for i, line in enumerate(reversed(lines)):
        x, y = float(LEFT), 12.0 + 14 * i
        for kind, words in line:
            if kind:
                marker, colour = MARKS[kind]
                spot = Line2D([x + 5], [y + 3], linestyle="none", marker=marker, markersize=6, gid="key")
                spot.set(markerfacecolor=colour, markeredgecolor=palette.INK)
                axes.add_artist(spot)
                write(axes, x + 14, y, words, palette.SMALL, palette.MUTED, align="left", gid="legend")
                x += 26 + palette.text_width(words, palette.SMALL)
            else:
                write(axes, x, y, words, palette.SMALL, palette.MUTED, align="left", gid="legend")


def draw_sums(axes: Axes, sums: Sums, chosen: int) -> None:
    """Draw the errors of sums over N, both on logarithmic scales, into axes; units are points.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
        Best from ``palette.bare_axes``; what was drawn there before goes.
    sums : Sums
    chosen : int
        The N whose figures are written.
    """
    palette.wipe(axes)
    width, height = palette.size_in_points(axes)
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    left, right, top, bottom = LEFT, width - 150.0, height - 24.0, 34.0
    most = log10(max(row.micro_batches for row in sums.rows)) or 1.0

    def x(n: int) -> float:
        return left + log10(n) / most * (right - left)

    def y(error: float) -> float:
        return bottom + (log10(max(error, FLOOR)) - log10(FLOOR)) / -log10(FLOOR) * (top - bottom)

    for power in range(-9, 1):
        axes.add_artist(Line2D([left, right], [y(10.0**power)] * 2, color=palette.LINE, linewidth=0.5, zorder=0))
        if power % 3 == 0:
            text = "1" if power == 0 else "0" if power == -9 else f"1e{power}"
            write(axes, left - 8, y(10.0**power) - 3, text, palette.SMALL, palette.MUTED, align="right", gid="scale")
    write(axes, left - 8, top + 10, "relative error of the sum", palette.SMALL, palette.MUTED, align="left")
    axes.add_artist(
        Rectangle((x(chosen) - 9, bottom), 18, top - bottom, facecolor=palette.SHADE, edgecolor="none", gid="chosen")
    )
    for row in sums.rows:
        write(axes, x(row.micro_batches), bottom - 13, str(row.micro_batches), palette.SMALL, palette.MUTED, gid="n")
    write(axes, left - 8, bottom - 13, "N", palette.SMALL, palette.MUTED, align="right")
    ends: list[float] = []
    for field, (marker, colour, line, words) in SERIES.items():
        points = [(x(row.micro_batches), y(getattr(row, field))) for row in sums.rows]
        axes.add_artist(
            Line2D(*zip(*points, strict=True), color=colour, linestyle=line, linewidth=1.4, marker=marker or "None",
                   markersize=6, markeredgecolor=palette.INK, markeredgewidth=0.6, gid=field, zorder=3)
        )  # fmt: skip
        at = points[-1][1]
        while any(abs(at - other) < 12 for other in ends):
            at -= 3
        ends.append(at)
        write(axes, right + 12, at - 3, words.format(dtype=sums.dtype), palette.SMALL, palette.INK, align="left",
              gid="word")  # fmt: skip
    row = sums.at(chosen)
    write(axes, x(chosen), min(y(row.in_grad) + 8, top - 8), number(row.in_grad, 2), palette.SMALL, palette.INK,
          gid="error", paper=True)  # fmt: skip
