"""A window while it is accumulated, and its measurement at the step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from math import isfinite, prod
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from accumkit.trace.gradients import Columns
from accumkit.trace.record import MicroBatch, Update
from accumkit.trace.replay import Piece, Twin, mark
from accumkit.trace.shares import (
    FIT_RESIDUAL,
    SAME,
    by_fit,
    by_projection,
    compare,
    factor_of,
    right_clip,
    seen_before,
    settle,
)

REPLAYED = 1e-3  # of the increments, left unexplained by the replay; more, and it is no replay of what the loop did
LARGE = 1e-2  # a difference of gradients that no rounding makes
COUPLED = {torch.float64: 1e-6, torch.float32: 1e-4}  # joined against separate gradients; below, it is rounding


@dataclass(slots=True, eq=False)
class Held:
    """A micro-batch whose gradient waits for a step."""

    index: int
    epoch: int
    location: str | None
    pieces: list[Piece]
    increment: Tensor | None = None  # what its backward added to .grad, shape (columns,)
    factor: float = 1.0  # what has become of it since; 0 when it was cleared
    leaked: bool = False
    repeats: int | None = None  # index of an earlier micro-batch with the same inputs
    scale: float | None = None  # what a scaler multiplied its loss by
    touched: float | None = None  # what .grad was multiplied by by hand after it, before the next one's backward
    touched_norm: float | None = None

    @property
    def examples(self) -> int:
        """Examples in it."""
        pieces = self.pieces
        return pieces[0].examples if len(pieces) == 1 else sum(piece.examples for piece in pieces)

    @property
    def count(self) -> float:
        """Units in it, by the objective."""
        pieces = self.pieces
        return pieces[0].count if len(pieces) == 1 else sum(piece.count for piece in pieces)

    def record(self, share: float | None, window_count: float | None, lost: bool = False) -> MicroBatch:
        """Return the plain numbers about it."""
        gone = lost or self.factor == 0.0
        return MicroBatch(
            index=self.index,
            epoch=self.epoch,
            examples=self.examples,
            count=None if window_count is None else self.count,
            share=0.0 if gone else share,
            fair_share=self.count / window_count if window_count else None,
            fate="lost" if lost else "erased" if gone else "leaked" if self.leaked else "kept",
            location=self.location,
            repeats=self.repeats,
            scale=self.scale,
            touched=self.touched,
            touched_norm=self.touched_norm,
        )


@dataclass(slots=True)
class Open:
    """The window that is being accumulated."""

    held: list[Held] = field(default_factory=list)
    accumulated: Tensor | None = None  # .grad after the last backward, shape (columns,)
    carried: Tensor | None = None  # .grad left over from an earlier update, at the window's first backward
    left: set[int] = field(default_factory=set)  # the parameters it was left over in, where rows are not looked at
    carried_factor: float = 1.0
    unscaled: list[float] = field(default_factory=list)  # factors applied since the last backward
    clipped: list[float] = field(default_factory=list)
    before_clip: Tensor | None = None  # .grad before a clip that no one factor describes, shape (columns,)
    unscaled_before: int = 0  # how many of the unscaling factors came before that
    max_norm: float | None = None
    by_value: bool = False  # clipped entry by entry, max_norm being the limit of each
    clip_scale: float | None = None  # what the gradient was multiplied by when it was clipped
    hand: tuple[float, float] | None = None  # what was done to it by hand while scaled: a factor, and what is no factor
    versions: list[int] | None = None  # of the parameters at the first forward

    @property
    def scale(self) -> float:
        """What the gradient is multiplied by now: the last loss's scale, as far as it was not taken out."""
        scales = [held.scale for held in self.held if held.scale is not None]
        return (scales[-1] if scales else 1.0) * prod(self.unscaled)

    def find_repeats(self) -> None:
        """Note which micro-batches were fed the same inputs as an earlier one."""
        first: dict[tuple, Held] = {}
        for held in self.held:
            key = tuple(piece.marks for piece in held.pieces)
            earlier = first.setdefault(key, held) if all(key) else held
            pairs = zip(earlier.pieces, held.pieces, strict=True)
            if earlier is not held and all(same(a.tensors, b.tensors) for a, b in pairs):
                held.repeats = earlier.index

    def multiply(self, factor: float) -> None:
        """Note that ``.grad`` as a whole was multiplied; 0: it was cleared."""
        for held in self.held:
            held.factor *= factor
        self.carried_factor *= factor
        self.renew()

    def done_by_hand(self, row: Tensor) -> None:
        """Note what became of the accumulated gradient by hand, just before it is unscaled."""
        factor, rest = factor_of(self.accumulated.double(), row.double())
        factor /= prod(self.clipped)
        if not self.by_value and abs(factor - 1) > SAME:
            self.hand = factor, rest

    def renew(self) -> None:
        """Forget what was done to ``.grad``, for a backward has added to it."""
        self.unscaled.clear()
        self.clipped.clear()
        self.max_norm = self.clip_scale = self.hand = self.before_clip = None
        self.by_value = False


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
    floor: float | None = None
    coupled: bool = False  # joined and separate gradients differ: examples act on each other

    def numbers(self) -> dict[str, Any]:
        """Return what stands in an Update under the same name, and is known."""
        return {name: value for name, value in zip(SHARED, SHARED_OF(self), strict=True) if value is not None}


