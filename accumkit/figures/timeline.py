"""The timeline: what a loop did, event after event, with its windows shaded."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from accumkit.figures import palette
from accumkit.figures.events import ROWS, Span, rows_of, spans_of
from accumkit.figures.marks import write
from accumkit.figures.spacing import BETWEEN, GAP, LEFT, NUMBER, SAID, events_in, numbered, stride_of
from accumkit.trace.record import Trace

WIDTH = 9.0  # inches
TOP, BOTTOM, ROW, LINE, KEY = 24, 12, 17, 14, 14  # points

# kind: marker, face, edge, size. Shape and row say what it is; colour says it again.
MARKS = {
    "batch": ("s", palette.PAPER, palette.MUTED, 6),
    "forward": ("s", palette.INK, palette.INK, 6),
    "backward": ("o", palette.BLUE, palette.INK, 8),
    "unscale": ("v", palette.PAPER, palette.INK, 7),
    "clip": ("D", palette.PAPER, palette.INK, 6),
    "step": ("^", palette.GREEN, palette.INK, 9),
    "skipped step": ("X", palette.VERMILLION, palette.INK, 8),
    "scaler update": ("d", palette.PAPER, palette.INK, 8),
    "zero_grad": ("o", palette.PAPER, palette.INK, 7),
    "scheduler step": (">", palette.PAPER, palette.INK, 7),
    "ema update": ("p", palette.PAPER, palette.INK, 7),
    "evaluation": ("h", palette.PAPER, palette.INK, 7),
    "state saved": ("*", palette.PAPER, palette.INK, 9),
}
FATES = {
    "erased": ("X", palette.PAPER, palette.VERMILLION, 8),
    "lost": ("X", palette.PAPER, palette.VERMILLION, 8),
    "leaked": ("D", palette.PURPLE, palette.INK, 7),
}
FATE_WORDS = {
    "erased": "erased before the step",
    "lost": "lost: in no update",
    "leaked": "leaked from the epoch before",
}


def timeline(trace: Trace, title: str = "What the loop did") -> Figure:
    """Draw the events of a trace along one axis, from left to right in the order in which they happened.

    A row holds one kind of event, a shaded panel is a window: from its first fetch to its step. The numbers are
    those of the micro-batches; where it is tight, only the last of each window has its own. Of more than 160 events
    the first and the last windows are shown.

    Parameters
    ----------
    trace : Trace
        What ``ak.watch`` recorded.
    title : str
        Written above the picture; "" for none.

    Returns
    -------
    matplotlib.figure.Figure
        Not known to pyplot; 9 inches wide, as high as its rows need.

    Examples
    --------
    >>> from accumkit import figures
    >>> from accumkit.trace.record import Event, Trace
    >>> figure = figures.timeline(Trace(1, events=[Event("backward", 0, None), Event("step", 0, None)]))
    >>> [text.get_text() for text in figure.axes[0].texts if text.get_gid() == "title"]
    ['update 1']
    """
    heading = 24 if title else 0
    height = height_of(trace) + heading
    figure = palette.new_figure(WIDTH, height / 72)
    if title:
        figure.text(12 / (WIDTH * 72), 1 - 18 / height, title, fontsize=11, weight="bold", color=palette.INK)
    draw_timeline(palette.bare_axes(figure, 0, 0, WIDTH * 72, height - heading), trace)
    return figure


def height_of(trace: Trace, width: float = WIDTH * 72) -> float:
    """Return the height that a trace's timeline needs in a picture of some width, both in points."""
    spans = spans_of(trace)
    return TOP + BOTTOM + ROW * len(rows_of(spans)) + LINE * len(_legend_lines(spans, width))


def draw_timeline(axes: Axes, trace: Trace) -> list[Span]:
    """Draw a trace's timeline into axes, in the place of what was drawn there before; units are points.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
        Best from ``palette.bare_axes`` and as high as :func:`height_of` says.
    trace : Trace

    Returns
    -------
    list of Span
        What was drawn.
    """
    palette.wipe(axes)
    spans = spans_of(trace)
    rows = rows_of(spans)
    width, height = palette.size_in_points(axes)
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    ys = {kind: height - TOP - ROW * (i + 0.5) for i, kind in enumerate(rows)}
    ys["skipped step"] = ys["step"]
    low, high = min(ys.values()) - ROW / 2, max(ys.values()) + ROW / 2
    for kind in rows:
        write(axes, LEFT - 10, ys[kind] - 3, ROWS[kind], palette.SMALL, palette.MUTED, align="right", gid="row")
    if not events_in(spans):
        write(axes, width / 2, height / 2, "no event was seen", palette.BODY, palette.MUTED)
        return spans
    end = _spans(axes, spans, ys, (low, high), width)
    for kind in rows:  # a thin line in each row leads the eye back to its name
        axes.add_artist(Line2D([LEFT - 6, end], [ys[kind]] * 2, color=palette.LINE, linewidth=0.5, zorder=1))
    _legend(axes, _legend_lines(spans, width), low)
    return spans


