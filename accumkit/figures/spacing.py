"""How much room the events of a timeline have, and which numbers fit into it. No drawing."""

from __future__ import annotations

from itertools import pairwise

from accumkit.figures import palette
from accumkit.figures.events import Span

LEFT, RIGHT = 76, 16  # points beside the events
STRIDE, GAP, BETWEEN = 22.0, 86.0, 8.0  # points: an event at most, a gap, between windows
NUMBER = 7  # size of a micro-batch's number, in points
CLEAR = 4.5  # points: half of a step's mark, which may stand beside the number of a window's last micro-batch

# How many of the micro-batches have their number, and what is said of it.
SAID = {
    "all": "; the numbers count micro-batches",
    "last": "; the number is that of a window's last micro-batch",
    "none": "",
}


def events_in(spans: list[Span]) -> int:
    """Return how many events are shown."""
    return sum(column.kind != "gap" for span in spans for column in span.columns)


def stride_of(spans: list[Span], width: float) -> float:
    """Return the room that each event has, in points, in axes of a width in points."""
    gaps = GAP * sum(column.kind == "gap" for span in spans for column in span.columns) + BETWEEN * (len(spans) - 1)
    return min(STRIDE, (width - LEFT - RIGHT - gaps) / max(events_in(spans), 1))


def numbered(spans: list[Span], width: float) -> tuple[str, set[int]]:
    """Return which micro-batches, counted from 1, have their number: where it is tight, the last of each window.

    Parameters
    ----------
    spans : list of Span
    width : float
        Of the axes, in points.

    Returns
    -------
    tuple of (str, set of int)
        A key of ``SAID``, and the numbers.

    Examples
    --------
    >>> from accumkit.figures.events import Column, Span
    >>> from accumkit.figures.spacing import numbered
    >>> window = Span("update 1", tuple(Column("backward", i) for i in range(1, 41)))
    >>> numbered([window], 400), numbered([window], 1000)[0]
    (('last', {40}), 'all')
    """
    places = [[(i, c.number) for i, c in enumerate(span.columns) if c.kind == "backward"] for span in spans]
    windows = [window for window in places if window]
    numbers = {number for window in windows for _, number in window}
    if not numbers:
        return "none", set()
    stride = stride_of(spans, width)
    wide = palette.text_width(str(max(numbers)), NUMBER) + 3
    apart = min((after - before for window in windows for (before, _), (after, _) in pairwise(window)), default=2)
    if wide <= apart * stride and wide / 2 + CLEAR <= stride:
        return "all", numbers
    if wide <= stride * min(len(span.columns) for span, window in zip(spans, places, strict=True) if window):
        return "last", {window[-1][1] for window in windows}
    return "none", set()
