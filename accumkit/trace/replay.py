"""Reference gradients: the window's forward calls run again on a copy of the model, leaving no trace behind."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from accumkit.objective import Objective
from accumkit.trace.columns import Columns
from accumkit.trace.piece import Piece, detached

MAX_JOINED = 4_000_000  # numbers in a window's joined inputs; beyond, micro-batches are replayed one by one

DROPOUT = (nn.modules.dropout._DropoutNd, nn.RReLU)  # private in name; every dropout layer is one
COUPLING = (nn.modules.batchnorm._BatchNorm,)  # private in name, stable since torch 1.0; every BatchNorm is one


def rng_states(device: torch.device) -> list[Tensor]:
    """Return the states of torch's generators that a forward on ``device`` can draw from."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def set_rng_states(states: list[Tensor], device: torch.device) -> None:
    """Set what ``rng_states`` returned."""
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)


def other_states() -> tuple:
    """Return the states of Python's and numpy's generators, which forward may draw on too."""
    numpy = sys.modules.get("numpy")  # a model can draw on it only if it is loaded
    return random.getstate(), numpy.random.get_state(legacy=False) if numpy else None


def set_other_states(states: tuple) -> None:
    """Set what ``other_states`` returned."""
    random.setstate(states[0])
    if states[1] is not None:
        sys.modules["numpy"].random.set_state(states[1])


def other_draws(before: tuple, after: tuple) -> bool:
    """Say whether Python's or numpy's generator was drawn on between two of its states."""
    if before[0] != after[0]:
        return True
    old, new = (s[1]["state"] if s[1] else {} for s in (before, after))
    return old.get("pos") != new.get("pos") or any((a != b).any() for a, b in [(old.get("key"), new.get("key"))] if old)


@contextmanager
def undisturbed(device: torch.device, others: bool = True) -> Iterator[tuple | None]:
    """Run a block with gradients on and autocast off, and give every random generator back as it was.

    ``others``: Python's and numpy's too, which takes longer than all the rest; yields their states, else None.
    """
    states, before = rng_states(device), other_states() if others else None
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
            yield before
    finally:
        set_rng_states(states, device)
        if before is not None:
            set_other_states(before)


def eager(model: nn.Module) -> nn.Module:
    """Return the module that torch.compile wrapped, or the module itself."""
    return getattr(model, "_orig_mod", model)


