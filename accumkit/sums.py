"""Gradients added up outside ``.grad``, in a wider type than the parameters have."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_


class Sums:
    """The sums of one window: each backward's gradients are taken out of ``.grad``, and put back rounded once.

    A ``.grad`` has the type of its parameter, so in bfloat16 every addition rounds to three digits, and past 256
    equal ones nothing is added any more. Here the additions are in ``dtype``.

    Parameters
    ----------
    parameters : list of nn.Parameter
        Those that are trained.
    dtype : torch.dtype
        Of the sums, such as ``torch.float32``.

    Examples
    --------
    >>> import torch
    >>> from accumkit.sums import Sums
    >>> p = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    >>> sums = Sums([p], torch.float32)
    >>> for _ in range(300):
    ...     p.sum().backward()
    ...     sums.take()
    >>> sums.put_back()
    >>> p.grad.item()
    300.0
    """

    def __init__(self, parameters: list[nn.Parameter], dtype: torch.dtype) -> None:
        self._parameters, self._dtype = parameters, dtype
        self._sums: list[Tensor | None] = [None] * len(parameters)

    @property
    def nbytes(self) -> int:
        """Bytes that the sums hold now."""
        return sum(s.nbytes for s in self._sums if s is not None)

    def take(self) -> None:
        """Add what is in ``.grad`` to the sums, and leave nothing in it."""
        sums, given = [], []
        for i, p in enumerate(self._parameters):
            if p.grad is None:
                continue
            if self._sums[i] is None:
                # a copy, also of a gradient that has the type already: DDP may write its next one into the same memory
                self._sums[i] = p.grad.to(self._dtype, copy=True)
            else:
                sums.append(self._sums[i])
                given.append(p.grad)
            p.grad = None
        if sums:
            torch._foreach_add_(sums, given)  # one call for all, as optimizers do

    def divide(self, divisor: float) -> None:
        """Divide the sums by a number."""
        sums = [s for s in self._sums if s is not None]
        if sums and divisor != 1:
            torch._foreach_div_(sums, divisor)

    def clip(self, max_norm: float) -> Tensor:
        """Clip the sums by their norm, and return it; torch's own function, on holders that take no memory."""
        holders = []
        for s in self._sums:
            if s is not None:
                holder = torch.zeros((), dtype=s.dtype, device=s.device).expand(s.shape)
                holder.grad = s
                holders.append(holder)
        return clip_grad_norm_(holders, max_norm)

    def put_back(self) -> None:
        """Put the sums into ``.grad``, rounded to the type of each parameter, and hold none."""
        for i, p in enumerate(self._parameters):
            s, self._sums[i] = self._sums[i], None
            if s is not None:
                p.grad = s.to(p.dtype)
