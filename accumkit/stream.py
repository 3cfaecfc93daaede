"""Windows that hold nothing: each batch is fetched when it is reached, and the count is known at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import frexp
from typing import Any

import torch
from torch import nn

from accumkit import batches as _batches
from accumkit.objective import Objective
from accumkit.window import Window, batches_of, empty

LIKELY = 256  # micro-batches that a window may be thought to get before it has them


class StreamedWindow(Window):
    """A window that fetches while it is gone through, once; its numbers grow as it goes."""

    __slots__ = ("_first", "_iterator", "_objective", "_steps")

    def __init__(self, index: int, iterator: Iterator, steps: int, objective: Objective) -> None:
        super().__init__(index)
        self._iterator, self._steps, self._objective = iterator, steps, objective
        self._first = self.fetch_from(iterator)  # ahead, so that there is no window where there is no batch

    def __iter__(self) -> Iterator[Any]:
        batch, self._first = self._first, None
        move, steps, objective, iterator = self._move, self._steps, self._objective, self._iterator
        while True:
            self.add(batch, objective)
            yield batch if move is None else move(batch)
            batch = None
            if len(self.counts) == steps:
                return
            try:
                batch = self.fetch_from(iterator)
            except StopIteration:
                self.is_tail = True
                return


def stream(loader: Iterable, steps: int, objective: Objective, device: torch.device | None) -> Iterator[StreamedWindow]:
    """Yield streamed windows, the tail too; each must be gone through before the next is asked for."""
    iterator = batches_of(loader)
    move, index = None, 0
    while True:
        try:
            window = StreamedWindow(index, iterator, steps, objective)
        except StopIteration:
            if index == 0:
                raise empty(loader) from None
            return
        if index == 0:
            move = _batches.mover(device, window._first)
        window._move = move
        yield window
        if window.is_tail:
            return
        index += 1


def divide(parameters: list[nn.Parameter], divisor: float) -> None:
    """Divide the gradients by a number."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if gradients and divisor != 1:
        # One call for all, as torch's own clipping and optimizers do; a number would be made a tensor for each of them.
        torch._foreach_div_(gradients, torch.tensor(divisor, dtype=torch.float64) if gradients[0].is_cpu else divisor)


def provisional_divisor(first_count: float, steps: int) -> float:
    """Return the power of two at or above the count that a window is likely to have.

    Each backward divides by it, and the gradients are divided by what is left (count / it) once, at the end. A power of
    two changes no digit, and low-precision gradients and a scaler's scale stay in the range they have in a buffered
    window. Of many micro-batches ``LIKELY`` at most are reckoned with: the data may end long before, and gradients that
    are divided too far are lost in silence, where those that grow too large are noticed.

    Examples
    --------
    >>> provisional_divisor(4, 3), provisional_divisor(4, 4)
    (16.0, 16.0)
    """
    fraction, exponent = frexp((first_count or 1) * min(steps, LIKELY))
    return 2.0 ** (exponent - (fraction == 0.5))  # a power of two is its own: full windows then need no division
