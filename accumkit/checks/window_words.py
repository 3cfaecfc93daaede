"""What exercise 01a says of a wrong answer: the audit's findings in the exercise's own words."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from types import CodeType
from typing import Any

from accumkit.audit import Finding, Verdict
from accumkit.audit.findings import listed, number, span
from accumkit.audit.reading import tolerance_of
from accumkit.audit.status import SCALED
from accumkit.checks.guarded import attribute
from accumkit.trace.record import MicroBatch, Trace

DIVIDE = "divide by the count of the whole window, `(loss / count).backward()`: all the examples that the window holds"
OWN_COUNT = f"you divide each sum by its own micro-batch's count; {DIVIDE}"
MEAN = f'`F.cross_entropy` divides by the count of its own micro-batch; let it sum, `reduction="sum"`, and {DIVIDE}'
TAIL = (
    "make an update of what is left at the end of the pass too: with `enumerate(loader)`, add "
    "`or i + 1 == len(loader)` to the condition; an `islice` of an iterator gives the shorter last window by itself"
)
ADVICE = {
    "step-every-micro-batch": "step only where a window ends: after the loop over its micro-batches, or inside "
    "`if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):`, with `optimizer.zero_grad()` beside it",
    "zero-every-micro-batch": "clear the gradients once a window: `optimizer.zero_grad()` before its first backward, "
    "or right after the step",
    "stale-gradients": "clear the gradients once a window: `optimizer.zero_grad()` before its first backward, or "
    "right after the step",
    "off-by-one": "count from 1 in the condition: `(i + 1) % accumulation_steps == 0`, where i comes from "
    "`enumerate(loader)`, or `i + 1 == len(loader)` for the short last window",
    "tail-dropped": TAIL,
    "tail-leaked": TAIL,
    "data-reused": "each `islice(loader, ...)`, like each `iter(loader)`, starts the loader anew: make "
    "`micro_batches = iter(loader)` once, before the loop, and take every micro-batch from that",
}
DIVISIONS = ("missing-division", "tail-divisor", "mean-of-means")  # each mended by the one right divisor

# Where every bar in the picture is fair, and something is wrong all the same.
FAIR = {
    "step-every-micro-batch": "The picture is fair, for each micro-batch has an update to itself; it should share the "
    "update with the others of its window.",
    "tail-dropped": "The picture is fair, for it shows only what had a backward.",
    "data-reused": "The picture is fair, for each update is right by itself; but they all have the same examples.",
    "graph-kept": "The picture is fair, for it shows what examples weigh, not the memory that they need.",
}
ELSE = "The picture is fair, for each example is right in its own update; what is wrong is which ones make an update."


def advise(train: Callable) -> Callable[[Finding], str]:
    """Return what to change for each finding, in words that fit the exercise and what the learner wrote."""
    sums = "sum" in _constants(attribute(train, "__code__"))

    def said(finding: Finding) -> str:
        if finding.pitfall in DIVISIONS:
            return OWN_COUNT if sums else MEAN
        if finding.pitfall == "double-division":
            return f"once is enough: {DIVIDE if sums else MEAN}"
        return ADVICE.get(finding.pitfall) or _without_the_kit(finding.fix)

    return said


def why(verdict: Verdict) -> str | None:
    """Return in plain words why a loop without a finding is not right; None where the audit's reasons are plain."""
    if verdict.trace is None or verdict.findings:
        return None
    windows = [[m for m in update.micro_batches if m.share and m.count] for update in verdict.trace.updates]
    windows = [window for window in windows if window]
    if verdict.status == SCALED:
        return _one_factor(windows, tolerance_of(verdict.trace))
    uneven = [window for window in windows if not _even(window, tolerance_of(verdict.trace))]
    if not uneven:
        return None
    weights = [m.weight for window in uneven for m in window]
    divisor = "The divisor"
    if all(before > after for window in uneven for before, after in pairwise(_factors(window))):
        divisor = "The loop's divisor grows from micro-batch to micro-batch, as a running count does. It"
    return (
        f"one example weighs {span(weights)}, and should weigh 1. {divisor} must be the same for all micro-batches of "
        "a window, and known before its first backward; see `q.hint(1)`."
    )


def remark(trace: Trace | None) -> Callable[[Finding], str | None]:
    """Return what to say of a picture that is fair although there is a finding."""
    return lambda finding: FAIR.get(finding.pitfall, ELSE) if fair(trace) else None


def fair(trace: Trace | None) -> bool:
    """Return whether every bar in the picture of a trace is fair."""
    if trace is None or not trace.micro_batches or trace.lost:
        return False
    near = tolerance_of(trace)
    if any(update.carried > near for update in trace.updates):
        return False
    weights = [m.weight if m.fate == "kept" else None for m in trace.micro_batches]
    return all(weight is not None and abs(weight - 1) <= near for weight in weights)


def _one_factor(windows: list[list[MicroBatch]], near: float) -> str | None:
    factors = [factor for window in windows for factor in _factors(window)]
    if max(factors) - min(factors) > 2 * near * max(factors):
        return None
    pairs = {number(sum(m.count for m in window)): number(window[0].weight) for window in windows}
    said = [f"{weight} in a window of {count}" for count, weight in pairs.items()]
    how = "never divided" if abs(factors[0] - 1) <= near else f"divided by {number(1 / factors[0])}, whatever it holds"
    return (
        f"the losses of a window are summed and {how}: one example weighs {listed(said)} examples, and should weigh 1 "
        f"in each. Divide by the count of the window: `(loss / count).backward()`."
    )


def _factors(window: list[MicroBatch]) -> list[float]:
    """Return what each micro-batch's summed loss was multiplied by."""
    return [m.share / m.count for m in window]


def _even(window: list[MicroBatch], near: float) -> bool:
    factors = _factors(window)
    return max(factors) - min(factors) <= 2 * near * max(factors)


def _constants(code: CodeType | None) -> set[Any]:
    """Return the words that a function's code mentions, those of functions inside it among them."""
    if not isinstance(code, CodeType):
        return set()
    words = {constant for constant in code.co_consts if isinstance(constant, str)}
    return words.union(*(_constants(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _without_the_kit(fix: str) -> str:
    """Return advice without the parts of the kit that the exercise does without."""
    fix = fix.replace(", with ak.windows", "").replace("window.count", "count")
    return re.sub(r'[;,][^;]*`tail="drop"`[^;]*', "", fix)