class Twin:
    """A copy of the watched model on which a window is run again."""

    def __init__(self, model: nn.Module, objective: Objective, dtype: torch.dtype | None = None) -> None:
        """``dtype``: torch.float64 for the copy that measures rounding; None: the loop's own precision."""
        model = eager(model)
        self.objective, self.dtype = objective, dtype
        with undisturbed(next(model.parameters()).device):
            self.model = copy.deepcopy(model)
        if dtype is not None:
            self.model.to(dtype)
        for module in self.model.modules():  # a reader's own hooks (logging, statistics) must not fire again
            for hooks in (module._forward_hooks, module._backward_hooks, module._backward_pre_hooks):
                hooks.clear()
        named = dict(self.model.named_parameters())
        self.parameters = [named[name] for name, p in model.named_parameters() if p.requires_grad]
        self.own, self.theirs = list(self.model.parameters()), list(model.parameters())
        self.modules = list(zip(self.model.modules(), model.modules(), strict=True))

    def follow(self) -> None:
        """Take over the source's parameters and modes as they are now."""
        with torch.no_grad():
            torch._foreach_copy_(self.own, self.theirs)  # private in name; optimizers copy with it
        for own, theirs in zip(self.own, self.theirs, strict=True):
            if own.requires_grad is not theirs.requires_grad:
                own.requires_grad_(theirs.requires_grad)
        for own, theirs in self.modules:
            if own.training is not theirs.training:
                own.training = theirs.training

    def leave_out_masks(self) -> None:
        """Turn dropout off, until the next ``follow``."""
        for own, _ in self.modules:
            if isinstance(own, DROPOUT):
                own.training = False

    def _set_buffers(self, piece: Piece) -> None:
        if piece.buffers:
            with torch.no_grad():
                for own, then in zip(self.model.buffers(), piece.buffers, strict=False):
                    own.copy_(then)

    def _run(self, piece: Piece, args: tuple, kwargs: dict, batch: Any) -> Tensor:
        objective = self.objective
        with ExitStack() as stack:
            if self.dtype is None:
                for device, dtype in piece.autocast.items():
                    stack.enter_context(torch.autocast(device, dtype=dtype))
            if objective.total_loss is not None:
                return objective.total_loss(self.model, batch)
            return objective.loss(self.model(*args, **kwargs), batch)

    def gradients(self, pieces: list[Piece], columns: Columns) -> Tensor:
        """Return the gradient of the pieces' summed loss, each forward with its own random numbers and buffers.

        Shape (columns,).
        """
        row = None
        device = self.parameters[0].device
        for piece in pieces:
            set_rng_states(piece.rng, device)
            if piece.others is not None:
                set_other_states(piece.others)
            self._set_buffers(piece)
            args, kwargs, batch = detached((piece.args, piece.kwargs, piece.batch), False, device, self.dtype)
            found = self._backward(self._run(piece, args, kwargs, batch), columns)
            row = found if row is None else row + found
        return row

    def joined(self, pieces: list[Piece], columns: Columns) -> Tensor | None:
        """Return the gradient of the whole window's summed loss in one pass; None where pieces cannot be joined.

        This is the oracle itself: one backward on the concatenated window. Shape (columns,).
        """
        whole = join(pieces)
        if whole is None:
            return None
        device = self.parameters[0].device
        args, kwargs, batch = detached(whole, False, device, self.dtype)
        self._set_buffers(pieces[0])
        try:
            return self._backward(self._run(pieces[0], args, kwargs, batch), columns)
        except Exception:  # a model that takes micro-batches of one size only, say; one by one it may do
            return None

    def per_update(self, columns: Columns) -> Tensor:
        """Return the gradient of the objective's once-an-update term. Shape (columns,)."""
        return self._backward(self.objective.per_update(self.model), columns)

    def _backward(self, total: Tensor, columns: Columns) -> Tensor:
        """Run a backward, as a loop does (re-entrant checkpoints refuse autograd.grad), and take the gradients."""
        if total.requires_grad:
            total.backward()
        row = columns.row([p.grad for p in self.parameters])
        for p in self.parameters:
            p.grad = None
        return row


def join(pieces: list[Piece]) -> tuple[tuple, dict, Any] | None:
    """Concatenate the pieces' inputs and batches along the examples; None where their shapes do not allow it.

    Every tensor must have the examples in its first dimension: a mask, an offset or sequences laid time first must not
    be concatenated.
    """
    tensors = [(t, piece.examples) for piece in pieces for t in piece.tensors]
    if any(piece.whole for piece in pieces) or any(not t.dim() or t.shape[0] != n for t, n in tensors):
        return None
    if sum(t.numel() for t, _ in tensors) > MAX_JOINED:
        return None
    known: dict[tuple[int, ...], Tensor] = {}
    try:
        parts = [_cat([getattr(piece, name) for piece in pieces], known) for name in ("args", "kwargs", "batch")]
    except (_Unjoinable, TypeError, RuntimeError):
        return None
    return parts[0], parts[1], parts[2]


class _Unjoinable(Exception):
    pass


def _cat(trees: list[Any], known: dict[tuple[int, ...], Tensor]) -> Any:
    """Concatenate trees leaf by leaf; ``known``: what became of tensors that stand in them twice."""
    first = trees[0]
    if isinstance(first, Tensor):
        key = tuple(map(id, trees))
        if key not in known:
            if first.dim() == 0 or any(not isinstance(t, Tensor) or t.shape[1:] != first.shape[1:] for t in trees):
                raise _Unjoinable
            known[key] = torch.cat([t.detach() for t in trees])
        return known[key]
    if isinstance(first, dict):
        return {key: _cat([tree[key] for tree in trees], known) for key in first}
    if isinstance(first, (list, tuple)):
        if any(len(tree) != len(first) for tree in trees):
            raise _Unjoinable
        parts = [_cat([tree[i] for tree in trees], known) for i in range(len(first))]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if all(tree is first or tree == first for tree in trees[1:]):
        return first
    raise _Unjoinable
