"""Rules about what should happen once an update and happens once a micro-batch."""

from __future__ import annotations

from collections import Counter

from accumkit.audit.findings import Finding, several
from accumkit.audit.reading import Case


def scheduler_every_micro_batch(case: Case) -> Finding | None:
    """A scheduler that counts updates is stepped after each micro-batch."""
    steps = [event for event in case.trace.events if event.kind == "scheduler step"]
    stepped = {event.micro_batch for event in steps}
    inside = set()  # micro-batches after which a window goes on in the same pass: no scheduler's turn
    for update in case.boundary.windows:
        for m, after in zip(update.micro_batches, update.micro_batches[1:], strict=False):
            if m.epoch == after.epoch:
                inside.add(m.index)
    early = [event for event in steps if event.micro_batch in inside]
    if not early or 2 * len(inside & stepped) < len(inside):
        return None
    updates = [update for update in case.boundary.windows if not update.skipped]
    return Finding(
        "scheduler-every-micro-batch",
        f"{several(len(steps), 'scheduler step')} for {several(len(updates), 'update')}: {len(early)} of them came "
        f"inside a window, so a schedule of {case.steps} times as many updates is run through",
        Counter(event.location for event in early).most_common(1)[0][0],
        "step the scheduler once an update, right after optimizer.step(), and plan it in updates, not in micro-batches",
        "update",
        tuple(update.index for update in case.boundary.windows),
    )
