"""What gradient scalers did to one model's losses and gradients, and which scaler it was."""

from __future__ import annotations

import weakref
from math import prod

from torch.amp import GradScaler

from accumkit.trace.pending import Open
from accumkit.trace.record import Trace
from accumkit.trace.shares import SAME


class Scaling:
    """Follows the scalers of one model.

    Parameters
    ----------
    trace : Trace
        Its ``scalers`` gets the line that made each scaler, in the order in which they were first used.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._made: weakref.WeakKeyDictionary[GradScaler, str | None] = weakref.WeakKeyDictionary()
        self._numbers: weakref.WeakKeyDictionary[GradScaler, int] = weakref.WeakKeyDictionary()
        self.waiting: tuple[GradScaler, float] | None = None  # a loss was scaled, and its backward is to come
        self.stepping: GradScaler | None = None  # the scaler whose step runs

    def made(self, scaler: GradScaler, location: str | None) -> None:
        """Note where a scaler was made."""
        self._made[scaler] = location

    def scaled(self, scaler: GradScaler, scale: float) -> None:
        """Note that a loss was multiplied; of which model shows when a backward follows."""
        self.waiting = (scaler, scale)

    def taken(self, own: bool) -> float | None:
        """Return what the loss whose backward has just run was multiplied by; ``own``: it was this model's."""
        waiting, self.waiting = self.waiting, None
        if waiting is None or not own:
            return None
        self.number(waiting[0])
        return waiting[1]

    def number(self, scaler: GradScaler) -> int:
        """Return a scaler's place in ``trace.scalers``."""
        if scaler not in self._numbers:
            self._numbers[scaler] = len(self._trace.scalers)
            self._trace.scalers.append(self._made.get(scaler))
        return self._numbers[scaler]

    def number_of_stepping(self) -> int | None:
        """Return the place of the scaler whose step runs; None for a step without one."""
        return None if self.stepping is None else self.number(self.stepping)

    def knows(self, scaler: GradScaler) -> bool:
        """Say whether a scaler has worked for this model."""
        return scaler in self._numbers


def clip_scale(window: Open, clip_factor: float | None) -> float | None:
    """Return what a window's gradient was multiplied by when it was clipped, by torch or by hand; None: it was not."""
    if window.clip_scale is not None or clip_factor is None:
        return window.clip_scale
    while_scaled = window.hand is not None and (window.hand[1] > SAME or abs(window.hand[0] / clip_factor - 1) <= 1e-3)
    return window.scale / (prod(window.unscaled) if while_scaled else 1.0)