SHARED = tuple(f.name for f in fields(Measured) if f.name in Update._fields)
SHARED_OF = attrgetter(*SHARED)


def same(some: list[Tensor], others: list[Tensor]) -> bool:
    """Say whether two lists hold equal tensors."""
    return len(some) == len(others) and all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


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
    if any(piece.marks != mark(piece.tensors) for held in window.held for piece in held.pieces):
        return (
            "the memory of a micro-batch's inputs was written again before the step (a loader that reuses one "
            "buffer, or preprocessing in place); later windows are watched on copies"
        )
    if not torch.isfinite(window.accumulated).all():
        return "the gradient is not finite"
    return None


@dataclass(slots=True)
class Gauge:
    """What measuring needs beside the window: the copies of the model, and which numbers to look at."""

    columns: Columns
    twin: Twin  # in the loop's own precision
    wide: Callable[[], Twin]  # gives one in float64
    kept: Tensor | None = None  # columns of the parameters that the optimizer holds; None for all
    coupled: bool = False  # the model is known to mix the examples of a micro-batch (BatchNorm)
    sample: bool = False  # measure rounding, in float64, on this window
    first: bool = False  # it is the first one that is measured

    def rows(self, tensor: Tensor) -> Tensor:
        """Return a row, or rows, cut to the kept columns, in float64."""
        return (tensor if self.kept is None else tensor[..., self.kept]).double()


def measure(window: Open, at_step: Tensor, full_norm: float, gauge: Gauge) -> Measured:
    """Measure a window at its step.

    Parameters
    ----------
    at_step : Tensor of shape (columns,)
        ``.grad`` as the optimizer is about to use it, a scaler's scale taken out.
    full_norm : float
        The norm of the whole of it, also where the columns are a sample.
    """
    own = [held for held in window.held if not held.leaked]
    pieces = [piece for held in own for piece in held.pieces]
    count = sum(held.count for held in own)
    if not count:
        return unmeasured(window, count, "the window has no valid unit")
    gauge.twin.follow()
    found = Measured([], count)
    coefficients, reference = _coefficients(window, own, pieces, count, gauge, found)

    raw = [c * held.factor for c, held in zip(coefficients, window.held, strict=True)]
    clip = prod(window.clipped) if window.clipped else None
    unscaled = prod(window.unscaled)
    weights = torch.tensor([r * unscaled * count for r, h in zip(raw, window.held, strict=True) if r and h.count])
    at_step = gauge.rows(at_step)
    if window.before_clip is None:
        settled = settle(gauge.rows(window.accumulated), at_step, unscaled, clip, weights, window.by_value)
    else:
        later = prod(window.unscaled[window.unscaled_before :])
        settled = seen_before(gauge.rows(window.accumulated), gauge.rows(window.before_clip), at_step, later)
    found.shares = [r * settled.factor * held.count for r, held in zip(raw, window.held, strict=True)]
    found.unexplained = max(found.unexplained, settled.strange)
    found.gradient_ratio, found.cosine, found.relative_error = compare(settled.made, reference)
    if found.auxiliary is not None:
        found.auxiliary *= settled.factor
    found.clip_factor = settled.clip_factor
    norm = at_step.norm().item()
    found.grad_norm = settled.made.norm().item() * (full_norm / norm if norm else 1.0)
    if window.max_norm is not None:
        found.expected_clip_factor = right_clip(settled.made, found.grad_norm, window.max_norm, window.by_value)
    if gauge.sample:
        first = next(held.pieces for held in own if held.count)
        exact = _in_float64(lambda: gauge.wide().gradients(first, gauge.columns))
        if exact is not None:
            found.floor = compare(gauge.rows(gauge.twin.gradients(first, gauge.columns)), gauge.rows(exact))[2]
    return found


