"""Rules about boundaries: where windows begin and end, and what is cleared, left behind or stepped there."""

from __future__ import annotations

from collections import Counter
from math import isnan

from accumkit.audit.boundary import EVERY, declared_sizes
from accumkit.audit.clearing import cleared_at, during_evaluation
from accumkit.audit.findings import Finding, listed, named, number, several, span, worst_of
from accumkit.audit.nested import nested
from accumkit.audit.passed_over import where_missed
from accumkit.audit.reading import Case
from accumkit.audit.stopped import cut_short, never_ran, passed_over_at_the_end
from accumkit.trace.record import MicroBatch, Update

# of a gradient; beside one that a scaler's scale is still in, what is left over is small, and wrong all the same
LEFT_OVER = 1e-9
AT_THE_END = "step for the short last window too, divided by its own number: `or i + 1 == len(loader)` in the condition"
DECLARED = 'declare it: `ak.watch(..., tail="drop")`'
GIVEN = "give the batches of the short last window a backward too, and a step at its end"
TOGETHER = (
    "let every batch reach the condition that ends a window: a `continue` (or `break`) before it leaves out the step "
    "together with the batch"
)


def step_every_micro_batch(case: Case) -> Finding | None:
    """A step after each backward, although windows of N were declared."""
    if case.boundary.kind != "every micro-batch":
        return None
    windows = case.boundary.windows
    piled = any((u.carried or 0.0) > LEFT_OVER for u in windows)
    so = "and each takes the gradients before it once more" if piled else "so nothing is accumulated"
    return Finding(
        "step-every-micro-batch",
        f"{several(len(windows), 'step')} for {several(len(windows), 'micro-batch')}: every window holds 1 micro-batch "
        f"instead of {case.steps}, {so}",
        windows[0].location,
        f"step only where a window ends, `if (i + 1) % {case.steps} == 0 or i + 1 == len(loader):`, with "
        "`optimizer.step()` and `optimizer.zero_grad()` both inside that if",
        "update",
        _indices(windows),
    )


def off_by_one(case: Case) -> Finding | None:
    """The boundary's condition holds at the wrong count, or everywhere but at the right one."""
    boundary = case.boundary
    if boundary.kind != "wrong count" or nested(case):
        return None
    home = max(boundary.passes, key=lambda p: p.ran)
    expected = declared_sizes(home.ran, case.steps)
    return Finding(
        "off-by-one",
        f"windows of {_sizes(boundary.sizes)} micro-batches ({boundary.how}); accumulation_steps={case.steps} over "
        f"the {several(home.ran, 'micro-batch')} of a pass means {_sizes(expected)}",
        boundary.windows[0].location,
        _condition(case),
        "update",
        _indices(boundary.windows),
    )


def _condition(case: Case) -> str:
    count = f"`(i + 1) % {case.steps} == 0` where i comes from `enumerate(loader)`"
    if case.boundary.how.startswith(EVERY):  # there may be no condition, but a number handed to what makes the windows
        return (
            f"end a window after every {case.steps} micro-batches, and declare the N that is meant: the number stands "
            f"in the condition, {count}, or is the one given to `ak.windows` or `islice`"
        )
    return f"count from 1 in the condition: {count}, or `i + 1 == len(loader)` for the short last window"


