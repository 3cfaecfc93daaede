"""The functions that stand in for torch's while a watch is open: each runs the original and tells the listeners.

Forward and backward run once a micro-batch, so they call the listeners themselves, without ``tell`` in between.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from accumkit.trace.listeners import by_model, depth, listeners, stepping, tell
from accumkit.trace.where import where


def model_call(original: Callable) -> Callable:
    """See the forward calls of a watched model, and of no copy of it."""

    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():  # tracing through here; the compiled module is the one watched
            return original(self, *args, **kwargs)
        me, here = id(self), depth.here
        watched = by_model.get(me)
        if not watched or here.backward or me in here.calling:
            # a copy, another model of this class; a checkpoint's recomputation; or a base class watched too
            return original(self, *args, **kwargs)
        line = where(sys._getframe(1))
        for listener in watched:
            try:
                listener.forward_begins(args, kwargs, line)
            except Exception as error:
                listener.failed(error)
        here.calling.add(me)
        try:
            output = original(self, *args, **kwargs)
        finally:
            here.calling.discard(me)
        for listener in watched:
            try:
                listener.forward_ends(output)
            except Exception as error:
                listener.failed(error)
        return output

    return __call__


def backward(original: Callable) -> Callable:
    """See every backward that adds to ``.grad``."""

    def run(*args: Any, **kwargs: Any) -> Any:
        here = depth.here
        if here.backward or not kwargs.get("accumulate_grad", True):
            return original(*args, **kwargs)  # autograd.grad leaves .grad alone; a checkpoint's runs are inner ones
        line = where(sys._getframe(1))
        roots = args[0] if args else kwargs.get("tensors", ())
        retain = bool(args[2] if len(args) > 2 else kwargs.get("retain_graph"))
        for listener in listeners:
            try:
                listener.backward_begins(roots, retain)
            except Exception as error:
                listener.failed(error)
        here.backward = 1
        try:
            return original(*args, **kwargs)
        finally:
            here.backward = 0
            for listener in listeners:
                try:
                    listener.backward_ends(line)
                except Exception as error:
                    listener.failed(error)

    return run


def zero_grad(original: Callable) -> Callable:
    """See an optimizer's or a module's zero_grad."""

    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        tell("zero_grad", self, where(sys._getframe(1)))
        return result

    return zero_grad


def clip_with_norm(original: Callable) -> Callable:
    """See clipping by norm, by whatever name ``clip_grad_norm_`` was imported."""

    def clip(parameters: Any, max_norm: float, total_norm: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if max_norm != float("inf"):
            tell("clip_begins", parameters, float(total_norm))
        result = original(parameters, max_norm, total_norm, *args, **kwargs)
        note_clip(parameters, float(max_norm), float(total_norm))
        return result

    return clip


def clip_norm(original: Callable) -> Callable:
    """See clipping by norm, where torch has no inner function for it."""

    def clip(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        total_norm = original(parameters, max_norm, *args, **kwargs)
        note_clip(parameters, float(max_norm), float(total_norm))
        return total_norm

    return clip


def note_clip(parameters: list, max_norm: float, total_norm: float) -> None:
    """Tell of a clip, unless its limit is infinite: that is how people log the norm."""
    if max_norm != float("inf"):
        tell("clipped", parameters, min(1.0, max_norm / (total_norm + 1e-6)), max_norm, where(sys._getframe(2)))


def group_for_clip(original: Callable) -> Callable:
    """See clipping by value, by whatever name ``clip_grad_value_`` was imported."""

    def group(nested: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(nested, *args, **kwargs)
        frame = sys._getframe(1)
        if frame.f_code.co_name == "clip_grad_value_":
            limit = frame.f_locals.get("clip_value")  # the caller's argument; torch hands it to nothing that is seen
            limit = float(limit) if isinstance(limit, (int, float)) else None
            tell("clip_begins", [grad for grads in nested for grad in grads], None)
            tell("clipped", [grad for grads in nested for grad in grads], None, limit, where(frame))
        return result

    return group


def scheduler_step(original: Callable) -> Callable:
    """See a scheduler's step, once for one that steps others."""

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        caller, here = sys._getframe(1), depth.here
        inner = here.scheduler or caller.f_code.co_filename == lr_scheduler.__file__  # a constructor's own step
        here.scheduler += 1
        try:
            result = original(self, *args, **kwargs)
        finally:
            here.scheduler -= 1
        if not inner:
            tell("note", "scheduler step", where(caller), _planned(self))
        return result

    return step


def _planned(scheduler: Any) -> float | None:
    """Return the number of steps that a scheduler was planned for, where it says."""
    for name in ("total_steps", "T_max", "total_iters"):
        value = getattr(scheduler, name, None)
        if isinstance(value, (int, float)):
            return value
    parts = getattr(scheduler, "_schedulers", ())  # of one that runs others, together or one after another
    planned = [steps for steps in map(_planned, parts) if steps is not None]
    if not planned:
        return None
    milestones = getattr(scheduler, "_milestones", None)
    return max(planned) if milestones is None else milestones[-1] + planned[-1]


def noting(kind: str) -> Callable[[Callable], Callable]:
    """See a function run, as an event of this kind."""

    def make(original: Callable) -> Callable:
        def noted(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            tell("note", kind, where(sys._getframe(1)))
            return result

        return noted

    return make


_last: dict[Optimizer, Any] = {}  # in a step that runs: a hook behind the reader's own


def before_step(optimizer: Optimizer, args: tuple, kwargs: dict) -> Any:
    """See an optimizer's step begin; a closure is part of it, and the step begins anew after each evaluation."""
    stepping[optimizer] = running = stepping.get(optimizer, 0) + 1
    if running > 1:  # a subclass whose step calls super().step()
        return None
    line = where(sys._getframe(1))
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if not callable(closure):
        own = (
            optimizer._optimizer_step_pre_hooks
        )  # private; the reader's hooks run after this one, and may change .grad
        if own:
            _last[optimizer] = optimizer.register_step_pre_hook(lambda *_: tell("step_begins", optimizer, line))
        else:
            tell("step_begins", optimizer, line)
        return None

    @functools.wraps(closure)
    def seen(*a: Any, **k: Any) -> Any:
        here = depth.here
        here.closure += 1
        try:
            result = closure(*a, **k)
        finally:
            here.closure -= 1
        tell("step_begins", optimizer, line)  # after each evaluation; the last one is the update's
        return result

    return (args, {**kwargs, "closure": seen}) if "closure" in kwargs else ((args[0], seen, *args[2:]), kwargs)


def after_step(optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
    """See an optimizer's step end."""
    running = stepping.pop(optimizer, 1) - 1
    if running > 0:
        stepping[optimizer] = running
        return
    handle = _last.pop(optimizer, None)
    if handle is not None:
        handle.remove()
    tell("step_ends", optimizer)
