"""What earlier updates left in ``.grad``: how much of it an update has in it, and where it waits for the next."""

from __future__ import annotations

from math import prod

from torch import Tensor
from torch.optim import Optimizer

from accumkit.trace.covered import JOINED
from accumkit.trace.gradients import Gradients, given_to, length
from accumkit.trace.pending import Open
from accumkit.trace.shares import SAME, factor_of

SEVERAL = (
    "several optimizers step this model's parameters, and one of them uses gradients from before the window: it steps "
    "at other boundaries, or its gradients are never cleared"
)
CHANGED = "a second optimizer stepped with gradients that were changed after the first one's step"


def carried(window: Open, gradients: Gradients, optimizer: Optimizer) -> float:
    """Return which part of an optimizer's gradient is left over from updates before."""
    if not window.held:  # a step on what the step before it left, unless it was written there since
        return 1.0 if gradients.left() and not gradients.touched() else 0.0
    if window.carried_factor == 0.0:
        return 0.0
    if window.carried is None:
        return 1.0 if window.left and window.left & gradients.ids_of(optimizer) else 0.0
    kept = gradients.columns_of(optimizer)
    norms = [(row if kept is None else row[kept]).norm().item() for row in (window.carried, window.accumulated)]
    return abs(window.carried_factor) * norms[0] / norms[1] if norms[1] else 0.0


def note_joined(gradients: Gradients, optimizer: Optimizer) -> None:
    """Note whether an optimizer's step uses gradients that were not looked at from its window's beginning; say it."""
    others = [p for p in gradients.others if p.grad is not None]
    held = given_to(optimizer) if others else ()
    joined = any(id(p) in held and length(p.grad) != 0 for p in others)  # zeros do no harm
    joined = joined or bool(gradients.unseen & gradients.ids_of(optimizer))
    if gradients.columns is not None:
        gradients.columns.joined = joined
    elif joined:
        gradients.reasons.append(JOINED)


def waiting(window: Open, gradients: Gradients) -> set[int]:
    """Return the parameters whose gradient was already there when this window began, and stayed."""
    if window.carried is None or window.carried_factor == 0.0:
        return window.left if window.carried_factor else set()
    parts = window.carried.split(gradients.columns.sizes)
    return {id(p) for p, part in zip(gradients.parameters, parts, strict=True) if part.any()}


def why_not_second(
    before: set[int], at_step: Tensor | None, window: Open, gradients: Gradients, optimizer: Optimizer
) -> str | None:
    """Return why a second optimizer's step on a window is not the window's alone, or None.

    Parameters
    ----------
    before : set of int
        The parameters whose gradient was there when the window began.
    at_step : Tensor of shape (columns,)
        ``.grad`` at the first optimizer's step; None where values are not looked at.
    """
    if before & gradients.ids_of(optimizer):
        return SEVERAL
    if at_step is None:
        return None
    kept = gradients.columns_of(optimizer)
    first, now = (row if kept is None else row[kept] for row in (at_step, gradients.row()))
    factor, rest = factor_of(first.double(), now.double())
    changed = rest > SAME or abs(factor / prod(window.unscaled) - 1) > SAME  # it may have been unscaled by itself
    window.renew()
    return CHANGED if changed else None
