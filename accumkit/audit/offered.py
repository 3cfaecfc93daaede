"""Batches that a loop fetched and did not train on: its boundary may have counted them all the same."""

from __future__ import annotations

from accumkit.trace.record import Event, Trace


def left_out(trace: Trace) -> dict[int, int]:
    """Return, by update, how many batches were fetched for its window and had no backward; those with none are absent.

    A loader may run ahead of the loop: a fetched batch is left out only if no later backward of its pass makes up
    for it. Where no loader was seen, the forward calls of a window that no backward reached are taken instead.
    """
    windows = [u for u in trace.updates if u.micro_batches]
    fetches = _fetches(trace)
    if fetches is None:
        return {u.index: u.unused for u in windows if u.unused}
    steps = _steps(trace)
    found: dict[int, int] = {}
    for epoch, ran in enumerate(trace.epoch_sizes):
        own = [u for u in windows if u.micro_batches[-1].epoch == epoch and u.micro_batches[-1].index in steps]
        members = [m.index for m in trace.micro_batches if m.epoch == epoch]
        behind = []  # batches fetched and not yet trained on, at each step
        for update in own:
            last = update.micro_batches[-1].index
            fetched = sum(place < steps[last] for place in fetches[epoch])
            behind.append(fetched - sum(index <= last for index in members))
        missing = trace.fetched_sizes[epoch] - ran
        for i in reversed(range(len(behind))):  # what a later backward makes up for was only fetched ahead
            missing = behind[i] = max(0, min(behind[i], missing))
        for update, now, before in zip(own, behind, [0, *behind], strict=False):
            if now > before:
                found[update.index] = now - before
    return found


def _fetches(trace: Trace) -> list[list[int]] | None:
    """Return, by pass, where among the events its batches were fetched; None where that cannot be told."""
    lines = set()
    latest: Event | None = None
    for event in trace.events:
        if event.kind == "batch":
            latest = event
        elif event.kind == "forward" and latest is not None:
            lines.add(latest.location)
    places = [i for i, event in enumerate(trace.events) if event.kind == "batch" and event.location in lines]
    sizes = trace.fetched_sizes
    if not places or min(sizes, default=0) < 0 or sum(sizes) != len(places):
        return None  # no loader, or one whose batches cannot be told from another's, such as an evaluation's
    found, start = [], 0
    for size in sizes:
        found.append(places[start : start + size])
        start += size
    return found


def _steps(trace: Trace) -> dict[int, int]:
    """Return, by the last micro-batch before it, where among the events each first step stands."""
    places: dict[int, int] = {}
    for i, event in enumerate(trace.events):
        if event.kind in ("step", "skipped step"):
            places.setdefault(event.micro_batch, i)
    return places
