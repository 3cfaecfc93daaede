"""What torch lets one see: its functions, replaced while at least one watch is open, and put back afterwards.

Torch has hooks for an optimizer's step and none for the rest, so the rest is patched on modules and classes (never
on the reader's objects, so that copies and saved files hold nothing of it). The patches are global, as torch's
functions are: they are laid once, tell every open watch, and go with the last one, in whatever order watches close.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad
from torch.optim import Optimizer, lr_scheduler, swa_utils
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, dataloader

import accumkit.window
from accumkit.trace.where import where


class Listener(Protocol):
    """What a watch answers to; each call names the reader's line where there is one."""

    model: nn.Module

    def pass_begins(self, length: int) -> int: ...
    def fetched(self, number: int, batch: Any, location: str | None) -> None: ...
    def forward_begins(self, args: tuple, kwargs: dict, location: str | None) -> None: ...
    def forward_ends(self) -> None: ...
    def backward_begins(self) -> None: ...
    def backward_ends(self, location: str | None) -> None: ...
    def zero_grad(self, owner: Any, location: str | None) -> None: ...
    def scaled(self, optimizer: Optimizer, factor: float, location: str | None) -> None: ...
    def clipped(self, tensors: list, factor: float | None, max_norm: float | None, location: str | None) -> None: ...
    def step_begins(self, optimizer: Optimizer, location: str | None) -> None: ...
    def step_ends(self, optimizer: Optimizer) -> None: ...
    def step_skipped(self, optimizer: Optimizer, location: str | None) -> None: ...
    def note(self, kind: str, location: str | None) -> None: ...
    def failed(self, error: Exception) -> None: ...


_listeners: list[Listener] = []
_undo: list[Callable[[], None]] = []
_calls: dict[type, Callable[[], None]] = {}  # by the class of a watched model
_depth = {"backward": 0, "scheduler": 0, "closure": 0}
_stepping: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()  # nested super().step() calls


def listen(listener: Listener) -> None:
    """Open the hooks for a listener."""
    if not _listeners:
        _lay()
    _listeners.append(listener)
    _watch_class(type(listener.model))


def dismiss(listener: Listener) -> None:
    """Close them again; with the last listener torch is as it was."""
    _listeners.remove(listener)
    kind = type(listener.model)
    if not any(type(other.model) is kind for other in _listeners):
        _calls.pop(kind)()
    if not _listeners:
        while _undo:
            _undo.pop()()
        _stepping.clear()
        _depth.update(backward=0, scheduler=0, closure=0)


def _tell(name: str, *args: Any) -> None:
    for listener in tuple(_listeners):
        _call(listener, name, *args)


def _call(listener: Listener, name: str, *args: Any) -> Any:
    """Tell one listener; what goes wrong there is its own affair and never the watched loop's."""
    try:
        return getattr(listener, name)(*args)
    except Exception as error:
        listener.failed(error)


def _patch(owner: Any, name: str, make: Callable[[Callable], Callable]) -> Callable[[], None]:
    """Replace an attribute by ``make(original)``; return what puts it back, unless someone else replaced it since."""
    own = vars(owner).get(name)
    original = getattr(owner, name)
    ours = functools.wraps(original)(make(original))
    setattr(owner, name, ours)

    def restore() -> None:
        if vars(owner).get(name) is ours:
            delattr(owner, name) if own is None else setattr(owner, name, own)

    _undo.append(restore)
    return restore


def _watch_class(kind: type) -> None:
    if kind in _calls:
        return

    def make(original: Callable) -> Callable:
        def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_dynamo_compiling():  # tracing through here; the compiled module is the one watched
                return original(self, *args, **kwargs)
            watched = [other for other in _listeners if other.model is self] if not _depth["backward"] else ()
            if not watched:  # a copy, another model of this class, or a checkpoint's recomputation
                return original(self, *args, **kwargs)
            line = where(sys._getframe(1))
            for listener in watched:
                _call(listener, "forward_begins", args, kwargs, line)
            output = original(self, *args, **kwargs)
            for listener in watched:
                _call(listener, "forward_ends")
            return output

        return call

    _calls[kind] = _patch(kind, "__call__", make)
    _undo.remove(_calls[kind])


