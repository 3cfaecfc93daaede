r"""What each micro-batch had in an update, from the loop's own gradients and the window's reference.

The loop's increments of ``.grad`` are :math:`g_i = c_i m_i`, with :math:`m_i` the gradient of micro-batch i's summed
loss; a right loop has :math:`c_i = 1/W`, W the window's count. What the loop does to ``.grad`` afterwards (erases,
clips or divides it) multiplies each by :math:`\gamma_i`. So micro-batch i's share is :math:`\gamma_i c_i n_i`, and its
weight :math:`\gamma_i c_i W`. Two ways to :math:`c_i`:

- one reference a window, :math:`R = \sum m_i / W = \sum \beta_i g_i`, gives every :math:`c_i = 1/(\beta_i W)`;
- where that is not trustworthy (more micro-batches than the gradients tell apart, randomness, coupled examples, a
  loss that is not the objective), each micro-batch is replayed and :math:`g_i` projected on :math:`m_i`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, nan

import torch
from torch import Tensor

FIT_RESIDUAL = {torch.float64: 1e-8, torch.float32: 1e-4}  # of the reference, left by the loop's own increments
FIT_ERROR = {torch.float64: 1e-7, torch.float32: 1e-4}  # of a beta, relative: what such a residual may do to it
CONDITION = 1e8  # of the increments' Gram matrix; beyond, they hardly differ
SAME = 1e-4  # two factors this near are one: what rounding in float32 leaves


def factor_of(before: Tensor, after: Tensor) -> tuple[float, float]:
    """Return the factor from one row to another, and the part of the second that is no multiple of the first."""
    if before is after or torch.equal(before, after):
        return 1.0, 0.0
    square = (before @ before).item()
    norm = after.norm().item()
    if square == 0.0 or norm == 0.0:
        return 0.0, 0.0 if norm == 0.0 else 1.0
    factor = (before @ after).item() / square
    return factor, (after - factor * before).norm().item() / norm


def by_fit(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, float] | None:
    """Return each increment's beta in R = sum(beta_i g_i) and the relative residual; None where that says too little.

    Parameters
    ----------
    rows : Tensor of shape (micro-batches + 1, columns), in float64
        The increments, and last the reference R; any multiple of it will do.
    dtype : torch.dtype
        What they were computed in. Of float64, every entry is looked at for the residual; products of the rows alone
        tell it to 1e-7.
    """
    products = rows @ rows.T
    size = products.diagonal().rsqrt()
    products *= size[:, None] * size  # all of length one
    products[-1, -1] = 2.0  # so that a reference that is a sum of the others leaves one, and not nothing
    factor, info = torch.linalg.cholesky_ex(products)
    *diagonal, last = factor.diagonal().tolist()
    if info.item() or not isfinite(sum(diagonal) + last) or (max(diagonal) / min(diagonal)) ** 2 > CONDITION:
        return None
    inverse = torch.linalg.inv(factor[:-1, :-1])
    beta = factor[-1, :-1] @ inverse  # of rows of length one
    if dtype == torch.float64:
        rest = (rows[-1] * size[-1] - (beta * size[:-1]) @ rows[:-1]).norm().item()
    else:
        rest = max(0.0, last**2 - 1) ** 0.5
    # the standard errors of least squares, were the residual noise in every column, and rounding the least there is
    errors = inverse.square().sum(0).sqrt() * (max(rest, torch.finfo(dtype).eps) / (rows.shape[1] - len(beta)) ** 0.5)
    if rest > FIT_RESIDUAL[dtype] or not (errors <= FIT_ERROR[dtype] * beta.abs()).all():
        return None
    return beta * (size[:-1] / size[-1]), rest


def by_projection(increment: Tensor, gradient: Tensor, extra: Tensor | None) -> tuple[float, float, float]:
    """Return c and d in g = c m + d r (r the once-an-update term's gradient) and the norm of what they leave."""
    if extra is None:
        square = (gradient @ gradient).item()
        c = (gradient @ increment).item() / square if square else 0.0
        return c, 0.0, (increment - c * gradient).norm().item()
    basis = torch.stack([gradient, extra], 1)
    c, d = (torch.linalg.pinv(basis) @ increment).tolist()
    return c, d, (increment - c * gradient - d * extra).norm().item()


@dataclass(frozen=True, slots=True)
class Settled:
    """What the loop made of its accumulated gradient between the last backward and the step."""

    made: Tensor  # the unscaled gradient before clipping, shape (columns,)
    factor: float  # from the accumulated gradient to it: unscaling and a division done by hand
    clip_factor: float | None  # None where nothing was clipped
    strange: float  # part of the change that is neither a common factor nor clipping
    by_hand: float | None = None  # the factor that is neither unscaling nor torch's clipping; None where it is 1


def settle(
    accumulated: Tensor, at_step: Tensor, unscaled: float, clipped: float | None, weights: Tensor,
    by_value: bool = False,
) -> Settled:  # fmt: skip
    """Tell dividing ``.grad`` from clipping it, after the last backward.

    Parameters
    ----------
    accumulated, at_step : Tensor of shape (columns,)
        ``.grad`` after the last backward and as the step gets it.
    unscaled : float
        What ``unscale_`` multiplied it by; 1 without a scaler.
    clipped : float, optional
        What torch's clip functions multiplied it by.
    weights : Tensor of shape (micro-batches,)
        What one example weighed before anything done by hand.
    by_value : bool
        torch's clip by value was called.
    """
    total, rest = factor_of(accumulated, at_step)
    clip = 1.0 if clipped is None else clipped
    if rest > SAME:
        # by value: entries below the limit were left alone, and tell what else was done to all
        free = (accumulated != 0) & (at_step.abs() < at_step.abs().max() * (1 - SAME))
        if free.any():
            total = (at_step[free] / accumulated[free]).median().item()
        else:
            total = unscaled * clip if by_value else (at_step / accumulated)[accumulated != 0].median().item()
        made = accumulated * (total / clip)
        if (at_step.abs() <= made.abs() * (1 + SAME)).all():
            norm = made.norm().item()
            return Settled(made, total / clip, at_step.norm().item() / norm if norm else None, 0.0)
        return Settled(at_step / clip, total / clip, clipped, rest)
    left = total / (unscaled * clip) if unscaled and clip else 1.0
    if abs(left - 1) <= SAME:
        return Settled(accumulated * unscaled, unscaled, clipped, 0.0)
    if left < 1 and weights.numel() > 0 and (weights - 1).abs().max().item() <= 1e-3:
        return Settled(accumulated * unscaled, unscaled, clip * left, 0.0, left)  # all is right without it: a clip
    return Settled(accumulated * (unscaled * left), unscaled * left, clipped, 0.0, left)


def seen_before(accumulated: Tensor, before_clip: Tensor, at_step: Tensor, unscaled: float) -> Settled:
    """Settle a gradient that was looked at before it was clipped; ``unscaled``: what unscaling did after that."""
    factor, rest = factor_of(accumulated, before_clip)
    made = before_clip * unscaled
    norm = made.norm().item()
    return Settled(
        made, factor * unscaled, at_step.norm().item() / norm if norm else None, rest if rest > SAME else 0.0
    )


def right_clip(made: Tensor, norm: float, limit: float, by_value: bool) -> float:
    """Return what clipping should make of an unscaled gradient's length; ``limit``: of its norm, or of each value."""
    if not by_value:
        return min(1.0, limit / (norm + 1e-6))
    length = made.norm().item()
    return made.clamp(-limit, limit).norm().item() / length if length else 1.0


def compare(made: Tensor, reference: Tensor) -> tuple[float, float, float]:
    """Return <G,R>/<R,R>, the cosine, and |G - R|/|R|; nan where a gradient is zero."""
    dot, square, norm = (made @ reference).item(), (reference @ reference).item(), made.norm().item()
    if not square or not norm:
        return (dot / square if square else nan), nan, (1.0 if square else nan)
    return dot / square, dot / (norm * square**0.5), (made - reference).norm().item() / square**0.5