def zero_every_micro_batch(case: Case) -> Finding | None:
    """Gradients cleared between the first backward of a window and its step."""
    several_in = [u for u in case.boundary.windows if u.accumulated > 1 and not u.skipped]
    cleared = [u for u in case.boundary.windows if any(m.fate == "erased" for m in u.micro_batches)]
    often = [u for u in cleared if u.accumulated > 1]
    if case.boundary.kind == "unclear" or not cleared or 2 * len(often) < len(several_in):
        return None
    gone = [m for u in cleared for m in u.micro_batches if m.fate == "erased"]
    kept = {m.location for u in case.boundary.windows for m in u.micro_batches if m.fate == "kept"}
    if kept and not kept & {m.location for m in gone}:
        return None  # another backward, for another purpose: a discriminator clears what the generator's turn left
    if during_evaluation(case.trace, gone):
        return None
    ran = sum(u.accumulated for u in cleared)
    first = cleared[0]
    lost = sum(m.fate == "erased" for m in first.micro_batches)
    left = [m.weight for m in first.micro_batches if m.fate == "kept" and m.weight is not None]
    rest = f", and what is left weighs {span(left)}" if left else ""
    line = cleared_at(case.trace, gone)
    how = "" if line else " (not by zero_grad(), so the line named is the backward before)"
    return Finding(
        "zero-every-micro-batch",
        f"{len(gone)} of {several(ran, 'micro-batch')} were cleared before the step that should have used them: in "
        f"update {first.index + 1}, {lost} of {first.accumulated} weigh 0{rest}{how}. In {named(_indices(cleared))}",
        line or gone[0].location,
        "clear the gradients once a window: `optimizer.zero_grad()` right after the step, or before the first backward "
        "of the window",
        "gradient",
        _indices(cleared),
    )


def stale_gradients(case: Case) -> Finding | None:
    """An update still holds the gradient of an earlier one."""
    # what the first update found was there before the watch: perhaps half a window, which is no fault
    wrong = [u for u in case.trace.updates[1:] if isnan(u.carried) or (u.carried > LEFT_OVER and not u.skipped)]
    if case.boundary.kind == "every micro-batch":  # too many steps; cleared once a window all the same?
        if not any(case.boundary.begins_window(u) for u in wrong if u.micro_batches):
            return None
    if not wrong:
        return None
    worst = worst_of(wrong, lambda u: 0.0 if isnan(u.carried) else u.carried)
    times = "not finite" if isnan(worst.carried) else f"{number(worst.carried)} times as long as the whole gradient"
    cleared = "" if case.trace.count_of("zero_grad") else "; zero_grad() was never called"
    return Finding(
        "stale-gradients",
        f"{named(_indices(wrong))} still {'holds' if len(wrong) == 1 else 'hold'} the gradient of earlier updates: "
        f"what was left over is {times} in update {worst.index + 1}, and should be 0{cleared}",
        wrong[0].location,
        "clear the gradients once a window: `optimizer.zero_grad()` right after `optimizer.step()`",
        "gradient",
        _indices(wrong),
    )


def tail_leaked(case: Case) -> Finding | None:
    """What a pass left over is still in .grad when the next pass begins."""
    wrong = leaking(case)
    if not wrong:
        return None
    boundary = case.boundary
    first = wrong[0]
    strays = [m for m in first.micro_batches if m.fate == "leaked"]
    weights = [m.weight for m in strays if m.weight is not None]
    weigh = f", where each of their examples weighs {span(weights)}" if weights else ""
    end = sum(len(p.left_over) for p in boundary.passes[-1:])
    lost = ""
    if end and case.trace.lost:
        lost = f"; {several(end, 'micro-batch')} at the end of the run made no update at all"
    missed = [m for m in boundary.missed if m.last]
    if missed:
        lost += f". The step was due after {where_missed(missed, len(boundary.passes))}, which had no backward"
    step = next((u.location for u in boundary.windows if u.index not in _indices(wrong)), first.location)
    return Finding(
        "tail-leaked",
        f"{several(len(strays), 'micro-batch')} at the end of a pass had no step there and went into the next pass: "
        f"update {first.index + 1} adds up {first.accumulated} micro-batches instead of {case.steps}{weigh}. "
        f"In {named(_indices(wrong))}{lost}",
        step,
        f"{TOGETHER if missed else AT_THE_END}; where it is to be left out, clear its gradients before the next pass "
        f"and {DECLARED}",
        "gradient",
        _indices(wrong),
    )


def leaking(case: Case) -> list[Update]:
    """Return the updates that a leaked tail spoils; a window across passes that has its N micro-batches is none."""
    boundary = case.boundary
    if boundary.kind == "straddling" or (boundary.kind == "wrong count" and not _has_tail(case)):
        return []
    leaked = [u for u in boundary.windows if any(m.fate == "leaked" for m in u.micro_batches)]
    return [u for u in leaked if u.accumulated > case.steps or boundary.kind in ("declared", "wrong count")]


