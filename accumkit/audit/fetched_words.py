"""What is said of batches that a loop fetched and did not train on, where no finding does."""

from __future__ import annotations

from collections.abc import Set

from accumkit.audit.findings import several, span
from accumkit.audit.passed_over import where_missed
from accumkit.audit.reading import Case
from accumkit.audit.stopped import cut_short, never_ran, passed_over_at_the_end, perhaps_cut_short

AT_THE_END = ("tail-dropped", "tail-leaked")  # findings that tell of a step missed at the end of a pass
COUNTED = ("tail-dropped", "skipped-micro-batch")  # findings that tell how many batches had no backward
CONTINUE = (
    "Let every batch reach the condition that ends a window: a `continue` before it leaves out the step together with "
    "the batch."
)
IS_THERE = (
    "Does a `continue` stand before the condition that ends a window? It leaves out the step together with the batch."
)


def step_passed_over(case: Case, named: Set[str]) -> str | None:
    """Return the sentence on steps that were left out together with a batch; ``named``: the findings' pitfalls."""
    missed = [m for m in case.boundary.missed if not (m.last and named & {*AT_THE_END})]
    if not missed:
        return None
    one = len(missed) == 1
    return (
        f"No step was made after {where_missed(missed, len(case.boundary.passes))}, where one was due: "
        f"{'that batch was' if one else 'those batches were'} fetched and had no backward. {CONTINUE}"
    )


def without_backward(case: Case, named: Set[str]) -> str | None:
    """Return the sentence on how many batches were fetched and had no backward."""
    passes = case.boundary.passes
    if named & {*COUNTED} or case.boundary.missed or perhaps_over(case):
        return None
    missing, least = [p.untrained for p in passes], ""
    if missing and cut_short(case) and not perhaps_cut_short(case):  # the rest was fetched when it was stopped
        least = "At least " * (missing[-1] > passes[-1].left_out)
        missing[-1] = min(missing[-1], passes[-1].left_out)
    if not sum(missing):
        return None
    said = f"{least}{sum(missing):,} of the {several(sum(p.fetched for p in passes), 'batch')} fetched had no backward."
    if case.boundary.kind == "unclear" or not case.boundary.windows:
        said += f" {IS_THERE}"
    return said


def perhaps_over(case: Case) -> str | None:
    """Return the sentence on a run that was stopped inside a window, or lost the window at the end of its data."""
    last = case.boundary.passes[-1] if case.boundary.passes else None
    lost = len(case.trace.lost)
    if not lost or not case.boundary.windows or not last.left_over or not perhaps_cut_short(case):
        return None
    if case.trace.tail == "drop" and len(last.left_over) < case.steps:
        return None
    fetched = several(last.fetched, "batch")
    rest = f", and {last.untrained} of the {fetched} fetched in the last pass had no backward" if last.untrained else ""
    return (
        f"{several(lost, 'micro-batch')} at the end of the run made no update{rest}. If the loop was stopped there, "
        "inside a window, that is no fault; if the data were over, the last window lost its step: let every batch "
        "reach the condition that ends a window."
    )


def perhaps_passed_over(case: Case) -> str | None:
    """Return the sentence on batches at the end of a pass that were left out, as a short last window may have been.

    A loop that leaves out batches inside windows too does so for what they hold, and needs no such sentence.
    """
    if case.boundary.left_out or not passed_over_at_the_end(case):
        return None
    unrun = [left for _, left in never_ran(case)]
    last, one = ("the last batch", True) if max(unrun) == 1 else (f"the last {span(unrun)} batches", False)
    return (
        f"No window was made of {last} of {'the pass' if len(unrun) == 1 else 'each pass'}: fetched, and without a "
        f"backward. If {'it was' if one else 'they were'} left out for what {'it holds' if one else 'they hold'} "
        "(values that are not finite, no target), the updates are right; if short last windows are never trained on, "
        "the tail is dropped (tail-dropped): give it a backward and a step, or declare it: "
        '`ak.watch(..., tail="drop")`.'
    )
