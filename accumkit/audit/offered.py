"""Batches that a loop fetched and did not train on: its boundary may have counted them all the same."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import chain

from accumkit.trace.record import Event, Trace


def left_out(trace: Trace) -> dict[int, int]:
    """Return, by update, how many batches were fetched for its window and had no backward; those with none are absent.

    A loader may run ahead of the loop: a fetched batch is left out only if no later backward of its pass makes up
    for it. Where no loader was seen, the forward calls of a window that no backward reached are taken instead.
    """
    windows, batches = [u for u in trace.updates if u.micro_batches], joined(trace)
    fetches = fetched_at(trace)
    if fetches is None:
        return {u.index: u.unused for u in windows if u.unused}
    if batches and all_ahead(trace):
        return {}  # which window they were for cannot be told
    steps = steps_at(trace)
    found: dict[int, int] = {}
    for epoch in range(len(trace.epoch_sizes)):
        own = [u for u in windows if u.micro_batches[-1].epoch == epoch and u.micro_batches[-1].index in steps]
        members = {m.index: batches.get(m.index, 1) for m in trace.micro_batches if m.epoch == epoch}
        behind = []  # batches fetched and not yet trained on, at each step
        for update in own:
            last = update.micro_batches[-1].index
            fetched = sum(place < steps[last] for place in fetches[epoch])
            behind.append(fetched - sum(number for index, number in members.items() if index <= last))
        missing = trace.fetched_sizes[epoch] - sum(members.values())
        for i in reversed(range(len(behind))):  # what a later backward makes up for was only fetched ahead
            missing = behind[i] = max(0, min(behind[i], missing))
        for update, now, before in zip(own, behind, [0, *behind], strict=False):
            if now > before:
                found[update.index] = now - before
    return found


def joined(trace: Trace) -> dict[int, int]:
    """Return, by micro-batch, the batches that had their backward together, where there are several.

    Nothing where several forward calls may as well be for one batch.
    """
    batches = batches_of(trace)
    if max(batches.values(), default=1) == 1 or not _told_by_fetches(trace):
        return {}
    places, backwards = list(chain.from_iterable(fetched_at(trace))), backwards_at(trace)
    several, trained = {}, 0
    for m in trace.micro_batches:  # for no more than were fetched by then
        fetched = bisect_left(places, backwards.get(m.index, 0))
        number = max(1, min(batches.get(m.index, 1), fetched - trained))
        if number > 1:
            several[m.index] = number
        trained += number
    return several


def perhaps_joined(trace: Trace) -> bool:
    """Whether most backward calls reached several forward calls, of which it is not known for how many batches."""
    batches = batches_of(trace) if _told_by_fetches(trace) else {}
    unknown = [m.calls > 1 and m.index not in batches for m in trace.micro_batches]
    return 2 * sum(unknown) > len(unknown)


def _told_by_fetches(trace: Trace) -> bool:
    """Whether batches that were fetched tell how many forward calls are for one; a list may be gone through again."""
    return fetched_at(trace) is not None and (_per_batch(trace) == 1 or not all_ahead(trace))


def all_ahead(trace: Trace) -> bool:
    """Whether all batches were fetched before the first backward: a list is made of a loader."""
    first = min(backwards_at(trace).values(), default=0)
    return all(place < first for places in fetched_at(trace) or () for place in places)


def untrained(trace: Trace) -> list[int]:
    """Return, by pass, how many of its batches were fetched and had no backward.

    0 also where no loader was seen, and where it is not known how many batches a backward was for.
    """
    batches = batches_of(trace)
    trained, unclear = Counter(), set()
    for m in trace.micro_batches:
        trained[m.epoch] += batches.get(m.index, 1)
        if m.index not in batches:
            unclear.add(m.epoch)
    if joined(trace):  # losses put together across the end of a pass count for the one where they began
        for epoch, fetched in enumerate(trace.fetched_sizes):
            over = max(0, trained[epoch] - fetched)
            trained[epoch] -= over
            trained[epoch + 1] += over
    sizes = enumerate(trace.fetched_sizes)
    return [0 if epoch in unclear else max(0, fetched - trained[epoch]) for epoch, fetched in sizes]


def batches_of(trace: Trace) -> dict[int, int]:
    """Return, by micro-batch, how many batches its backward was for: several where their losses were put together.

    Each had a forward call, or as many of them as the model is called for one batch. Absent are micro-batches that
    several came before of which it is not known whether they were left out: those in no update, and all where no
    objective was given.
    """
    per_batch = _per_batch(trace)
    found = {m.index: max(1, m.calls // per_batch) for m in trace.micro_batches}
    open_ends = {m.index for m in (trace.micro_batches if trace.unit is None else trace.lost)}
    return {index: number for index, number in found.items() if number == 1 or index not in open_ends}


def _per_batch(trace: Trace) -> int:
    """Return how many forward calls there are for one batch, judged by how many were fetched for them."""
    per_batch, fetched, called = 1, 0, 0
    for event in trace.events:
        fetched += event.kind == "batch"
        called += event.kind == "forward"
        per_batch = max(per_batch, -(-called // fetched) if fetched else 1)
    return per_batch


def fetched_at(trace: Trace) -> list[list[int]] | None:
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


def steps_at(trace: Trace) -> dict[int, int]:
    """Return, by the last micro-batch before it, where among the events each first step stands."""
    return _first_places(trace, "step", "skipped step")


def backwards_at(trace: Trace) -> dict[int, int]:
    """Return, by micro-batch, where among the events its first backward stands."""
    return _first_places(trace, "backward")


def _first_places(trace: Trace, *kinds: str) -> dict[int, int]:
    places: dict[int, int] = {}
    for i, event in enumerate(trace.events):
        if event.kind in kinds:
            places.setdefault(event.micro_batch, i)
    return places