def _spans(axes, spans: list[Span], ys: dict[str, float], reach: tuple[float, float], width: float) -> float:
    """Draw every window with its events; return where the last one ends."""
    low, high = reach
    stride, (which, numbers) = stride_of(spans, width), numbered(spans, width)
    points: dict[tuple, list[tuple[float, float]]] = {}
    paths: list[list[tuple[float, float]]] = [[]]
    titles: list[tuple[str, float, float]] = []
    x = float(LEFT)
    for span in spans:
        start = x
        for column in span.columns:
            if column.kind == "gap":
                for i, line in enumerate(("· · ·", column.left_out, "left out")):
                    y = (low + high) / 2 + 10 - 12 * i
                    write(axes, x + GAP / 2, y, line, palette.SMALL, palette.MUTED, gid="gap", paper=True)
                x += GAP
                paths.append([])
                continue
            spot = (x + stride / 2, ys[column.kind])
            mark = FATES.get(column.fate, MARKS[column.kind]) if column.kind == "backward" else MARKS[column.kind]
            points.setdefault((column.kind, mark), []).append(spot)
            paths[-1].append(spot)
            if column.kind == "backward" and column.number in numbers:
                # alone in its window it ends under its mark, clear of the step's to the right of it
                align, right = ("center", 0.0) if which == "all" else ("right", 2.0)
                place = (spot[0] + right, spot[1] - 12)
                write(axes, *place, str(column.number), NUMBER, palette.INK, align=align, gid="number")
            x += stride
        if span.title:
            shade = Rectangle((start, low), x - start, high - low, gid="window", zorder=0)
            shade.set(facecolor=palette.SHADE, edgecolor="none")
            axes.add_artist(shade)
            titles.append((span.title, start, x))
        x += BETWEEN
    for path in filter(None, paths):
        axes.add_artist(Line2D(*zip(*path, strict=True), color=palette.LINE, linewidth=0.7, zorder=1, gid="order"))
    _titles(axes, titles, high + 6)
    scale = min(1.0, max(0.35, stride / 11))
    for (kind, (marker, face, edge, size)), spots in points.items():
        axes.add_artist(
            Line2D(
                *zip(*spots, strict=True), linestyle="none", marker=marker, markersize=size * scale, gid=kind,
                markerfacecolor=face, markeredgecolor=edge, markeredgewidth=1.0 if scale > 0.6 else 0.6, zorder=3,
            )
        )  # fmt: skip
    return x - BETWEEN


def _titles(axes: Axes, titles: list[tuple[str, float, float]], y: float) -> None:
    """Write which update each window is; the number alone, for all, where "update" has no room."""
    short = any(palette.text_width(name, palette.BODY) > end - start + BETWEEN for name, start, end in titles)
    for name, start, end in titles:
        text = name.replace("no update", "none").removeprefix("update ") if short else name
        if palette.text_width(text, palette.SMALL) <= end - start + BETWEEN:
            write(axes, (start + end) / 2, y, text, palette.BODY, palette.MUTED, gid="title")
    if short:
        write(axes, LEFT - 10, y, "update", palette.SMALL, palette.MUTED, align="right", gid="row")


def _legend(axes: Axes, lines: list[list[tuple[tuple | None, str]]], low: float) -> None:
    """Say what shapes mean that no row explains, and that time runs to the right."""
    y = low - 3
    for line in lines:
        x, y = float(LEFT), y - LINE
        for mark, word in line:
            if mark:
                marker, face, edge, size = mark
                spot = Line2D([x + 5], [y + 3], linestyle="none", marker=marker, markersize=size, gid="key")
                spot.set(markerfacecolor=face, markeredgecolor=edge)
                axes.add_artist(spot)
                x += KEY
            write(axes, x, y, word, palette.SMALL, palette.MUTED, align="left", gid="legend")
            x += palette.text_width(word, palette.SMALL) + 12


def _legend_lines(spans: list[Span], width: float) -> list[list[tuple[tuple | None, str]]]:
    """Return what is to be said under a timeline: a mark (None for none) and words, by line."""
    columns = [column for span in spans for column in span.columns]
    fates = {column.fate for column in columns if column.kind == "backward"}
    entries: list[tuple[tuple | None, str]] = []
    if any(column.kind == "skipped step" for column in columns):
        entries.append((MARKS["skipped step"], "skipped step"))
    entries += [(FATES[fate], f"backward, {words}") for fate, words in FATE_WORDS.items() if fate in fates]
    lines: list[list[tuple[tuple | None, str]]] = []
    left = 0.0
    for mark, words in [*entries, (None, "time runs to the right" + SAID[numbered(spans, width)[0]])]:
        wide = KEY * bool(mark) + palette.text_width(words, palette.SMALL) + 12
        if not lines or wide > left:
            lines.append([])
            left = width - LEFT
        lines[-1].append((mark, words))
        left -= wide
    return lines
