"""What an exercise says of an optimizer's steps and of a schedule beside them, where windows end as they should."""

from __future__ import annotations

from dataclasses import replace

from accumkit.audit import Finding
from accumkit.audit.findings import several
from accumkit.checks.audited import CALLS
from accumkit.trace.record import Trace

FASTER = ", so the learning rate falls faster than planned"


def empty(trace: Trace, due: int) -> tuple[str, ...] | None:
    """Return what to say of steps that no micro-batch stands behind."""
    made = trace.count_of("step")
    if made <= due:
        return None
    cost = "SGD stands still at it, Adam and momentum move, and the schedule goes on."
    if any(update.why and "not finite" in update.why for update in trace.updates):
        cost = "Its gradients were divided by a count of 0: from then on they and the parameters are no numbers."
    return (
        "A step without a window (empty-update)",
        f"Measured: {several(made, 'optimizer step')} for {several(due, 'window')}: after a pass whose last window was "
        f"full, one more step is made of nothing. {cost}",
        f"To change{_at(trace, 'step')}: at the end of the data, step only if something is left.",
    )


def schedule(trace: Trace, given: int) -> tuple[str, ...] | None:
    """Return what to say where the given scheduler, which took ``given`` steps, did not take one after each update."""
    before, taken = [], 0
    for event in trace.events:
        taken += event.kind == "scheduler step"
        if event.kind == "step":
            before.append(taken)
    updates = len(before)
    at = _at(trace, "scheduler step" if taken else "step")
    if before == list(range(updates)) and taken == updates:
        if given == taken:
            return None
        told = f"Measured: {given} of {several(taken, 'scheduler step')} are of the scheduler that was given."
        return (
            "Another schedule (not-the-given-scheduler)",
            told,
            f"To change{at}: step the one that is given, no other.",
        )
    found = f"Measured: {several(taken, 'scheduler step')} for {several(updates, 'update')}"
    advice = f"To change{at}: `scheduler.step()` belongs to every update, where the optimizer's step is."
    if taken == 0:
        return "The schedule stands still (scheduler-not-stepped)", f"{found}: the learning rate never falls.", advice
    if taken == CALLS:
        return "A scheduler step a pass (scheduler-every-pass)", f"{found}, one at the end of each pass.", advice
    if taken == updates and before == list(range(1, updates + 1)):
        told = f"{found}, each before the optimizer's: the first update has the second rate of the plan already."
        return (
            "The schedule is a step ahead (scheduler-before-step)",
            told,
            f"To change{at}: first the optimizer's step.",
        )
    if taken < updates:
        told = f"{found}: the update at the end of a pass goes without. The rate is too high from then on."
        return "An update without its scheduler step (scheduler-misses-tail)", told, advice
    return "The schedule is not one step an update (scheduler-miscounted)", f"{found}.", advice


def _at(trace: Trace, kind: str) -> str:
    """Return at which line the last event of a kind came."""
    line = next((event.location for event in reversed(trace.events) if event.kind == kind), None)
    return f", at {line}" if line else ""


def faster(finding: Finding) -> Finding:
    """Say of a schedule that is stepped too often what a learner sees of it."""
    if finding.pitfall != "scheduler-every-micro-batch":
        return finding
    return replace(finding, evidence=finding.evidence.partition(", so a schedule of")[0] + FASTER)
