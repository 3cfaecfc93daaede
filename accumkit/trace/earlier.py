"""Batches that are no longer kept, found again while the loop itself holds them: a list of them, gone through again."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from operator import is_
from typing import Any

from torch import Tensor


@dataclass(slots=True, eq=False)
class Known:
    """A batch with weak references for its tensors, and the pass it was last used in."""

    form: Any  # the batch with them in their places; of a flat one its type alone
    refs: list[weakref.ref]
    epoch: int
    size: int | None
    used: bool

    def again(self) -> Any:
        """Return the batch; None if a part of it is gone."""
        tensors = [ref() for ref in self.refs]
        if any(tensor is None for tensor in tensors):
            return None
        return self.form(tensors) if type(self.form) is type else _each(self.form, _strong)


class Earlier:
    """Finds such batches by the identity of their tensors; it keeps no tensor."""

    def __init__(self, most: int) -> None:
        self.known: dict[int, tuple[weakref.ref, Known | None]] = {}  # None: its tensor is part of several batches
        self.least = self.most = most

    def keep(self, batches: list[tuple]) -> None:
        """Remember those of some batches, none of them kept any more, that the loop holds; as ``weakly`` gives them."""
        for form, refs, *rest in batches:
            if form is None or any(ref() is None for ref in refs):
                continue
            batch = Known(form, refs, *rest)
            for ref in batch.refs:
                before, other = self.known.get(id(ref()), (None, batch))
                several = before is ref and (other is None or not _same(other.refs, batch.refs))
                self.known[id(ref())] = ref, None if several else batch
        if len(self.known) > self.most:  # references to tensors that are gone stay until here
            self.known = {key: pair for key, pair in self.known.items() if pair[0]() is not None}
            self.most = 2 * len(self.known) + self.least

    def find(self, given: list[Tensor]) -> Known | None:
        """Return the batch that a tensor given to forward is part of."""
        for tensor in given:
            ref, batch = self.known.get(id(tensor), (None, None))
            if batch is not None and ref() is tensor:
                return batch
        return None


def weakly(batch: Any, tensors: list[Tensor]) -> tuple[Any, list[weakref.ref]]:
    """Return a batch's form and references; the form is None if it is not made of tensors and numbers alone."""
    form = type(batch)
    flat = (form is tuple or form is list) and len(batch) == len(tensors) and all(map(is_, batch, tensors))
    if not flat:
        try:
            form = _each(batch, _weak)
        except (TypeError, AttributeError):
            form = None
    return form, list(map(weakref.ref, tensors))


def _weak(part: Any) -> Any:
    if isinstance(part, Tensor):
        return weakref.ref(part)
    if part is None or isinstance(part, (bool, int, float)):
        return part
    raise TypeError(f"{type(part).__name__} may hold tensors")


def _strong(part: Any) -> Any:
    return part() if isinstance(part, weakref.ref) else part


def _each(part: Any, change: Callable[[Any], Any]) -> Any:
    if type(part) is dict:
        return {key: _each(value, change) for key, value in part.items()}
    if isinstance(part, (tuple, list)):
        parts = [_each(value, change) for value in part]
        return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)
    return change(part)


def _same(some: list[weakref.ref], others: list[weakref.ref]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))
