"""The functions that stand in for torch's while a watch is open: each runs the original and tells the listeners.

What runs once a micro-batch or update calls the listeners itself, without ``tell`` in between.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.optim import lr_scheduler

from accumkit.trace.listeners import by_model, depth, listeners, tell
from accumkit.trace.where import caller, where


def model_call(original: Callable) -> Callable:
    """See the forward calls of a watched model, and of no copy of it."""

    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():  # tracing through here; the compiled module is the one watched
            return original(self, *args, **kwargs)
        me, here = id(self), depth.here
        watched, outer = by_model.get(me), here.calling
        if not watched or here.backward or outer == me:
            # a copy, another model of this class; a checkpoint's recomputation; or a base class watched too
            return original(self, *args, **kwargs)
        line = caller()
        for listener in watched:
            try:
                listener.forward_begins(args, kwargs, line)
            except Exception as error:
                listener.failed(error)
        here.calling = me
        try:
            output = original(self, *args, **kwargs)
        finally:
            here.calling = outer
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
        line = caller(3)  # behind Tensor.backward and autograd.backward
        roots = args[0] if args else kwargs.get("tensors", ())
        retain = args[2] if len(args) > 2 else kwargs.get("retain_graph")
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
        result, line = original(self, *args, **kwargs), caller()
        for listener in listeners:
            try:
                listener.zero_grad(self, line)
            except Exception as error:
                listener.failed(error)
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
            tell("note", "scheduler step", where(caller), _planned(self), id(self))
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
            tell("note", kind, caller())
            return result

        return noted

    return make
