"""What a loop does to ``.grad`` between backward calls, and what its scaler does: the recorder's part that hears it."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import torch
from torch.amp import GradScaler
from torch.optim import Optimizer

from accumkit.trace.gradients import Gradients
from accumkit.trace.pending import Open
from accumkit.trace.scaling import Scaling


class Touches:
    """Notes what happens to a model's gradients; the recorder gives it the window and the gradients."""

    window: Open
    gradients: Gradients
    scaling: Scaling
    measured: bool
    _event: Callable[..., None]  # the recorder's: notes a kind, a line, and a value

    def zero_grad(self, owner: Any, location: str | None) -> None:
        """Hear an optimizer's or a module's zero_grad."""
        if self.gradients.held_by(owner):
            self._event("zero_grad", location)

    def scaler_made(self, scaler: GradScaler, location: str | None) -> None:
        """Hear that a scaler was made."""
        self.scaling.made(scaler, location)

    def loss_scaled(self, scaler: GradScaler, scale: float) -> None:
        """Hear that a loss was multiplied by a scale."""
        self.scaling.scaled(scaler, scale)

    def unscale_begins(self, optimizer: Optimizer) -> None:
        """Look at the gradients once more before a scaler divides them."""
        if self.measured and self.window.held and self.gradients.held_by(optimizer) and self.gradients.touched():
            self.window.done_by_hand(self.gradients.row())

    def scaler_steps(self, scaler: GradScaler | None) -> None:
        """Hear whose step an optimizer is about to make."""
        self.scaling.stepping = scaler

    def scaler_updated(self, scaler: GradScaler, scale: float, location: str | None) -> None:
        """Hear a scaler's update."""
        if self.scaling.knows(scaler):
            self._event("scaler update", location, scale)

    def scaled(self, optimizer: Optimizer, factor: float, location: str | None) -> None:
        """Hear that a scaler divided the gradients."""
        if self.gradients.held_by(optimizer):
            self.window.unscaled.append(factor)
            self._event("unscale", location, 1 / factor)

    def clip_begins(self, tensors: list, total_norm: float | None) -> None:
        """Look at the gradients before they are clipped in a way that no single factor and limit describe.

        That is: value by value (no norm), only some of them (a layer), or by another norm than the length.
        """
        window, gradients = self.window, self.gradients
        if not self.measured or not window.held or window.before_clip is not None or gradients.empty():
            return
        with_gradient = [p for p in gradients.active if p.grad is not None]
        ids = {id(tensor) for tensor in tensors}
        if total_norm is not None and ids >= {id(p) for p in with_gradient}:
            length = torch.stack([p.grad.norm() for p in with_gradient]).norm().item()
            if abs(total_norm - length) <= 1e-3 * length or not isfinite(length):
                return
        elif not ids & ({id(p) for p in with_gradient} | {id(p.grad) for p in with_gradient}):
            return
        window.before_clip, window.unscaled_before = gradients.row(), len(window.unscaled)

    def clipped(self, tensors: list, factor: float | None, max_norm: float | None, location: str | None) -> None:
        """Hear that gradients were clipped; by value where there is no factor."""
        own = self.gradients.ids | {id(p.grad) for p in self.gradients.active}
        if any(id(tensor) in own for tensor in tensors) or self._aside(tensors):
            window = self.window
            if factor is not None and window.before_clip is None:
                window.clipped.append(factor)
            window.by_value = factor is None
            window.max_norm = None if factor is not None and window.before_clip is not None else max_norm
            window.clip_scale = window.scale
            self._event("clip", location, factor)

    def _aside(self, tensors: list) -> bool:
        """Say whether tensors are this model's sums, kept aside: shaped as its parameters, which hold no gradient."""
        if not self.window.held or not self.gradients.empty():
            return False
        shapes = iter([p.shape for p in self.gradients.active])
        return bool(tensors) and all(t.shape in shapes for t in tensors)  # in their order; some may have no gradient
