"""A model's gradients, and what became of them between two looks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence, Set
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from accumkit.trace.columns import Columns

NOTHING = type(None)  # called like a weak reference, it gives None
VERSION = attrgetter("grad._version")
LOW = (torch.float16, torch.bfloat16)
REPLACED = "parameters were replaced while the model was watched; what was done to the new ones was not seen"


def length(gradient: Tensor) -> float:
    """Return a gradient's norm, added up in float64: in float32 small squares are lost."""
    values = gradient if gradient.layout is torch.strided else gradient.coalesce().values()
    return torch.linalg.vector_norm(values, dtype=torch.float64).item() if values.numel() else 0.0


class Gradients:
    """The ``.grad`` of a model's trainable parameters, of which an optimizer may hold only some.

    Parameters
    ----------
    model : nn.Module
        The watched model.
    rows : bool
        Look at values too, not only at which tensors they are; needed to measure shares.
    """

    def __init__(self, model: nn.Module, rows: bool) -> None:
        self.model, self.rows = model, rows
        self.reasons: list[str] = []  # why something could not be seen
        self._all = list(model.parameters())
        self._owners: weakref.WeakKeyDictionary[Any, set[int]] = weakref.WeakKeyDictionary()
        self._take([p for p in self._all if p.requires_grad])

    def _take(self, parameters: list[nn.Parameter]) -> None:
        """Begin to look at these parameters, and at no others."""
        self.parameters = parameters
        self.ids = {id(p) for p in self.parameters}
        self.others = [p for p in self._all if id(p) not in self.ids]  # the model's frozen ones
        self.unseen: Set[int] = frozenset()  # not active when the window began, with a gradient already there
        self.low = any(p.dtype in LOW for p in self.parameters)
        self._given: dict[int, Tensor] | None = {} if self.rows and self.low else None  # by parameter, in float32
        self._hooks = [] if self._given is None else [p.register_hook(self._give(i)) for i, p in self._numbered()]
        self.active = self.parameters  # those that an optimizer is known to hold
        self._active_at: Sequence[int] = range(len(self.parameters))  # their places
        self._witness: int | None = None  # the place of one that has a gradient
        self.columns = Columns(self.parameters) if self.rows else None
        self.kept: Tensor | None = None  # columns of the active parameters; None for all
        # each parameter's .grad when last seen, by a weak reference, so that a cleared one frees its memory
        self._grads: list[Callable[[], Tensor | None]] = [NOTHING] * len(self.parameters)
        self._versions: list[int | None] = [None] * len(self.parameters)  # and its version then
        self.remember()

    def _numbered(self) -> list[tuple[int, nn.Parameter]]:
        return list(enumerate(self.parameters))

    def _give(self, number: int) -> Any:
        """Return a hook that keeps what backward gives a parameter: in low precision ``.grad`` rounds it away."""

        def keep(gradient: Tensor) -> None:
            wide = gradient.detach().to(torch.promote_types(gradient.dtype, torch.float32))
            self._given[number] = wide + self._given[number] if number in self._given else wide.clone()

        return keep

    def forget_given(self) -> None:
        """Start afresh, before a backward."""
        if self._given:
            self._given.clear()

    def given(self) -> Tensor | None:
        """Return what a backward gave, shape (columns,), where ``.grad`` is in low precision; None elsewhere."""
        if not self._given:
            return None
        row = self.columns.row([self._given.get(i) for i, _ in self._numbered()])
        self._given.clear()
        return row

    def rounded(self, row: Tensor) -> Tensor:
        """Return a row with every entry rounded to the precision of its parameter."""
        parts = row.split(self.columns.sizes)
        return torch.cat([x.to(p.dtype).to(row.dtype) for x, p in zip(parts, self.parameters, strict=True)])

    def close(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()

    def replaced(self) -> bool:
        """Say whether every gradient is another tensor than at the last look."""
        seen = zip(self.parameters, self._grads, strict=True)
        changed = [ref() is not p.grad for p, ref in seen if p.grad is not None]
        return bool(changed) and all(changed)

    def held_by(self, owner: Any) -> bool:
        """Say whether an optimizer or module holds parameters of this model; learn which ones are optimized."""
        before = held = self._owners.get(owner)
        if before is None or isinstance(owner, Optimizer):  # an optimizer may have been given more of them since
            given = given_to(owner)
            held = self.ids & given
        if held != before:
            self._owners[owner] = held
            if not held and given & ({id(p) for p in self.model.parameters()} - {id(p) for p in self._all}):
                self.reasons.append(REPLACED)
            known = set().union(*(ids for other, ids in self._owners.items() if isinstance(other, Optimizer)))
            if known:
                self._active_at = [i for i, p in self._numbered() if id(p) in known]
                self.active = [self.parameters[i] for i in self._active_at]
                self.kept = self.columns.covers(known) if self.columns is not None else None
        return bool(held)

    def begin_window(self) -> bool:
        """Look, before a window's first backward, at what is trained now; say whether other parameters are looked at.

        Layers may have been unfrozen, and optimizers given more parameters, since the window before.
        """
        owners = [owner for owner in list(self._owners) if isinstance(owner, Optimizer)]
        joined = any(p.requires_grad for p in self.others)
        if joined:
            self.close()
            self._take([p for p in self._all if p.requires_grad])
            self._owners.clear()
        for owner in owners:
            self.held_by(owner)
        if self.active is self.parameters:
            self.unseen = frozenset()
        else:
            self.unseen = {id(p) for p in self.parameters if p.grad is not None} - {id(p) for p in self.active}
        return joined

    def columns_of(self, optimizer: Optimizer) -> Tensor | None:
        """Return the columns of the parameters that one optimizer holds; None for all."""
        return self.columns.covers(self._owners[optimizer]) if self.columns is not None else None

    def left(self) -> set[int]:
        """Return the ids of the active parameters with a gradient other than zero."""
        return {id(p) for p in self.active if p.grad is not None and p.grad.any()}

    def ids_of(self, optimizer: Optimizer) -> set[int]:
        """Return the ids of this model's parameters that one optimizer holds."""
        return self._owners[optimizer]

    def empty(self) -> bool:
        """Say whether no active parameter has a gradient."""
        return all(p.grad is None for p in self.active)

    def row(self) -> Tensor | None:
        """Return the gradients now, shape (columns,); None where values are not looked at."""
        return self.columns.row([p.grad for p in self.parameters]) if self.columns is not None else None

    def cut(self, row: Tensor) -> Tensor:
        """Return a row's active columns."""
        return row if self.kept is None else row[self.kept]

    def zero(self, row: Tensor | None) -> bool:
        """Say whether every active gradient is zero: by the row, where there is one."""
        if row is not None:
            return not self.cut(row).any()
        return not self.left()

    def cleared(self, row: Tensor | None, touched: bool, accumulated: Tensor | None) -> bool:
        """Say whether the gradients that waited are gone: None, or zeros now and not before."""
        if self.empty():
            return True
        if row is None:
            return touched and self.zero(None)
        return self.zero(row) and not self.zero(accumulated)

    def norms(self, optimizer: Optimizer) -> list[tuple[int, float]]:
        """Return, of each parameter that one optimizer holds, its columns and the norm of its gradient.

        A scale that the optimizer's step takes out is left out.
        """
        held, columns = self._owners[optimizer], self.columns
        own = [(p.grad, size) for p, size in zip(columns.parameters, columns.sizes, strict=True) if id(p) in held]
        scale = getattr(optimizer, "grad_scale", None)
        scale = 1.0 if scale is None else scale.item()
        return [(size, 0.0 if grad is None else length(grad) / scale) for grad, size in own]

    def versions(self) -> list[int]:
        """Return the parameters' own versions, which any change in place raises."""
        return [p._version for p in self.parameters]

    def touched(self) -> bool:
        """Say whether a gradient is another tensor, or was written to, since ``remember``; .data hides a write."""
        for p, ref, version in zip(self.parameters, self._grads, self._versions, strict=True):
            grad = p.grad
            if grad is None:
                if version is not None:
                    return True
            elif grad._version != version or ref() is not grad:
                return True
        return False

    def starts_empty(self) -> bool:
        """Say whether no parameter at all has a gradient; if so, forget those there were.

        Then ``added`` and ``all_touched`` may stand for ``remember`` and ``touched``, and cost less.
        """
        for p in self.parameters:
            if p.grad is not None:
                return False
        for p in self.others:
            if p.requires_grad:  # unfrozen since
                return False
        self._grads, self._versions = [NOTHING] * len(self.parameters), [None] * len(self.parameters)
        self._witness, self.unseen = None, frozenset()
        return True

    def added(self) -> bool:
        """Say whether a backward has added to the gradients, and remember them."""
        try:
            versions = list(map(VERSION, self.parameters))
        except AttributeError:  # a parameter without a gradient
            touched = self.remember()
            self._witness = next((i for i in self._active_at if self._versions[i] is not None), None)
            return touched
        i = self._witness
        if i is None:
            self._witness = self._active_at[0]
            self._grads = [weakref.ref(p.grad) for p in self.parameters]
        elif versions == self._versions or self._grads[i]() is not self.parameters[i].grad:
            return self.remember()
        self._versions = versions
        return True

    def all_touched(self) -> bool:
        """Say, by a glance at one active gradient, whether all of them may be others, or have been written to."""
        i = self._witness
        if i is None:
            return True
        grad = self.parameters[i].grad
        return grad is None or grad._version != self._versions[i] or self._grads[i]() is not grad

    def remember(self) -> bool:
        """Note which tensors the gradients are, and their versions; say what ``touched`` would have said."""
        grads, versions, touched = self._grads, self._versions, False
        for i, p in enumerate(self.parameters):
            grad = p.grad
            if grad is None:
                if versions[i] is None:
                    continue
                grads[i], versions[i] = NOTHING, None
            elif grads[i]() is not grad:
                grads[i], versions[i] = weakref.ref(grad), grad._version
            elif versions[i] != (version := grad._version):
                versions[i] = version
            else:
                continue
            touched = True
        return touched


def given_to(owner: Any) -> set[int]:
    """Return the ids of all parameters that an optimizer or module has."""
    groups = owner.param_groups if isinstance(owner, Optimizer) else [{"params": owner.parameters()}]
    return {id(p) for group in groups for p in group["params"]}
