"""Steps that were due after a batch that was fetched and not trained on, and that were left out together with it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from accumkit.audit.findings import listed, named
from accumkit.audit.offered import backwards_at, fetched_at, steps_at
from accumkit.trace.record import Trace


@dataclass(frozen=True)
class Missed:
    """A place where a step was due and none was made, since the loop passed over the batch there."""

    epoch: int
    batch: int  # the batch after which it was due, from 1 within its pass
    last: bool  # no step of its pass came after it


def missed_steps(trace: Trace) -> tuple[Missed, ...]:
    """Return the steps that a loop which counts what it fetches left out together with a batch.

    All its other steps must stand where they should, every N batches and at the end of a pass, and something must
    have waited for the one left out. Nothing is said of a loop that may fetch ahead, where it cannot be told which
    batch a backward was for.
    """
    fetches, backwards, steps = fetched_at(trace), backwards_at(trace), steps_at(trace)
    if fetches is None:
        return ()
    found: list[Missed] = []
    for epoch, places in enumerate(fetches):
        members = [m.index for m in trace.micro_batches if m.epoch == epoch]
        if not members or any(index not in backwards for index in members):
            return ()
        trained = [bisect_left(places, backwards[index]) for index in members]  # batches, from 1
        if trained[0] != 1 or len(set(trained)) < len(trained):
            return ()
        made = [bisect_left(places, steps[index]) for index in members if index in steps]
        missed = _missed(trace, epoch, len(places), trained, made)
        if missed is None:
            return ()
        found += missed
    return tuple(found)


def _missed(trace: Trace, epoch: int, fetched: int, trained: list[int], made: list[int]) -> list[Missed] | None:
    """Return those of one pass; None where steps stand in other places."""
    steps = trace.accumulation_steps
    due = [*range(steps, fetched + 1, steps)]
    if trace.tail == "step" and fetched % steps and fetched == trace.loader_sizes[epoch]:
        due.append(fetched)
    if not set(made) <= {*due, fetched}:
        return None
    found = []
    for batch in due:
        before = max((step for step in made if step < batch), default=0)
        waiting = any(before < place <= batch for place in trained)
        if batch in made or not waiting:
            continue
        if batch not in trained:
            found.append(Missed(epoch, batch, last=not any(step > batch for step in made)))
        elif batch % steps == 0:
            return None
    return found


def where_missed(missed: list[Missed], passes: int) -> str:
    """Return "batch 4", "batches 4 and 8 of pass 1", or how many places there are."""
    by_pass: dict[int, list[int]] = {}
    for m in missed:
        by_pass.setdefault(m.epoch, []).append(m.batch - 1)
    alike = len(set(map(tuple, by_pass.values()))) == 1
    if alike and len(by_pass) == passes:
        return named(next(iter(by_pass.values())), "batch") + (" of each pass" if passes > 1 else "")
    shown = [f"{named(places, 'batch')} of pass {epoch + 1}" for epoch, places in by_pass.items()]
    return listed(shown if len(shown) <= 4 else [*shown[:3], f"others of {len(shown) - 3} more passes"])
