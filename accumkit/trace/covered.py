"""Whether the rows of numbers that are kept of a window's gradients hold what its step uses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from accumkit.trace.columns import Columns
from accumkit.trace.gradients import length
from accumkit.trace.pending import Held
from accumkit.trace.replay import Twin

OTHERS = (
    "the parameters that require a gradient are others than when the watch began: freeze or unfreeze layers before "
    "ak.watch"
)
JOINED = (
    "parameters joined inside the window (unfrozen, or new to the optimizer), so what their gradients held before it "
    "is not known: unfreeze layers and give parameters to an optimizer between two windows"
)
MISSED = (
    "of a model this large a sample of each gradient is kept, and it misses all that a micro-batch changes (a few rows "
    "of a large embedding, say): watch the same loop with larger micro-batches or smaller tables"
)


def why_not_covered(columns: Columns, held: Sequence[Held], twin: Twin, kept: Tensor | None) -> str | None:
    """Return why rows of numbers do not tell a window's shares, or None.

    Parameters
    ----------
    columns : Columns
        What the rows are made of.
    held : sequence of Held
        The window's micro-batches.
    twin : Twin
        The copy that they are to be run again on.
    kept : Tensor, optional
        Columns of the parameters that the optimizer holds; None for all.
    """
    if columns.joined:
        return JOINED
    given = {id(p) for p in twin.parameters}
    copied = [id(theirs) for own, theirs in zip(twin.own, twin.theirs, strict=True) if id(own) in given]
    if copied != [id(p) for p in columns.parameters]:
        return OTHERS
    return MISSED if not columns.complete and _misses(columns, held, twin, kept) else None


def _misses(columns: Columns, held: Sequence[Held], twin: Twin, kept: Tensor | None) -> bool:
    """Say whether the sample has nothing of a micro-batch's gradient, which is not zero as a whole."""
    blank = [h for h in held if h.factor and h.count and _blank(h.increment, kept)]
    if not blank:
        return False
    twin.follow()
    both = _Beside(columns)
    inside = torch.ones(sum(columns.sizes), dtype=torch.bool, device=columns.device)
    if kept is not None:
        inside = torch.zeros_like(inside).index_fill(0, kept, True)
    held_by = torch.stack([part.any() for part in inside.split(columns.sizes)])
    for h in blank:
        sample, norms = twin.gradients(h.pieces, both).split([sum(columns.sizes), len(columns.sizes)])
        if norms[held_by].any() and not (sample if kept is None else sample[kept]).any():
            return True
    return False


class _Beside:
    """Stands for columns where the norm of each whole gradient is wanted too, behind the row."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    def row(self, grads: Sequence[Tensor | None]) -> Tensor:
        row = self.columns.row(grads)
        return torch.cat([row, row.new_tensor([0.0 if g is None else length(g) for g in grads])])


def _blank(row: Tensor, kept: Tensor | None) -> bool:
    row = row if kept is None else row[kept]
    return not row[::64].any() and not row.any()  # nearly always the first few tell
