"""The rule about two loops that accumulate, one inside the other: both wait, and both divide."""

from __future__ import annotations

from accumkit.audit.findings import Finding, listed, number, several
from accumkit.audit.reading import Case, Window, near
from accumkit.audit.wording import weigh


def nested_accumulation(case: Case) -> Finding | None:
    """An update only after N * N micro-batches, or where the data end."""
    if not nested(case):
        return None
    boundary, steps = case.boundary, case.steps
    sizes = boundary.sizes
    shown = ", ".join(map(str, sizes[:8])) + ", ..." if len(sizes) > 8 else listed([str(size) for size in sizes])
    wrong = [w for w in case.windows if w.even and not w.fair]
    weights = f"; {weigh(case, wrong)} where both divide a short window" if wrong else ""
    return Finding(
        "nested-accumulation",
        f"windows of {shown} micro-batches: an update only after {steps} times {steps} = {number(steps**2)}, or where "
        f"the data end{weights}. Two loops seem to accumulate {steps} each, one inside the other: "
        f"{several(len(boundary.windows), 'update')} for {several(sum(sizes), 'micro-batch')}",
        boundary.windows[0].location,
        "let one of them accumulate: call the tool after every micro-batch, without a condition or a division of your "
        "own; or give the tool accumulation steps of 1",
        "update",
        tuple(u.index for u in boundary.windows),
    )


def perhaps_nested(case: Case) -> str | None:
    """Return what a reader should know of windows that two loops would make, and that one loop would make as well."""
    if nested(case) or not _waits_twice(case) or any(p.fetched > p.ran for p in case.boundary.passes):
        return None  # a window may be as long because a step was left out together with a batch
    return (
        f"Two loops that accumulate {case.steps} micro-batches each, one inside the other, would make such windows "
        "(nested-accumulation), and so would one loop with another N than the declared one."
    )


def nested(case: Case) -> bool:
    """Whether windows end where two nested loops end them, and something shows that it is not one loop with a larger N.

    What shows it: windows end at every N * N micro-batches and, flushed, where the data end; and a short one is
    divided by both loops.
    """
    if _waits_twice(case):
        return any(divided_by_both(w) or divided_by_both(w, w.steps) for w in case.windows)
    # a pass is no longer than a window: the divisor alone can tell, where no other rule explains it
    if case.steps == 1 or case.boundary.kind != "declared" or not case.boundary.pass_long:
        return False
    return any(divided_by_both(w) and case.ways[w.update.index] is None for w in case.windows)


def _waits_twice(case: Case) -> bool:
    boundary, both = case.boundary, case.steps**2
    if case.steps == 1 or not boundary.windows or boundary.crosses:
        return False
    if boundary.kind != "unclear" and not (boundary.kind == "wrong count" and boundary.pass_long):
        return False
    regular = all(p.inner == tuple(range(both, p.ran, both)) for p in boundary.passes)
    return regular and any(u.accumulated > case.steps for u in boundary.windows)


def divided_by_both(w: Window, more: float = 1.0) -> bool:
    """Whether losses were divided by N, then by what the outer loop handed to the tool; ``more``: by that once more."""
    if w.fair or w.size > len(w.members) or not all(w.counts) or not all(m.share for m in w.members):
        return False
    calls = list(range(w.steps - 1, w.size, w.steps))
    calls += [w.size - 1] if w.size % w.steps else []
    for by in (w.steps, len(calls)):  # means, divided by a constant or by the tool's own calls
        if near([m.share for m in w.members], [1 / (w.steps * by * more)] * w.size, w.tolerance):
            return True
    handed = sum(w.members[i].count for i in calls)  # sums, divided by the micro-batches that the tool was told of
    return near(w.coefficients, [1 / (w.steps * handed * more)] * w.size, w.tolerance)
