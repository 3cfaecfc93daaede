"""Pictures of mixed precision in words: their captions and alternative texts."""

from __future__ import annotations

from accumkit.figures.numbers import listed, number
from accumkit.studies.precision import Order, Passed, Sums
from accumkit.studies.precision.problem import times

NEAR = 1e-3  # relative


def describe_order(order: Order) -> str:
    """Say what clipping saw and what became of the updates, or where torch refused.

    Parameters
    ----------
    order : Order

    Returns
    -------
    str

    Examples
    --------
    >>> from accumkit.figures.precision_words import describe_order
    >>> from accumkit.studies import precision
    >>> describe_order(precision.run_order(["unscale", "clip", "step", "update"], windows=1))
    'Window 1: clipping saw a length of 0.718, which is the true one; the update has the right length.'
    """
    parts = []
    for number_, window in enumerate(order.windows, 1):
        parts.append(f"Window {number_}: {_clip(order, window)}{_update(window)}.")
    if order.refused_at is not None:
        window, call = order.refused_at
        parts.append(f"Torch refuses {call} in window {window + 1}: {order.refused.split('. ')[0].rstrip('.')}.")
    return " ".join(parts)


def _clip(order: Order, window: Passed) -> str:
    if window.seen_norm is None:
        return ""
    if "clip" in order.calls and order.calls.index("clip") > order.calls.index("step"):
        return "the clip comes after the step, which it cannot change; "
    seen = number(window.seen_norm)
    if window.seen_norm != window.seen_norm or abs(window.seen_norm / window.true_norm - 1) <= NEAR:
        return (
            f"clipping saw a length of {seen}, which is the true one; "
            if seen != "not finite"
            else ("clipping saw a length that is not finite; ")
        )
    return f"clipping saw a length of {seen}, where the true one is {number(window.true_norm)}; "


def _update(window: Passed) -> str:
    if window.skipped:
        return "the step was skipped, as a gradient was not finite"
    ratio = times(window.ratio)
    return "the update has the right length" if ratio == "1" else f"the update has {ratio} times the right length"


def describe_sums(sums: Sums, chosen: int) -> str:
    """Say how far a sum of ``chosen`` gradients is off in low precision and in float32, and how that grows.

    Parameters
    ----------
    sums : Sums
    chosen : int

    Returns
    -------
    str

    Examples
    --------
    >>> from accumkit.figures.precision_words import describe_sums
    >>> from accumkit.studies.precision import Sum, Sums
    >>> rows = (Sum(2, 0.002, 0, 0.002, 0, 0), Sum(64, 0.01, 1e-8, 0.002, 0, 0))
    >>> describe_sums(Sums("bfloat16", rows), 64)
    'After 64 micro-batches the sum in bfloat16 is off by 0.01 of its length, 5 times what rounding it once would \
cost; in float32 by less than 1e-6. Over N = 2 and 64 its error is 0.002 and 0.01.'
    """
    row = sums.at(chosen)
    once = row.one_rounding
    beside = f", {number(row.in_grad / once, 2)} times what rounding it once would cost" if once else ""
    wide = "less than 1e-6" if row.in_float32 < 1e-6 else number(row.in_float32, 2)
    errors = listed([number(r.in_grad, 1) for r in sums.rows], most=12)
    return (
        f"After {chosen} micro-batch{'' if chosen == 1 else 'es'} the sum in {sums.dtype} is off by "
        f"{number(row.in_grad, 1)} of its length{beside}; in float32 by {wide}. "
        f"Over N = {listed([r.micro_batches for r in sums.rows], most=12)} its error is {errors}."
    )