def _coefficients(
    window: Open, own: list[Held], pieces: list[Piece], count: float, gauge: Gauge, found: Measured
) -> tuple[list[float], Tensor]:
    """Return each held micro-batch's coefficient and the window's reference, shape (kept columns,)."""
    twin, columns, rows = gauge.twin, gauge.columns, gauge.rows
    increments = rows(torch.stack([held.increment for held in window.held]))
    extra = rows(twin.per_update(columns)) if twin.objective.per_update else None
    whole = None if any(piece.drew for piece in pieces) else twin.joined(pieces, columns)
    reference = None if whole is None else rows(whole) / count
    separable = not gauge.coupled and extra is None and len(own) == len(window.held)
    if reference is not None and separable and len(own) * 10 <= reference.numel():
        fit = by_fit(increments, reference)
        if fit is not None and fit[1] <= FIT_RESIDUAL[columns.dtype]:
            found.unexplained = fit[1]
            return (1 / (fit[0] * count)).tolist(), reference

    gradients = [rows(twin.gradients(held.pieces, columns)) for held in window.held]
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
            found.coupled = _coupled_without_dropout(pieces, gauge)
    elif not gauge.coupled:
        moving = any(not torch.equal(a, b) for a, b in zip(pieces[0].buffers, pieces[-1].buffers, strict=True))
        if not moving and found.unexplained <= REPLAYED:
            found.coupled = _are_coupled(reference, separate, pieces, gauge)
        reference = reference if found.coupled else separate  # joined rows round otherwise than the loop's own
    if extra is not None:
        reference = reference + extra
    return [c for c, _, _ in parts], reference


def _are_coupled(joined: Tensor, separate: Tensor, pieces: list[Piece], gauge: Gauge) -> bool:
    """Say whether examples act on each other: the joined gradient is not the sum of the separate ones."""
    apart = compare(separate, joined)[2]
    if apart <= COUPLED[gauge.columns.dtype] or gauge.columns.dtype == torch.float64:
        return apart > COUPLED[gauge.columns.dtype]
    exact = _in_float64(lambda: gauge.wide().joined(pieces, gauge.columns))  # rounding may do it, late in training
    if exact is None:
        return apart > LARGE
    return compare(gauge.wide().gradients(pieces, gauge.columns), exact)[2] > COUPLED[torch.float32]


def _coupled_without_dropout(pieces: list[Piece], gauge: Gauge) -> bool:
    """Say whether examples act on each other in a model whose random masks forbid joining, by leaving the masks out."""
    twin = gauge.twin
    twin.leave_out_masks()
    before = torch.get_rng_state()
    joined = twin.joined(pieces, gauge.columns)
    if joined is None or not torch.equal(before, torch.get_rng_state()):
        return False  # it cannot be joined, or draws in other ways too
    return _are_coupled(joined, twin.gradients(pieces, gauge.columns), pieces, gauge)


def _in_float64(run: Callable[[], Tensor | None]) -> Tensor | None:
    """Return what a run of the float64 copy gives; None where the model or objective insists on its own precision."""
    try:
        return run()
    except Exception:  # the reader's code; the loop's own precision is measured all the same
        return None
