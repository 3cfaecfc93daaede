"""From a trace to columns of events: what the timeline shows, and what it leaves out. No drawing."""

from __future__ import annotations

from dataclasses import dataclass

from accumkit.trace.record import Event, Trace

# From the top down, in the order in which a loop does them; the first four are always shown.
ROWS = {
    "batch": "fetched",
    "forward": "forward",
    "backward": "backward",
    "unscale": "unscale",
    "clip": "clip",
    "step": "step",
    "scaler update": "scaler",
    "zero_grad": "zero_grad",
    "scheduler step": "scheduler",
    "ema update": "average",
    "evaluation": "evaluation",
    "state saved": "state saved",
}
ALWAYS = ("forward", "backward", "step", "zero_grad")
STARTS = ("batch", "forward", "backward")  # what begins a window
ENDS = ("step", "skipped step")
ROOM = 160  # events shown at most; of a longer run the first and the last windows
LONGEST = 60  # events of one window shown at most


@dataclass(frozen=True)
class Column:
    """One event, or (``left_out`` set) a gap."""

    kind: str
    number: int = 0  # of a backward: which micro-batch, from 1
    fate: str = "kept"
    left_out: str = ""


@dataclass(frozen=True)
class Span:
    """Neighbouring columns: a window with its title, or ("") what happens between windows."""

    title: str
    columns: tuple[Column, ...]


def spans_of(trace: Trace) -> list[Span]:
    """Return the columns of a timeline, window by window, shortened to what can be read.

    A window runs from its first fetch, forward or backward to its step.

    Parameters
    ----------
    trace : Trace

    Returns
    -------
    list of Span

    Examples
    --------
    >>> from accumkit.figures.events import spans_of
    >>> from accumkit.trace.record import Event, Trace
    >>> [span.title for span in spans_of(Trace(1, events=[Event("zero_grad", -1, None), Event("forward", 0, None)]))]
    ['', 'no update']
    """
    spans = _windows(trace)
    if sum(len(span.columns) for span in spans) <= ROOM:
        return spans
    spans = [Span(span.title, _shortened(span.columns)) for span in spans]
    first, last = _until(spans, ROOM * 2 // 3), _until(spans[::-1], ROOM // 4)[::-1]
    if len(first) + len(last) >= len(spans):
        return spans
    hidden = spans[len(first) : len(spans) - len(last)]
    windows = sum(bool(span.title) for span in hidden)
    gap = Span("", (Column("gap", left_out=f"{windows:,} windows"),))
    return [*first, gap, *last]


def rows_of(spans: list[Span]) -> list[str]:
    """Return the rows that a timeline needs, from the top down: keys of ``ROWS``."""
    seen = {"step" if c.kind == "skipped step" else c.kind for span in spans for c in span.columns}
    return [kind for kind in ROWS if kind in seen or kind in ALWAYS]


def _windows(trace: Trace) -> list[Span]:
    fates = {micro.index: micro.fate for micro in trace.micro_batches}
    spans: list[Span] = []
    window: list[Column] = []
    between: list[Column] = []
    updates = 0

    def close(title: str) -> None:
        if window:
            spans.append(Span(title, tuple(window)))
            window.clear()

    for i, event in enumerate(trace.events):
        column = _column(event, fates)
        if window:
            window.append(column)
            if event.kind in ENDS and not _stepping(trace.events, i):
                updates += 1
                close(f"update {updates}" + (" skipped" if event.kind == "skipped step" else ""))
        elif event.kind in STARTS:
            if between:
                spans.append(Span("", tuple(between)))
                between = []
            window.append(column)
        else:
            between.append(column)
    if window and not any(column.kind in ("forward", "backward") for column in window):
        between = [*window, *between]  # fetched ahead and never used, or an evaluation: no window
        window.clear()
    close("no update")
    if between:
        spans.append(Span("", tuple(between)))
    return spans


def _stepping(events: list[Event], i: int) -> bool:
    """Whether another optimizer steps right after this one, for the same window."""
    return i + 1 < len(events) and events[i + 1].kind in ENDS


def _column(event: Event, fates: dict[int, str]) -> Column:
    if event.kind != "backward":
        return Column(event.kind)
    return Column("backward", event.micro_batch + 1, fates.get(event.micro_batch, "kept"))


def _shortened(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    if len(columns) <= LONGEST:
        return columns
    head, tail = LONGEST * 2 // 3, LONGEST // 4
    hidden = columns[head:-tail]
    micro_batches = sum(column.kind == "backward" for column in hidden)
    gap = Column("gap", left_out=f"{micro_batches:,} micro-batches")
    return (*columns[:head], gap, *columns[-tail:])


def _until(spans: list[Span], room: int) -> list[Span]:
    """Return the first spans that fit in ``room`` columns, one at least."""
    kept: list[Span] = []
    for span in spans:
        if kept and sum(len(k.columns) for k in kept) + len(span.columns) > room:
            break
        kept.append(span)
    return kept
