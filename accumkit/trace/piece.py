"""A forward call of a micro-batch: what a trace keeps of it until the update is made."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from accumkit.objective import tensors_in


@dataclass(slots=True, eq=False)
class Call:
    """One forward call of a micro-batch: all that is kept of it where there is no objective."""

    examples: int
    training: bool
    number: int = -1  # of the pass over the data that its batch was fetched in; -1: no loader
    again: bool = False  # without a loader: its tensors had been fed before in this pass
    count: float = 0  # units in it, by the objective
    tag: weakref.ref | None = None  # lives as long as its graph


@dataclass(slots=True, eq=False, kw_only=True)
class Piece(Call):
    """One forward call of a micro-batch, and what is needed to run it again."""

    batch: Any
    args: tuple
    kwargs: dict
    autocast: dict[str, torch.dtype]  # device types on which autocast was on, and its dtype there
    rng: list[Tensor]  # torch's generators before the call
    buffers: list[Tensor]  # the model's, before the call
    others: tuple | None = None  # the states of Python's and numpy's generators before the call, where it draws on them
    whole: bool = False  # its leading size is more than a batch's examples: the first dimension is another one
    drew: bool = False  # forward drew random numbers
    marks: tuple[float, ...] = ()  # sums of its tensors, to notice memory that is used again
    originals: list[Tensor] = field(default_factory=list)  # what the loop gave, where these are copies

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that forward and the batch hold."""
        given = tensors_in(self.args)
        if self.kwargs:
            given += tensors_in(self.kwargs)
        return given + tensors_in(self.batch)


def mark(tensors: list[Tensor]) -> tuple[float, ...]:
    """A cheap fingerprint of tensors, one sum each; another batch in the same memory has another one."""
    return tuple(t.detach().sum().item() for t in {id(t): t for t in tensors}.values())


def as_marked(marks: tuple[float, ...], tensors: list[Tensor]) -> bool:
    """Return whether tensors have the fingerprint that they had; one of inputs that are NaN is the same NaN."""
    now = mark(tensors)
    return now == marks or [repr(sum_) for sum_ in now] == [repr(sum_) for sum_ in marks]


def detached(
    tree: Any,
    clone: bool = False,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
    known: dict[int, Tensor] | None = None,
) -> Any:
    """Return a nest of mappings, tuples and lists with every tensor detached, moved, cast and cloned as asked.

    A tensor that stands in it twice stands twice in the result too.
    """
    known = {} if known is None else known
    if isinstance(tree, Tensor):
        found = known.get(id(tree))
        if found is None:
            found = tree.detach()
            if device is not None or dtype is not None:
                found = found.to(device=device, dtype=dtype if tree.is_floating_point() else None)
            known[id(tree)] = found = found.clone() if clone else found
        return found
    if isinstance(tree, dict):
        return {key: detached(value, clone, device, dtype, known) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        parts = [detached(value, clone, device, dtype, known) for value in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return tree
