"""What rounding leaves of a window's numbers, where some gradients are faint beside others or all but cancel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from accumkit.trace.pending import Held

FAINT = {torch.float64: 5e-11, torch.float32: 3e-5}  # of what .grad holds: a shorter gradient leaves no trace to weigh
ALIKE = {torch.float64: 1e-6, torch.float32: 1e-3}  # coefficients this near are one


def of_a_sum(lengths: Sequence[float], total: float, eps: float) -> float:
    """Return how far rounding may take a sum of gradients, relative to its own length; inf for a sum of 0.

    Parameters
    ----------
    lengths : sequence of float
        The norms of what is added up.
    total : float
        The norm of the sum.
    eps : float
        The precision's, as ``torch.finfo`` gives it.
    """
    return 8 * eps * len(lengths) ** 0.5 * sum(lengths) / total if total else float("inf")


def filled(coefficients: list[float], lengths: list[float], held: list[Held], accumulated: Tensor) -> list[float]:
    """Return the coefficients, those of faint gradients as the others in the window have them.

    A gradient of zero tells nothing of its coefficient, and one that is lost in the rounding of ``.grad`` nothing
    true. Where the others have one coefficient, or one share, so has it; else their mean.

    Parameters
    ----------
    coefficients : list of float
        What each held micro-batch's gradient was multiplied by, as measured.
    lengths : list of float
        The norms of the gradients of their summed losses.
    accumulated : Tensor of shape (columns,)
        What ``.grad`` came to.
    """
    made = [abs(c) * length for c, length in zip(coefficients, lengths, strict=True)]
    typical = abs(coefficients[made.index(max(made))])
    limit = FAINT[accumulated.dtype] * max(accumulated.norm().item(), *made)
    faint = [length * typical <= limit for length in lengths]
    known = [
        (c, c * h.count)
        for c, h, unseen in zip(coefficients, held, faint, strict=True)
        if not unseen and h.count and not h.leaked
    ]
    if not known or not any(faint):
        return coefficients
    units, shares = ([entry[i] for entry in known] for i in (0, 1))
    near = ALIKE[accumulated.dtype] * max(map(abs, units))
    by_share = max(units) - min(units) > near and max(shares) - min(shares) <= near * max(h.count for h in held)
    unit, share = sum(units) / len(units), sum(shares) / len(shares)
    return [
        c if not unseen or not h.count else share / h.count if by_share else unit
        for c, h, unseen in zip(coefficients, held, faint, strict=True)
    ]
