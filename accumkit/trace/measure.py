"""A window measured at its step: what each micro-batch had in it, and how it compares with its reference."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import hypot, isfinite, prod
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from accumkit.trace.columns import lowest
from accumkit.trace.coupled import Gauge, are_coupled, coupled_without_dropout, in_float64
from accumkit.trace.covered import why_not_covered
from accumkit.trace.noise import filled, of_a_sum
from accumkit.trace.pending import Held, Open
from accumkit.trace.piece import Piece, as_marked
from accumkit.trace.record import Update
from accumkit.trace.shares import (
    SAME,
    by_fit,
    by_projection,
    compare,
    right_clip,
    seen_before,
    settle,
)

REPLAYED = 1e-3  # of the increments, left unexplained by the replay; more, and it is no replay of what the loop did


@dataclass(slots=True)
class Measured:
    """An update's numbers; ``shares`` has an entry for each held micro-batch."""

    shares: list[float | None]
    count: float | None
    why: str | None = None
    gradient_ratio: float | None = None
    cosine: float | None = None
    relative_error: float | None = None
    unexplained: float | None = None
    auxiliary: float | None = None
    grad_norm: float | None = None
    clip_factor: float | None = None
    expected_clip_factor: float | None = None
    by_hand: float | None = None
    floor: float | None = None
    rounding: float | None = None
    coupled: bool = False  # joined and separate gradients differ: examples act on each other

    def numbers(self) -> dict[str, Any]:
        """Return what stands in an Update under the same name, and is known."""
        return {name: value for name, value in zip(SHARED, SHARED_OF(self), strict=True) if value is not None}


SHARED = tuple(f.name for f in fields(Measured) if f.name in Update._fields)
SHARED_OF = attrgetter(*SHARED)


def unmeasured(window: Open, count: float | None, why: str | None) -> Measured:
    """Return a window's numbers where its shares cannot be had, with the reason."""
    clip = prod(window.clipped) if window.clipped else None
    return Measured([None] * len(window.held), count, why=why, clip_factor=clip)


def why_not(window: Open, versions: list[int]) -> str | None:
    """Return why a window cannot be replayed, or None."""
    if not window.held:
        return (
            "a step without a backward seen since the one before; what autograd.grad gives, or a hook of the optimizer "
            "inside backward, passes unseen"
        )
    if any(not held.pieces for held in window.held):
        return (
            "a backward call came without a forward call of the watched model before it; watch the module that the "
            "loop calls, and call it, not its forward or its parts"
        )
    if window.versions != versions:
        return "the parameters changed inside the window, so its micro-batches had different models"
    if not all(isfinite(held.count) for held in window.held):
        return "the objective's count is not a finite number"
    if any(held.count < 0 for held in window.held):
        return "the objective's count is negative"
    if not all(as_marked(piece.marks, piece.tensors) for held in window.held for piece in held.pieces):
        return (
            "the memory of a micro-batch's inputs was written again before the step (a loader that reuses one "
            "buffer, or preprocessing in place); later windows are watched on copies"
        )
    # one sum tells, unless it overflows: only then every entry is asked
    if not isfinite(window.accumulated.sum().item()) and not torch.isfinite(window.accumulated).all():
        return "the gradient is not finite"
    return None