def _lay() -> None:
    # private, but the one place that loss.backward(), autograd.backward(), scalers and frameworks all pass;
    # where a torch release lacks it, autograd.backward sees all but calls imported by name before the watch
    engine = "_engine_run_backward" if hasattr(torch.autograd, "_engine_run_backward") else "backward"
    _patch(torch.autograd, engine, _backward)
    _patch(Optimizer, "zero_grad", _zero_grad)
    _patch(nn.Module, "zero_grad", _zero_grad)
    _patch(GradScaler, "unscale_", _unscale)
    _patch(GradScaler, "step", _scaler_step)
    if hasattr(clip_grad, "_clip_grads_with_norm_"):  # also called by clip_grad_norm_ imported by name
        _patch(clip_grad, "_clip_grads_with_norm_", _clip_with_norm)
    else:  # torch before 2.6
        _patch(clip_grad, "clip_grad_norm_", _clip_norm)
        _patch(nn.utils, "clip_grad_norm_", _clip_norm)
    # clip_grad_value_ asks this helper first, by whatever name it was imported
    _patch(clip_grad, "_group_tensors_by_device_and_dtype", _group_for_clip)
    for kind in _subclasses(lr_scheduler.LRScheduler):
        if "step" in vars(kind):
            _patch(kind, "step", _scheduler_step)
    _patch(swa_utils.AveragedModel, "update_parameters", _noting("ema update"))
    _patch(torch, "save", _noting("state saved"))
    _patch(DataLoader, "__iter__", _loader_iter)
    _patch(dataloader._BaseDataLoaderIter, "__next__", _loader_next)
    _patch(accumkit.window, "fetch", _fetch)
    before = register_optimizer_step_pre_hook(_before_step)
    after = register_optimizer_step_post_hook(_after_step)
    _undo.extend([before.remove, after.remove])


def _subclasses(kind: type) -> list[type]:
    return [kind, *(below for child in kind.__subclasses__() for below in _subclasses(child))]


def _backward(original: Callable) -> Callable:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("accumulate_grad", True) or _depth["backward"]:
            return original(*args, **kwargs)  # autograd.grad leaves .grad alone; a checkpoint's runs are inner ones
        line = where(sys._getframe(1))
        _tell("backward_begins")
        _depth["backward"] += 1
        try:
            return original(*args, **kwargs)
        finally:
            _depth["backward"] -= 1
            _tell("backward_ends", line)

    return run


def _zero_grad(original: Callable) -> Callable:
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        _tell("zero_grad", self, where(sys._getframe(1)))
        return result

    return zero_grad


def _unscale(original: Callable) -> Callable:
    def unscale_(self: GradScaler, optimizer: Optimizer) -> Any:
        scale = self.get_scale() if self.is_enabled() else 1.0
        result = original(self, optimizer)
        if self.is_enabled():
            _tell("scaled", optimizer, 1 / scale, where(sys._getframe(1)))
        return result

    return unscale_


