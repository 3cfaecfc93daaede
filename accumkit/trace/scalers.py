"""The functions that stand in for a GradScaler's while a watch is open."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch.amp import GradScaler
from torch.optim import Optimizer

from accumkit.trace.listeners import tell
from accumkit.trace.where import where


def unscale(original: Callable) -> Callable:
    """See a scaler divide the gradients, also inside its own step."""

    def unscale_(self: GradScaler, optimizer: Optimizer) -> Any:
        scale = self.get_scale() if self.is_enabled() else 1.0
        tell("unscale_begins", optimizer)
        result = original(self, optimizer)
        if self.is_enabled():
            tell("scaled", optimizer, 1 / scale, where(sys._getframe(1)))
        return result

    return unscale_


def step(original: Callable) -> Callable:
    """See that a scaler skipped a step: it never reached the optimizer."""

    def step(self: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        reached = []
        handle = optimizer.register_step_pre_hook(lambda *_: reached.append(True))
        tell("scaler_steps", self if self.is_enabled() else None)
        try:
            result = original(self, optimizer, *args, **kwargs)
            if not reached:
                tell("step_skipped", optimizer, where(sys._getframe(1)))
        finally:
            handle.remove()
            tell("scaler_steps", None)
        return result

    return step


def made(original: Callable) -> Callable:
    """See where a scaler is made."""

    def __init__(self: GradScaler, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        tell("scaler_made", self, where(sys._getframe(1)))

    return __init__


def scale(original: Callable) -> Callable:
    """See a scaler multiply a loss."""

    def scale(self: GradScaler, outputs: Any) -> Any:
        result = original(self, outputs)
        if self.is_enabled():
            tell("loss_scaled", self, self.get_scale())
        return result

    return scale


def update(original: Callable) -> Callable:
    """See a scaler's update, with the scale that it leaves."""

    def update(self: GradScaler, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if self.is_enabled():
            tell("scaler_updated", self, self.get_scale(), where(sys._getframe(1)))
        return result

    return update
