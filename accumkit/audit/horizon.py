"""The rule about a schedule's length: planned in micro-batches, and followed in updates."""

from __future__ import annotations

from accumkit.audit.findings import Finding, number
from accumkit.audit.reading import Case
from accumkit.trace.record import Event


def horizon_in_micro_batches(case: Case) -> Finding | None:
    """A scheduler that is stepped once an update was planned for as many steps as there are micro-batches."""
    steps = _planned_in_micro_batches(case)
    if not steps or _more_passes(case, steps):
        return None
    planned, made = steps[0].value, len(steps)
    return Finding(
        "horizon-in-micro-batches",
        f"the schedule is planned for {number(planned)} steps, as many as the run has micro-batches, but is stepped "
        f"once an update: {made} steps, {number(100 * made / planned)} % of the way",
        steps[0].location,
        f"plan it in updates: `passes * ceil(len(loader) / {case.steps})`",
        "update",
        tuple(update.index for update in case.boundary.windows),
    )


def perhaps_in_micro_batches(case: Case) -> str | None:
    """Return what a reader should know of a plan that fits a longer run as well."""
    steps = _planned_in_micro_batches(case)
    passes = _more_passes(case, steps) if steps else None
    if not passes:
        return None
    planned, made = steps[0].value, len(steps)
    return (
        f"The schedule is planned for {number(planned)} steps and has made {made}: right for {passes} passes "
        f"over the data, of which {len(case.boundary.passes)} {'was' if len(case.boundary.passes) == 1 else 'were'} "
        "watched. If there are no more, it is planned in micro-batches and stepped in updates "
        "(horizon-in-micro-batches)."
    )


def _planned_in_micro_batches(case: Case) -> list[Event]:
    """Return the steps of the scheduler whose plan is the run's number of micro-batches, one an update; else none."""
    micro_batches = sum(p.size for p in case.boundary.passes)
    windows = {u.micro_batches[-1].index for u in case.boundary.windows}
    steps = [e for e in case.trace.events if e.kind == "scheduler step" and e.value == micro_batches]
    once = len({e.micro_batch for e in steps}) == len(steps) and {e.micro_batch for e in steps} <= windows
    fewer = len(windows) < micro_batches  # else a plan in updates is one in micro-batches
    return steps if once and fewer and len(steps) >= 2 and 2 * len(steps) > len(windows) else []


def _more_passes(case: Case, steps: list[Event]) -> int | None:
    """Return how many passes a plan in updates would be for; None where that is no whole number."""
    passes, rest = divmod(int(steps[0].value) * len(case.boundary.passes), len(steps))
    return None if rest else passes