def measure(window: Open, at_step: Tensor, whole: list[tuple[int, float]] | None, gauge: Gauge) -> Measured:
    """Measure a window at its step.

    Parameters
    ----------
    at_step : Tensor of shape (columns,)
        ``.grad`` as the optimizer is about to use it, a scaler's scale taken out.
    whole : list of (int, float), optional
        Where the columns are a sample: of each parameter its columns, and the norm of the whole of its ``.grad``.
    """
    own = [held for held in window.held if not held.leaked]
    pieces = [piece for held in own for piece in held.pieces]
    count = sum(held.count for held in own)
    if not count:
        return unmeasured(window, count, "the window has no valid unit")
    if why := why_not_covered(gauge.columns, window.held, gauge.twin, gauge.kept):
        return unmeasured(window, count, why)
    gauge.twin.follow()
    found = Measured([], count)
    coefficients, reference = _coefficients(window, own, pieces, count, gauge, found)

    raw = [c * held.factor for c, held in zip(coefficients, window.held, strict=True)]
    clip = prod(window.clipped) if window.clipped else None
    unscaled = prod(window.unscaled)
    weights = torch.tensor([r * unscaled * count for r, h in zip(raw, window.held, strict=True) if r and h.count])
    as_left = at_step is window.accumulated
    at_step = gauge.rows(at_step)
    if window.before_clip is None:
        accumulated = at_step if as_left else gauge.rows(window.accumulated)
        settled = settle(accumulated, at_step, unscaled, clip, weights, window.by_value)
    else:
        later = prod(window.unscaled[window.unscaled_before :])
        settled = seen_before(gauge.rows(window.accumulated), gauge.rows(window.before_clip), at_step, later)
    found.shares = [r * settled.factor * held.count for r, held in zip(raw, window.held, strict=True)]
    found.unexplained = max(found.unexplained, settled.strange)
    found.gradient_ratio, found.cosine, found.relative_error = compare(settled.made, reference)
    if found.relative_error > SAME:
        lengths = [abs(held.factor * settled.factor) * gauge.rows(held.increment).norm().item() for held in window.held]
        found.rounding = of_a_sum(lengths, reference.norm().item(), torch.finfo(lowest(gauge.columns.parameters)).eps)
    if found.auxiliary is not None:
        found.auxiliary *= settled.factor
    found.clip_factor, found.by_hand = settled.clip_factor, settled.by_hand
    found.grad_norm = settled.made.norm().item()
    if whole is not None:
        length = hypot(*(norm for _, norm in whole))
        if window.by_value:  # entry by entry: what it did to the sample stands for all
            found.grad_norm *= length / (at_step.norm().item() or 1.0)
        else:
            found.grad_norm = _whole_norm(settled.made, at_step, whole)
            if settled.clip_factor not in (None, clip) and found.grad_norm:
                found.clip_factor = length / found.grad_norm
    if window.max_norm is not None:
        found.expected_clip_factor = right_clip(settled.made, found.grad_norm, window.max_norm, window.by_value)
    if gauge.sample:
        first = next(held.pieces for held in own if held.count)
        exact = in_float64(lambda: gauge.wide().gradients(first, gauge.columns))
        if exact is not None:
            floor = compare(gauge.rows(gauge.twin.gradients(first, gauge.columns)), gauge.rows(exact))[2]
            found.floor = floor if isfinite(floor) else None  # a gradient of zero has none
    return found


def _whole_norm(made: Tensor, at_step: Tensor, whole: list[tuple[int, float]]) -> float:
    """Return the norm of a gradient from a sample of it, parameter by parameter: clipping may have told them apart."""
    sizes = [size for size, _ in whole]
    norms = []
    for part, left, (_, norm) in zip(made.split(sizes), at_step.split(sizes), whole, strict=True):
        length, of_left = part.norm().item(), left.norm().item()
        norms.append(length * norm / of_left if of_left else length)
    return hypot(*norms)


def _coefficients(
    window: Open, own: list[Held], pieces: list[Piece], count: float, gauge: Gauge, found: Measured
) -> tuple[list[float], Tensor]:
    """Return each held micro-batch's coefficient and the window's reference, shape (kept columns,)."""
    twin, columns, rows = gauge.twin, gauge.columns, gauge.rows
    extra = rows(twin.per_update(columns)) if twin.objective.per_update else None
    whole = None if any(piece.drew for piece in pieces) else twin.joined(pieces, columns)
    increments = [held.increment for held in window.held]
    increments = together = rows(torch.stack(increments if whole is None else [*increments, whole]))
    reference = None
    if whole is not None:
        increments, reference = together[:-1], together[-1] / count
    separable = not gauge.coupled and extra is None and len(own) == len(window.held)
    if reference is not None and separable and len(own) * 10 <= reference.numel():
        fit = by_fit(together, columns.dtype)
        if fit is not None:
            found.unexplained = fit[1]
            return (1 / fit[0]).tolist(), reference

    gradients = [rows(twin.gradients(held.pieces, columns)) for held in window.held]
    lengths = [m.norm().item() for m in gradients]
    parted = [length / count for length, held in zip(lengths, window.held, strict=True) if not held.leaked]
    parts = [by_projection(g, m, extra) for g, m in zip(increments, gradients, strict=True)]
    largest = increments.norm(dim=1).max().item()
    found.unexplained = max(rest for _, _, rest in parts) / largest if largest else 0.0
    if extra is not None:
        found.auxiliary = sum(d * held.factor for (_, d, _), held in zip(parts, window.held, strict=True))
    separate = sum(m for m, held in zip(gradients, window.held, strict=True) if not held.leaked) / count
    if reference is None:
        reference = separate
        elsewhere = any(piece.others is not None for piece in pieces)  # it draws on generators that joining cannot set
        if gauge.first and not gauge.coupled and not elsewhere and found.unexplained <= REPLAYED:
            found.coupled = coupled_without_dropout(pieces, gauge, parted)
    elif not gauge.coupled:
        moving = any(not torch.equal(a, b) for a, b in zip(pieces[0].buffers, pieces[-1].buffers, strict=True))
        if not moving and found.unexplained <= REPLAYED:
            found.coupled = are_coupled(reference, separate, pieces, gauge, parted)
        reference = reference if found.coupled else separate  # joined rows round otherwise than the loop's own
    if extra is not None:
        reference = reference + extra
    return filled([c for c, _, _ in parts], lengths, window.held, window.accumulated), reference
