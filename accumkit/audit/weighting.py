"""Rules about weighting: examples of one window that weigh unequally, or a divisor that counts something else."""

from __future__ import annotations

from math import inf, isfinite

from accumkit.audit.findings import Finding, number, span, worst_of
from accumkit.audit.reading import LEFT_OUT, Case, Window, near
from accumkit.audit.wording import COUNTED, ONE, SUMMED, backward, indices, where

MEANS = ("mean/k", "mean/N", "mean", "mean/N/N", "mean/k/N", "mean/k/k")  # each micro-batch the same, whatever it holds
WEIGHTING = {"tokens": "token-weighting", "class weights": "class-weighting"}  # by unit; all others: mean-of-means


def mean_of_means(case: Case) -> Finding | None:
    """Micro-batches of unequal size weigh the same, so their examples do not."""
    return None if case.trace.unit in WEIGHTING else _unequal(case, "mean-of-means")


def token_weighting(case: Case) -> Finding | None:
    """The same for tokens; also a divisor that counts other tokens than those with a target."""
    return _unequal(case, "token-weighting") or _other_divisor(case, "token-weighting")


def class_weighting(case: Case) -> Finding | None:
    """The same for class weights; also a divisor that counts examples."""
    return _unequal(case, "class-weighting") or _other_divisor(case, "class-weighting")


def _unequal(case: Case, slug: str) -> Finding | None:
    if WEIGHTING.get(case.trace.unit, "mean-of-means") != slug:
        return None
    ways = MEANS if slug == "mean-of-means" else (*MEANS, "examples")
    found = case.following(*ways, LEFT_OUT)
    wrong = [w for w in found if not w.even or not (w.equal or w.fair or len(w.left) == len(w.members))]
    if not wrong:
        return None
    worst = worst_of(wrong, lambda w: max(w.weights) / min(w.weights) if min(w.weights) else inf)
    counts = [m.count for m in worst.members if m.count]
    low, high = (f"{number(f(counts))}" for f in (min, max))
    unit = ONE.get(case.trace.unit, "example")
    alike = "by its examples" if case.following("examples") else "alike"
    others = f". {where(case, wrong)}" if len(wrong) > 1 else ""
    return Finding(
        slug,
        f"each micro-batch's mean counts {alike}, though micro-batches hold {low} to {high} {case.trace.unit}: one "
        f"{unit} weighs {span(worst.weights)} in update {worst.update.index + 1}{others}",
        backward(wrong),
        COUNTED if slug != "class-weighting" else f"{SUMMED} and divide by the window's sum of class weights",
        "gradient",
        indices(wrong),
    )


def _other_divisor(case: Case, slug: str) -> Finding | None:
    """Even windows whose factor changes with the window: the divisor counts something else."""
    if WEIGHTING.get(case.trace.unit) != slug:
        return None
    units = case.trace.unit
    wrong = [w for w in case.windows if w.even and not w.fair and case.ways[w.update.index] in (None, "sum/examples")]
    wrong = [w for w in wrong if w.left and all(w.shares)]  # one that weighs nothing was divided by no number
    padded = [w for w in case.windows if not w.even and case.ways[w.update.index] is None and _padded(w)]
    if case.constant and not (slug == "token-weighting" and all(_positions(w) for w in wrong)):
        wrong = []
    if padded and slug == "token-weighting":
        wrong = sorted(wrong + padded, key=lambda w: w.update.index)
    if not wrong:
        return None
    w = wrong[0]
    if w in padded:
        said = (
            f"micro-batch {w.members[0].index + 1} is divided by {number(_padded(w)[0])} tokens, of which "
            f"{number(w.members[0].count)} have a target"
        )
    else:
        said = f"update {w.update.index + 1} is divided by {number(1 / w.coefficients[0])} where its window has "
        said += f"{number(w.count)} {units}" + (" with a target" if units == "tokens" else "")
    if slug == "token-weighting":
        change = f"{SUMMED} and divide by the tokens that have a target, `(labels != ignore_index).sum()` of the window"
    else:
        change = f"{SUMMED} and divide by the sum of the class weights over the whole window, not by its examples"
    weights = [weight for w in wrong for weight in w.weights]
    return Finding(
        slug,
        f"{said}: one {ONE[units]} weighs {span(weights)} instead of 1. {where(case, wrong)}",
        backward(wrong),
        change,
        "gradient",
        indices(wrong),
    )


def _positions(w: Window) -> bool:
    """Whether an even window seems divided by all its positions, as many in each line, padding included."""
    divisor, lines = 1 / w.coefficients[0], sum(w.examples)
    if not lines:
        return False
    length = round(divisor / lines)
    return divisor >= w.count and near([divisor], [length * lines], w.tolerance)


def _padded(w: Window) -> list[float] | None:
    """Return the tokens that each micro-batch's loss was divided by, if that is a whole number of positions a line."""
    members = [m for m in w.members if m.count]
    if w.size > len(w.members) or not all(m.share and isfinite(m.share) and m.examples for m in members):
        return None
    for size in (w.size, w.steps):
        divisors = [m.count / (size * m.share) for m in members]
        whole = [round(d / m.examples) * m.examples for d, m in zip(divisors, members, strict=True)]
        if all(d >= m.count for d, m in zip(whole, members, strict=True)) and near(divisors, whole, w.tolerance):
            return divisors
    return None