def _scaler_step(original: Callable) -> Callable:
    def step(self: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        reached = []
        handle = optimizer.register_step_pre_hook(lambda *_: reached.append(True))
        try:
            result = original(self, optimizer, *args, **kwargs)
        finally:
            handle.remove()
        if not reached:
            _tell("step_skipped", optimizer, where(sys._getframe(1)))
        return result

    return step


def _clip_with_norm(original: Callable) -> Callable:
    def clip(parameters: Any, max_norm: float, total_norm: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        result = original(parameters, max_norm, total_norm, *args, **kwargs)
        _note_clip(parameters, float(max_norm), float(total_norm))
        return result

    return clip


def _clip_norm(original: Callable) -> Callable:
    def clip(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        total_norm = original(parameters, max_norm, *args, **kwargs)
        _note_clip(parameters, float(max_norm), float(total_norm))
        return total_norm

    return clip


def _note_clip(parameters: list, max_norm: float, total_norm: float) -> None:
    if max_norm != float("inf"):  # an infinite one is how people log the norm
        _tell("clipped", parameters, min(1.0, max_norm / (total_norm + 1e-6)), max_norm, where(sys._getframe(2)))


def _group_for_clip(original: Callable) -> Callable:
    def group(nested: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(nested, *args, **kwargs)
        frame = sys._getframe(1)
        if frame.f_code.co_name == "clip_grad_value_":
            _tell("clipped", [grad for grads in nested for grad in grads], None, None, where(frame))
        return result

    return group


def _scheduler_step(original: Callable) -> Callable:
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1)
        inner = _depth["scheduler"] or caller.f_code.co_filename == lr_scheduler.__file__  # a constructor's own step
        _depth["scheduler"] += 1
        try:
            result = original(self, *args, **kwargs)
        finally:
            _depth["scheduler"] -= 1
        if not inner:
            _tell("note", "scheduler step", where(caller))
        return result

    return step


def _noting(kind: str) -> Callable[[Callable], Callable]:
    def make(original: Callable) -> Callable:
        def noted(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            _tell("note", kind, where(sys._getframe(1)))
            return result

        return noted

    return make


_passes: weakref.WeakKeyDictionary[Any, list[tuple[Listener, int]]] = weakref.WeakKeyDictionary()


def _loader_iter(original: Callable) -> Callable:
    def __iter__(self: DataLoader) -> Any:
        iterator = original(self)
        if isinstance(iterator, dataloader._BaseDataLoaderIter):  # a subclass's generator comes here by itself
            _passes[iterator] = _begin(self)
        return iterator

    return __iter__


def _loader_next(original: Callable) -> Callable:
    def __next__(self: Any) -> Any:
        batch = original(self)
        for listener, number in _passes.get(self, ()):
            _call(listener, "fetched", number, batch, where(sys._getframe(1)))
        return batch

    return __next__


def _begin(loader: Any) -> list[tuple[Listener, int]]:
    try:
        length = len(loader)
    except TypeError:  # a stream
        length = -1
    return [(listener, _call(listener, "pass_begins", length)) for listener in _listeners]


def _fetch(original: Callable) -> Callable:
    def fetch(loader: Any) -> Any:
        return original(loader) if isinstance(loader, DataLoader) else told(original(loader), loader)

    return fetch


def told(iterator: Any, source: Any) -> Any:
    """Yield from an iterator that is no DataLoader's, telling the open watches."""
    begun = _begin(source)
    for batch in iterator:
        for listener, number in begun:
            _call(listener, "fetched", number, batch, where(sys._getframe(1)))
        yield batch


def _before_step(optimizer: Optimizer, args: tuple, kwargs: dict) -> Any:
    _stepping[optimizer] = _stepping.get(optimizer, 0) + 1
    if _stepping[optimizer] > 1:  # a subclass whose step calls super().step()
        return None
    line = where(sys._getframe(1))
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if not callable(closure):
        _tell("step_begins", optimizer, line)
        return None

    @functools.wraps(closure)
    def seen(*a: Any, **k: Any) -> Any:
        _depth["closure"] += 1
        try:
            result = closure(*a, **k)
        finally:
            _depth["closure"] -= 1
        _tell("step_begins", optimizer, line)  # after each evaluation; the last one is the update's
        return result

    return (args, {**kwargs, "closure": seen}) if "closure" in kwargs else ((args[0], seen, *args[2:]), kwargs)


def _after_step(optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
    _stepping[optimizer] = max(0, _stepping.get(optimizer, 1) - 1)
    if not _stepping[optimizer]:
        _tell("step_ends", optimizer)


@contextmanager
def muted() -> Iterator[None]:
    """Tell no one about the calls and backwards in a block: they are the measurement's own."""
    _depth["backward"] += 1
    try:
        yield
    finally:
        _depth["backward"] -= 1


def in_closure() -> bool:
    """Say whether an optimizer's closure is running, as L-BFGS evaluates it several times a step."""
    return _depth["closure"] > 0


def step_failed() -> None:
    """Forget steps that raised and so never reached their end; called when the loop goes on without them."""
    _stepping.clear()
