"""Gradients added up outside ``.grad``: taken out after each backward, and put back for the step."""

from __future__ import annotations

from math import isfinite, prod

import torch
from torch import Tensor

from accumkit.trace.gradients import Gradients
from accumkit.trace.pending import Held, Open
from accumkit.trace.shares import factor_of

LEFT = {torch.float64: 1e-6, torch.float32: 1e-3}  # of the gradient at the step, unexplained by what backward gave
LOW = 2e-2  # the same for parameters in bfloat16 and float16
ASIDE = (
    "gradients were taken out after each backward and others put in for the step: if those were the sums, nothing is "
    "lost; with an objective that is measured"
)


def put_back(window: Open, at_step: Tensor | None, gradients: Gradients) -> bool:
    """Say whether a window's gradients were kept aside and put back at its step; if so, give them their factors.

    A loop that adds up in float32 for a model in bfloat16 takes each gradient out of ``.grad``. What it then puts
    there is a sum of those it took, each times one factor; a gradient that was cleared and lost is in no such sum.

    Parameters
    ----------
    window : Open
        Its held micro-batches' factors, and what it accumulated, are set if the answer is yes.
    at_step : Tensor of shape (columns,)
        ``.grad`` as the optimizer is about to use it; None where values are not looked at.
    gradients : Gradients
        The model's.
    """
    held = window.held
    gone = [h for h in held if h.factor == 0.0] if window.multiplied else []
    if not gone:
        return False
    if at_step is None:  # other tensors are in .grad since the last backward; what is in them is not looked at
        return gradients.replaced() and _kept(gone)
    if any(h.increment is None for h in held) or 3 * len(held) > at_step.numel():
        return False
    target = at_step.double()
    if not target.any() or not torch.isfinite(target).all():
        return False
    rows = torch.stack([h.increment for h in held]).double()
    left = LOW if gradients.low else LEFT[at_step.dtype]
    if len(gone) < len(held) and window.accumulated is not None:
        if factor_of(window.accumulated.double(), target)[1] <= left:
            return False  # it is what stayed in .grad, so the rest is gone
    factors = torch.linalg.lstsq(rows.T, target[:, None]).solution[:, 0]
    rest = (target - factors @ rows).norm() / target.norm()
    if rest > left or not all(factors[held.index(h)] > left * factors.abs().max() for h in gone):
        return False
    after = prod(window.unscaled) * prod(window.clipped)  # done to the sum once it was back
    for h, factor in zip(held, (factors / after).tolist(), strict=True):
        h.factor = factor
    window.accumulated = (target / after).to(at_step.dtype)
    return True


def _kept(gone: list[Held]) -> bool:
    for held in gone:
        held.factor = 1.0
    return True


def rounding(window: Open, gradients: Gradients) -> tuple[float | None, float | None]:
    """Return how far a sum held in low precision is from the exact one, and how far rounding that once would be.

    Both are relative to the exact sum of what backward gave, in higher precision; None where parameters are in no
    low precision, or something else was done to the sum.
    """
    held = window.held
    if not gradients.low or window.carried is not None or len(held) < 2 or any(h.factor != 1.0 for h in held):
        return None, None
    exact = sum(h.increment.double() for h in held)
    length = exact.norm().item()
    if not length or not isfinite(length):
        return None, None
    once = gradients.rounded(exact)
    return (window.accumulated.double() - exact).norm().item() / length, (once - exact).norm().item() / length
