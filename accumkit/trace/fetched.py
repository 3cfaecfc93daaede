"""Which fetched batch a forward call used: loaders, windows and prefetchers run ahead of it."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from accumkit.objective import tensors_in


@dataclass(slots=True, eq=False)
class Fetched:
    """A batch that some loader yielded, and the pass over the data it came from."""

    batch: Any
    epoch: int
    tensors: list[Tensor]
    used: bool = False


class Fetches:
    """The batches fetched and not yet used up, oldest first."""

    def __init__(self, most: int) -> None:
        """``most``: batches remembered, for loops that fetch and never train on them."""
        self.most = most
        self.queue: list[Fetched] = []
        self.passes = -1
        self.sizes: dict[int, list[int]] = {}  # by pass: batches fetched, and the loader's own length or -1
        self._seen: dict[int, weakref.ref] = {}  # forward's tensors in this pass, where there is no loader

    def start(self, length: int) -> int:
        """Note that a loader begins a pass; return the pass's number."""
        self.passes += 1
        self.sizes[self.passes] = [0, length]
        return self.passes

    def add(self, number: int, batch: Any) -> None:
        """Note a fetched batch."""
        self.sizes[number][0] += 1
        self.queue.append(Fetched(batch, number, tensors_in(batch)))
        if len(self.queue) > self.most:
            del self.queue[0]

    def match(self, given: list[Tensor], examples: int | None) -> Fetched | None:
        """Return the fetched batch that forward was ``given`` tensors of, or None.

        By identity, then by shared memory, then by equal content; a batch that preprocessing has changed
        (moved, normalised, augmented) is the fresh one most like it, the oldest in a tie.
        """
        if not self.queue:
            return None
        for entry in reversed(self.queue):  # nearly always the newest, by identity
            for tensor in entry.tensors:
                for x in given:
                    if x is tensor:
                        return entry
        newest_first = self.queue[::-1]
        fresh_first = sorted(self.queue, key=lambda entry: entry.used)
        for same, entries in ((_shares_memory, newest_first), (_is_equal, fresh_first)):
            for entry in entries:
                if any(same(x, t) for x in given for t in entry.tensors):
                    return entry
        fresh = [e for e in self.queue if not e.used] or self.queue
        sized = [e for e in fresh if e.tensors and (e.tensors[0].shape[:1] or (1,))[0] == examples] or fresh
        if len(sized) == 1 or not given:
            return sized[0]
        return max(sized, key=lambda e: _likeness(given[0], e.tensors))  # max keeps the oldest of equals

    def close_window(self) -> None:
        """Forget the batches that an update has used, and those passed over before them."""
        last = -1
        for i, entry in enumerate(self.queue):
            if entry.used:
                last = i
        del self.queue[: last + 1]

    def restarted(self, given: list[Tensor]) -> bool:
        """Say whether forward was given a tensor object that this pass has met: a list gone through again."""
        for tensor in given:
            known = self._seen.get(id(tensor))
            if known is not None and known() is tensor:
                self._seen.clear()
                self.restarted(given)
                return True
        for tensor in given:
            key = id(tensor)
            self._seen[key] = weakref.ref(tensor, lambda _, key=key: self._seen.pop(key, None))
        return False


def _shares_memory(x: Tensor, t: Tensor) -> bool:
    return x.numel() > 0 and x.data_ptr() == t.data_ptr() and x.data_ptr() != 0


def _is_equal(x: Tensor, t: Tensor) -> bool:
    if x.numel() != t.numel() or x.numel() < 2:
        return False
    if x.dtype == t.dtype and x.device == t.device:
        return torch.equal(x.detach().reshape(-1), t.reshape(-1))
    return torch.equal(x.detach().reshape(-1).to("cpu", torch.float64), t.reshape(-1).to("cpu", torch.float64))


def _likeness(x: Tensor, tensors: list[Tensor]) -> float:
    """Correlation of two tensors of one size, rounded so that near ties go to the oldest; -2 where none fits."""
    best = -2.0
    for t in tensors:
        if t.numel() == x.numel() > 1:
            a, b = (v.detach().reshape(-1).to("cpu", torch.float64) for v in (x, t))
            a, b = a - a.mean(), b - b.mean()
            norm = (a.norm() * b.norm()).item()
            best = max(best, round((a @ b).item() / norm, 2) if norm else -1.0)
    return best