def _has_tail(case: Case) -> bool:
    return any(p.ran % case.steps for p in case.boundary.passes)


def tail_dropped(case: Case) -> Finding | None:
    """Micro-batches at the end of a pass that no step ever used."""
    gone = [m for group in dropped(case) for m in group]
    unrun = [] if leaking(case) or gone or passed_over_at_the_end(case) else never_ran(case)
    if not gone and not unrun:
        return None
    updates, passes = case.boundary.windows, case.boundary.passes
    by_pass = Counter(m.epoch for m in gone) if gone else dict(unrun)
    own = [p for p in passes if p.epoch in by_pass]
    skipped, fetched = sum(p.untrained for p in own), sum(p.fetched for p in own)
    total = sum(by_pass.values())
    which = "the pass" if len(by_pass) == 1 else f"{len(by_pass)} passes"
    last = f"the last {span(by_pass.values())} micro-batches" if max(by_pass.values()) > 1 else "the last micro-batch"
    if gone:
        had = " that had a backward" if skipped else ""
        seen = f"{last} of {which}{had} made no update: {several(sum(m.examples for m in gone), 'example')} weigh 0"
        seen += f"; {skipped} of {several(fetched, 'batch')} fetched had no backward" if skipped else ""
    else:
        given = all(p.after_step >= left for p, (_, left) in zip(own, unrun, strict=True))
        given = "were fetched and " * given if total > len(by_pass) else "was fetched and " * given
        seen = f"{last} of {which} {given}never had a backward, so {several(total, 'micro-batch')} made no update"
    missed = [m for m in case.boundary.missed if m.last and m.epoch in by_pass]
    if missed:
        among = "" if skipped == len(missed) else "among them "
        seen += f", {among}{'the one' if len(missed) == 1 else 'those'} after which the step was due"
    change = TOGETHER if missed else GIVEN if not gone and given else AT_THE_END
    never = "" if updates else "; there was no update at all"
    never += f", for a pass has fewer than {case.steps}" if never and all(p.size < case.steps for p in passes) else ""
    return Finding(
        "tail-dropped",
        seen + never,
        # the line of the step that comes too rarely, not of a zero_grad that only clears what it left
        updates[-1].location if updates else gone[-1].location if gone else None,
        f"{change}; where it is left out on purpose, {DECLARED}",
        "update",
    )


def dropped(case: Case) -> list[list[MicroBatch]]:
    """Return the stretches of micro-batches that were lost without being meant to, a pass at a time."""
    boundary = case.boundary
    if not case.trace.lost or leaking(case) or (boundary.kind == "wrong count" and not _has_tail(case)):
        return []
    at_the_end = all(m.epoch == boundary.passes[-1].epoch for m in case.trace.lost)
    if boundary.kind == "straddling" or (boundary.kind == "unclear" and (boundary.crosses or at_the_end)):
        return []  # windows go on into the next pass; the run's last one did not get there
    by_epoch: dict[int, list[MicroBatch]] = {}
    for m in case.trace.lost:
        by_epoch.setdefault(m.epoch, []).append(m)
    groups = list(by_epoch.values())
    if case.trace.tail == "drop":
        groups = [group for group in groups if len(group) >= case.steps]
    if cut_short(case) and groups and groups[-1][-1].epoch == boundary.passes[-1].epoch:
        groups.pop()
    if not boundary.windows and any(p.size >= case.steps for p in boundary.passes):
        return []  # no step in a run that had data for full windows: not a matter of the tail
    return groups


def _sizes(sizes: list[int]) -> str:
    shown = [str(size) for size in sizes[:8]]
    return listed(shown) if len(sizes) <= 8 else ", ".join(shown) + ", ..."


def _indices(updates) -> tuple[int, ...]:
    return tuple(update.index for update in updates)
