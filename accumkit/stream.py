"""Windows that hold nothing: each batch is fetched when it is reached, and the count is known at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import frexp
from typing import Any

import torch

from accumkit import batches as _batches
from accumkit.objective import Objective
from accumkit.window import Window, batches_of, empty


class StreamedWindow(Window):
    """A window that fetches while it is gone through, once; its numbers grow as it goes."""

    __slots__ = ("_first", "_iterator", "_objective", "_steps")

    def __init__(self, index: int, iterator: Iterator, steps: int, objective: Objective) -> None:
        super().__init__(index)
        self._iterator, self._steps, self._objective = iterator, steps, objective
        self._first = self.fetch_from(iterator)  # ahead, so that there is no window where there is no batch

    def __iter__(self) -> Iterator[Any]:
        batch, self._first = self._first, None
        while True:
            self.add(batch, self._objective)
            yield batch if self._move is None else self._move(batch)
            batch = None
            if len(self.counts) == self._steps:
                return
            try:
                batch = self.fetch_from(self._iterator)
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


def provisional_divisor(first_count: float, steps: int) -> float:
    """Return a power of two near the count that a window is likely to have.

    Each backward divides by it, and the gradients are divided by what is left (count / it) once, at the end. A power of
    two changes no digit, and low-precision gradients and a scaler's scale stay in the range they have in a buffered
    window.

    Examples
    --------
    >>> provisional_divisor(4, 3)
    16.0
    """
    return 2.0 ** frexp((first_count or 1) * steps)[1]
