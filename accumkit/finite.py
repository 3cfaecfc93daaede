"""Gradients that can be used: finite, and with a norm that can be measured."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from accumkit.errors import AccumkitError, several


class Finite:
    """Tells whether gradients are finite, by the one call that gradient scalers make: 3 us for a small model.

    Parameters
    ----------
    parameters : list of nn.Parameter
        Whose ``.grad`` is looked at.

    Examples
    --------
    >>> import torch
    >>> p = torch.nn.Parameter(torch.zeros(1))
    >>> p.sqrt().sum().backward()
    >>> Finite([p]).found().item()
    1.0
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        by_device: dict[torch.device, list[nn.Parameter]] = {}
        for parameter in parameters:
            by_device.setdefault(parameter.device, []).append(parameter)
        # the flags stay: one that is set ends the epoch, and making them anew would cost as much as the look itself
        self._parts = [(own, torch.zeros((), device=d), torch.ones((), device=d)) for d, own in by_device.items()]

    def found(self) -> Tensor:
        """Return 1 once something was not finite, else 0; where the parameters are, so that nothing is waited for."""
        parts = [([p.grad for p in own if p.grad is not None], flag, one) for own, flag, one in self._parts]
        flags = [_look(gradients, flag, one) for gradients, flag, one in parts if gradients] or [torch.zeros(())]
        return flags[0] if len(flags) == 1 else torch.stack([flag.to(flags[0]) for flag in flags]).amax()


def _look(gradients: list[Tensor], flag: Tensor, one: Tensor) -> Tensor:
    try:
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, flag, one)  # times 1: changes nothing
    except (RuntimeError, AttributeError):  # sparse or complex ones, or a device that has no scaler
        for gradient in gradients:
            torch.maximum(flag, (~torch.isfinite(_values(gradient)).all()).to(flag), out=flag)
    return flag


def _values(gradient: Tensor) -> Tensor:
    return gradient if gradient.layout is torch.strided else gradient.coalesce().values()


def read(losses: list[Tensor], flag: Tensor | None) -> tuple[list[float], float]:
    """Return losses and a flag as numbers, in one wait for the device."""
    flag = torch.zeros_like(losses[0]) if flag is None else flag.to(losses[0])
    *losses, flagged = torch.stack([*losses, flag]).tolist()
    return losses, flagged


def gradient_not_finite(model: nn.Module, norm: float | None, where: str) -> AccumkitError:
    """Return the error for a gradient that is NaN or infinite behind a loss that is neither."""
    if norm is None:
        grads = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
        named = [name for name, grad in grads if not torch.isfinite(_values(grad)).all()]
        of = f" of {', '.join(named[:3])}{f' and {len(named) - 3} more' if len(named) > 3 else ''}" if named else ""
        seen = f"the gradient{of} is not finite although the loss is"
    else:
        seen = f"the norm of the gradient is {norm} although the loss is finite"
    return AccumkitError(
        f"{where}: {seen}; look for square roots, logarithms or divisions at 0 in the model or the loss, or for "
        "numbers too large for its precision"
    )


def clip(parameters: list[nn.Parameter], max_norm: float, where: str) -> float:
    """Clip the gradients by their norm and return it, as it was before.

    Raises
    ------
    AccumkitError
        A gradient is sparse.
    """
    try:
        return clip_grad_norm_(parameters, max_norm).item()
    except RuntimeError as error:
        sparse = sum(p.grad is not None and p.grad.layout is not torch.strided for p in parameters)
        if not sparse:
            raise
        raise AccumkitError(
            f"{where}: max_grad_norm={max_norm:g} cannot clip, since {several(sparse, 'gradient')} "
            f"{'is' if sparse == 1 else 'are'} sparse, and torch measures no norm of such; make the embedding with "
            "sparse=False, or leave max_grad_norm out"
        ) from error
