"""The hooks that see an optimizer's step begin and end while a watch is open."""

from __future__ import annotations

import functools
from typing import Any

from torch.optim import Optimizer

from accumkit.trace.listeners import depth, listeners, stepping, tell
from accumkit.trace.where import caller

_last: dict[Optimizer, Any] = {}  # in a step that runs: a hook behind the reader's own


def forget() -> None:
    """Take away what steps that raised have left behind."""
    while _last:
        _last.popitem()[1].remove()


def before_step(optimizer: Optimizer, args: tuple, kwargs: dict) -> Any:
    """See an optimizer's step begin."""
    if optimizer in stepping:  # a subclass whose step calls super().step()
        stepping[optimizer] += 1
        return None
    stepping[optimizer] = 1
    line = caller(2)  # behind the wrapper that calls hooks
    if len(args) > 1 or kwargs or optimizer._optimizer_step_pre_hooks:  # private
        return _before_unusual_step(optimizer, args, kwargs, line)
    for listener in listeners:
        try:
            listener.step_begins(optimizer, line)
        except Exception as error:
            listener.failed(error)
    return None


def _before_unusual_step(optimizer: Optimizer, args: tuple, kwargs: dict, line: str | None) -> Any:
    """See the begin of a step with a closure, which begins anew after each evaluation, or with hooks of the reader's.

    Those run after this one, and may change ``.grad``.
    """
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if not callable(closure):
        if optimizer._optimizer_step_pre_hooks:
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
    running = stepping.pop(optimizer, 1)
    if running > 1:
        stepping[optimizer] = running - 1
        return
    if optimizer in _last:
        _last.pop(optimizer).remove()
    for listener in listeners:
        try:
            listener.step_ends(optimizer)
        except Exception as error:
            listener.failed(error)
