"""Rules about what should happen once an update and happens once a micro-batch."""

from __future__ import annotations

from collections import Counter

from accumkit.audit.findings import Finding, number, several
from accumkit.audit.reading import Case
from accumkit.trace.record import Event


def scheduler_every_micro_batch(case: Case) -> Finding | None:
    """A scheduler that counts updates is stepped after each micro-batch."""
    early = inside_windows(case, "scheduler step")
    steps = [event for event in case.trace.events if event.kind == "scheduler step"]
    if early and {event.value for event in steps} == {sum(p.size for p in case.boundary.passes)}:
        return None  # planned in micro-batches and stepped at each, a schedule is run through as it was meant to be
    ran = len(case.trace.micro_batches)
    if early:
        came = f"{len(early)} of them came inside a window"
    else:
        steps = early = next((own for own in _too_many(case) if len(own) == ran), [])
        came = "as many as micro-batches"
    if not early:
        return None
    updates = [update for update in case.boundary.windows if not update.skipped]
    return Finding(
        "scheduler-every-micro-batch",
        f"{several(len(steps), 'scheduler step')} for {several(len(updates), 'update')}: {came}, so a schedule of "
        f"{case.steps} times as many updates is run through",
        Counter(event.location for event in early).most_common(1)[0][0],
        "step the scheduler once an update, right after optimizer.step(), and plan it in updates, not in micro-batches",
        "update",
        tuple(update.index for update in case.boundary.windows),
    )


def perhaps_too_often(case: Case) -> str | None:
    """Return what a reader should know of a line that steps a scheduler more than once an update."""
    if scheduler_every_micro_batch(case):
        return None
    found = _too_many(case)
    if not found:
        return None
    steps, windows = max(found, key=len), len(case.boundary.windows)
    at = f" at {steps[0].location}" if steps[0].location else ""
    return (
        f"There were {several(len(steps), 'scheduler step')}{at} for {several(windows, 'update')}: if they are of one "
        f"scheduler, a schedule planned in updates is run through {number(len(steps) / windows)} times as fast "
        "(scheduler-every-micro-batch)."
    )


def _too_many(case: Case) -> list[list[Event]]:
    """Return the scheduler steps of each line that has more of them than there are updates.

    Several schedulers may have one line, or one says another length of its plan; a plan that is as long as the steps
    made is followed as it was meant.
    """
    windows = len(case.boundary.windows)
    if case.steps == 1 or not windows or case.boundary.kind not in ("declared", "straddling"):
        return []
    by_line: dict[tuple, list[Event]] = {}
    for event in case.trace.events:
        if event.kind == "scheduler step":
            by_line.setdefault((event.location, event.value), []).append(event)
    most = windows * max(1, len(case.trace.schedulers))  # one line may step them all
    return [steps for (_, planned), steps in by_line.items() if len(steps) > most and planned != len(steps)]


def ema_every_micro_batch(case: Case) -> Finding | None:
    """A moving average of the model is updated after each micro-batch."""
    early = inside_windows(case, "ema update")
    if not early:
        return None
    made = case.trace.count_of("ema update")
    updates = [update for update in case.boundary.windows if not update.skipped]
    return Finding(
        "ema-every-micro-batch",
        f"the average was updated {several(made, 'time')} for {several(len(updates), 'update')}: {len(early)} of them "
        f"came inside a window, where it takes in the same parameters once more; a decay d chosen for updates is "
        f"d to the power of {case.steps}",
        Counter(event.location for event in early).most_common(1)[0][0],
        "update the average once an update, right after `optimizer.step()`: the line belongs inside the boundary's if",
        "record",
    )


def inside_windows(case: Case, kind: str) -> list[Event]:
    """Return the events of a kind that came inside windows, if they come after most micro-batches there; else none."""
    events = [event for event in case.trace.events if event.kind == kind]
    inside = set()  # micro-batches after which a window goes on in the same pass
    for update in case.boundary.windows:
        for m, after in zip(update.micro_batches, update.micro_batches[1:], strict=False):
            if m.epoch == after.epoch:
                inside.add(m.index)
    early = [event for event in events if event.micro_batch in inside]
    often = 2 * len(inside & {event.micro_batch for event in events}) >= len(inside)
    return early if often else []
