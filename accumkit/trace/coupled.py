"""Whether the examples of a micro-batch act on each other: found by running them joined and apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from accumkit.trace.columns import Columns
from accumkit.trace.noise import of_a_sum
from accumkit.trace.piece import Piece
from accumkit.trace.replay import Twin
from accumkit.trace.shares import compare

LARGE = 1e-2  # a difference of gradients that no rounding makes
COUPLED = {torch.float64: 1e-6, torch.float32: 1e-4}  # joined against separate gradients; below, it is rounding


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


def are_coupled(joined: Tensor, separate: Tensor, pieces: list[Piece], gauge: Gauge, lengths: list[float]) -> bool:
    """Say whether examples act on each other: the joined gradient is not the sum of the separate ones.

    ``lengths``: the norms of those, which may all but cancel, so that rounding is much of what is left.
    """
    apart, dtype = compare(separate, joined)[2], gauge.columns.dtype
    if apart <= COUPLED[dtype] or dtype == torch.float64:
        return apart > max(COUPLED[dtype], of_a_sum(lengths, joined.norm().item(), torch.finfo(dtype).eps))
    exact = in_float64(lambda: gauge.wide().joined(pieces, gauge.columns))  # rounding may do it, late in training
    if exact is None:
        return apart > LARGE
    return compare(gauge.wide().gradients(pieces, gauge.columns), exact)[2] > COUPLED[torch.float32]


def coupled_without_dropout(pieces: list[Piece], gauge: Gauge, lengths: list[float]) -> bool:
    """Say whether examples act on each other in a model whose random masks forbid joining, by leaving the masks out."""
    twin = gauge.twin
    twin.leave_out_masks()
    before = torch.get_rng_state()
    joined = twin.joined(pieces, gauge.columns)
    if joined is None or not torch.equal(before, torch.get_rng_state()):
        return False  # it cannot be joined, or draws in other ways too
    return are_coupled(joined, twin.gradients(pieces, gauge.columns), pieces, gauge, lengths)


def in_float64(run: Callable[[], Tensor | None]) -> Tensor | None:
    """Return what a run of the float64 copy gives; None where the model or objective insists on its own precision."""
    try:
        return run()
    except Exception:  # the reader's code; the loop's own precision is measured all the same
        return None
