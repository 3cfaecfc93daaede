"""Rules about scale: every example of a window weighs the same, by the wrong factor."""

from __future__ import annotations

from accumkit.audit.findings import Finding, named, number, span
from accumkit.audit.nested import divided_by_both, nested
from accumkit.audit.reading import TWICE, Case, Window, near
from accumkit.audit.wording import COUNTED, backward, indices, ratio, weigh, where


def missing_division(case: Case) -> Finding | None:
    """Each micro-batch's mean counts in full: the gradient is k times too large."""
    wrong = [w for w in case.following("mean") if w.size > 1]
    if not wrong:
        return None
    sizes = span(w.size for w in wrong)
    return Finding(
        "missing-division",
        f"every micro-batch counts as a whole update, and a window has {sizes} of them: {weigh(case, wrong)}"
        f"{ratio(wrong)}. {where(case, wrong)}",
        backward(wrong),
        f"divide each loss by the number of micro-batches in its window, `(loss / {case.steps}).backward()`, by "
        f"fewer in a short last one; or, right for micro-batches of any size, {COUNTED}",
        "gradient",
        indices(wrong),
    )


def perhaps_undivided(case: Case) -> str | None:
    """Return what a reader should know of micro-batches' means that only what is done by hand at the end divides."""
    if case.trace.count_of("clip"):
        return None
    hand = [w for w in case.windows if w.fair and w.size > 1 and w.update.by_hand and w.update.clip_factor is not None]
    before = [w.update.clip_factor / w.update.by_hand for w in hand]
    if not hand or not near(before, [w.size for w in hand], case.tolerance):
        return None
    return (
        f"Without what is done to the gradients by hand before the step, every micro-batch counts as a whole update "
        f"in {named(indices(hand))}: one example weighs {span(before)}. If that is a clip and no division, the "
        "division is missing (missing-division), and clipping hides it."
    )


def double_division(case: Case) -> Finding | None:
    """The gradient is divided by the window once more than it should be."""
    wrong = [w for w in case.following(*TWICE) if not w.fair]
    if nested(case):  # two loops that each divide once are no third division
        wrong = [w for w in case.windows if divided_by_both(w, w.steps)]
    if case.boundary.kind == "wrong count" and all(w.is_tail for w in wrong):
        wrong = []  # a short rest is divided as the window that the loop took it for: the boundary's fault alone
    if wrong:
        return Finding(
            "double-division",
            f"{weigh(case, wrong)}{ratio(wrong)}: {_twice(case, wrong)}. {where(case, wrong)}",
            backward(wrong),
            "divide once, and remember that a mean is a division too: the means of equal micro-batches are divided by "
            f"their number; else {COUNTED}",
            "gradient",
            indices(wrong),
        )
    by_hand = _divided_by_hand(case)
    if not by_hand:
        return None
    factor = by_hand[0].update.clip_factor
    return Finding(
        "double-division",
        f"the gradients weigh every example right after the last backward, and are then multiplied by "
        f"{number(factor)}, which is 1/{number(1 / factor)}, before every step: divided once more. "
        f"{where(case, by_hand)}",
        by_hand[0].update.location,
        "divide once: leave out the division of the gradients before the step, or the one of the losses",
        "gradient",
        indices(by_hand),
    )


def _divided_by_hand(case: Case) -> list[Window]:
    """Return the windows whose finished gradient was multiplied by 1/N, 1/k or 1/W, and by no clip function."""
    if case.trace.count_of("clip"):
        return []
    hand = [w for w in case.windows if w.fair and w.update.clip_factor is not None and w.size > 1]
    for divisor in (lambda w: w.steps, lambda w: w.size, lambda w: w.count):
        if hand and all(near([w.update.clip_factor], [1 / divisor(w)], case.tolerance) for w in hand):
            return hand if len(hand) == sum(w.size > 1 for w in case.windows) else []
    return []


def tail_divisor(case: Case) -> Finding | None:
    """Full windows are right; the short last one is divided as though it were full."""
    wrong = [w for w in case.following("mean/N", "sum/F") if w.is_tail and w.size < case.steps]
    if not wrong or nested(case) or _divided_by_hand(case):
        return None
    if case.following("sum/F"):
        unit = case.trace.unit
        held = f"{span(w.count for w in wrong)} {unit} and {_is(wrong)} divided by the {number(wrong[0].full)}"
        held += " of a full window"
        change = f"divide by what the window really has: {COUNTED}"
    else:
        sizes = [w.size for w in wrong]
        held = f"{span(sizes)} micro-batch{'es' * (max(sizes) > 1)} and {_is(wrong)} divided by {case.steps}"
        change = (
            "divide by the number of micro-batches that the window really has, `min(N, micro-batches left)`; or, right "
            f"for micro-batches of any size, {COUNTED}"
        )
    subject = "the short last window" if len(wrong) == 1 else "the short last windows"
    return Finding(
        "tail-divisor",
        f"{subject} ({named(indices(wrong))}) {'has' if len(wrong) == 1 else 'have'} {held}: {weigh(case, wrong)} "
        "there instead of 1",
        backward(wrong),
        change,
        "gradient",
        indices(wrong),
    )


def _is(windows: list[Window]) -> str:
    return "is" if len(windows) == 1 else "are"


def _twice(case: Case, windows: list[Window]) -> str:
    ways = {case.ways[w.update.index] for w in windows}
    if ways == {"mean/W"}:
        return "a mean over each micro-batch, divided by the examples of the whole window once more"
    factors = {number(1 / weight) for w in windows for weight in w.weights}
    return f"1/{factors.pop()}, one division too many" if len(factors) == 1 else "one division too many"
