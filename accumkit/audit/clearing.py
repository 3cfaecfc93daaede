"""Who cleared the gradients of a window that was not complete: the loop itself, or an evaluation in it."""

from __future__ import annotations

from collections import Counter

from accumkit.trace.record import MicroBatch, Trace, Update


def erased_in_evaluation(trace: Trace, update: Update) -> list[MicroBatch]:
    """Return a window's micro-batches that an evaluation erased; none if what is kept had another purpose."""
    gone = [m for m in update.micro_batches if m.fate == "erased"]
    kept = {m.location for m in update.micro_batches if m.fate != "erased"}
    if not gone or (kept and not kept & {m.location for m in gone}) or not during_evaluation(trace, gone):
        return []
    return gone


def during_evaluation(trace: Trace, gone: list[MicroBatch]) -> bool:
    """Whether an evaluation came between these micro-batches and the clearing of their gradients."""
    inside = {m.index for m in gone}
    evaluated = {e.micro_batch for e in trace.events if e.kind == "evaluation"}
    cleared = {e.micro_batch for e in trace.events if e.kind == "zero_grad"} & inside
    return bool(cleared) and cleared <= evaluated


def cleared_at(trace: Trace, gone: list[MicroBatch]) -> str | None:
    """Return the line that cleared these micro-batches' gradients, the most frequent one."""
    inside = {m.index for m in gone}
    lines = Counter(e.location for e in trace.events if e.kind == "zero_grad" and e.micro_batch in inside)
    return lines.most_common(1)[0][0] if lines else None
