"""Which fetched batch a forward call used: loaders, windows and prefetchers run ahead of it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from math import inf
from typing import Any

import torch
from torch import Tensor

from accumkit.objective import tensors_in
from accumkit.trace.earlier import Earlier, weakly

UNLIKE = 0.2  # 1 - correlation up to which a tensor may be a batch that preprocessing has changed
SAME = 1e-7  # the same up to a change as of units, or to half precision
NEARER = 4  # times as near as the batch that is due another one must be to be taken for it
BY_CHANCE = 1e8  # and, where these two are much like each other, as rows of a table are, this one's root by examples


@dataclass(slots=True, eq=False)
class Fetched:
    """A batch that some loader yielded, and the pass over the data it came from."""

    batch: Any
    epoch: int
    tensors: list[Tensor]
    size: int | None = None  # examples in a batch, where the loader says
    used: bool = False
    evaluated: bool = False  # fed forward without gradients
    rows_used: int = 0  # of a batch that the loop splits
    repeated: bool = False  # used in an earlier window of this pass too

    def part(self, begin: int, end: int) -> Fetched:
        """Return some rows of it; the loop splits its batches."""
        self.used, self.rows_used = True, end
        rows = self.tensors[0].shape[0]
        batch = _rows(self.batch, rows, begin, end)
        return Fetched(batch, self.epoch, tensors_in(batch), used=True)


def _rows(part: Any, rows: int, begin: int, end: int) -> Any:
    if isinstance(part, Tensor):
        return part[begin:end] if part.dim() and part.shape[0] == rows else part
    if isinstance(part, Mapping):
        return {key: _rows(value, rows, begin, end) for key, value in part.items()}
    if isinstance(part, (tuple, list)):
        parts = [_rows(value, rows, begin, end) for value in part]
        return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)
    return part


class Fetches:
    """The batches fetched and not yet used up, oldest first."""

    def __init__(self, most: int, remembers: bool = True) -> None:
        """``most``: batches kept where none is trained on; ``remembers``: finds those the loop keeps longer."""
        self.most, self.remembers = most, remembers
        self.queue: list[Fetched] = []
        self.torn: set[int] = set()  # passes of which batches had to be forgotten unused: order says nothing there
        self.torn_pass = -1  # that of the last forward, where it fits no batch that is kept
        self.earlier = Earlier(most)
        self.done: dict[int, int] = {}  # by pass: batches used in windows that are closed
        self.next_pass: dict[int, int] = {}  # over the list of what a pass had fetched
        self.whole: dict[int, int] = {}  # by such a pass: batches in the list
        self.ahead: bool | None = None  # the loop trains on batches after it fetched others; None: on nothing yet
        self.passes = -1
        self.sizes: dict[int, list[int]] = {}  # by pass: batches fetched, and the loader's own length or -1
        self.batch_sizes: dict[int, int | None] = {}
        self._seen: dict[int, weakref.ref] = {}  # forward's tensors in this pass, where there is no loader
        self._most_seen = most

    def start(self, length: int, size: int | None) -> int:
        """Note that a loader of ``length`` batches of ``size`` examples begins a pass; return the pass's number."""
        if not self.queue:
            self.torn.clear()
        self.passes += 1
        self.batch_sizes[self.passes] = size
        self.sizes[self.passes] = [0, length]
        return self.passes

    def add(self, number: int, batch: Any) -> None:
        """Note a fetched batch."""
        self.sizes[number][0] += 1
        self.queue.append(Fetched(batch, number, tensors_in(batch), self.batch_sizes[number]))
        if len(self.queue) > self.most:
            if not self.queue[0].used and not self.queue[0].evaluated:
                self.torn.add(self.queue[0].epoch)
            self._forget(1)

    def use(self, entry: Fetched) -> None:
        """Note that a batch, or a part of one, is trained on."""
        entry.used = True
        newest = next((e for e in reversed(self.queue) if not e.evaluated), entry)
        self.ahead = bool(self.ahead) or not newest.used

    def match(self, given: list[Tensor], examples: int | None, trained: bool = True) -> Fetched | None:
        """Return the fetched batch, or the part of one, that forward was ``given`` tensors of; None if none fits.

        By identity, also where the loop alone keeps it, then by shared memory, then by equal content, be it used
        already or not; a batch that preprocessing has changed (moved, normalised, augmented) is the next one of its
        size, unless another that is not yet used is clearly nearer, or one that is used is the same in other units.
        Where batches of that pass had to be forgotten, only what is the same in other units is taken for it.

        ``trained``: with gradients, which an evaluation has not.
        """
        for entry in reversed(self.queue):  # nearly always the newest, by identity
            for tensor in entry.tensors:
                for x in given:
                    if x is tensor:
                        return entry
        entry, self.torn_pass = self._again(given, trained), -1
        if entry is not None:
            return entry
        newest = not trained or self.ahead is False
        if not given:  # text, say: nothing to compare
            due = _due(self.queue, newest) if self.queue else None
            return None if due is None or self._is_torn(due) else due
        fresh_first = sorted(self.queue, key=lambda entry: (entry.used, entry.evaluated))
        for find, entries in ((_shared, self.queue[::-1]), (_equal, fresh_first)):
            for entry in entries:
                found = find(given, entry)
                if found is not None:
                    return found
        sized = [e for e in self.queue if e.tensors and (e.tensors[0].shape[:1] or (1,))[0] == examples]
        if not sized:
            return None
        due = _due(sized, newest)  # a loop that fetches one by one does not go back
        if self._is_torn(due):
            return next((e for e in sized if given[0].numel() > 2 and _off(given[0], e.tensors) <= SAME), None)
        return _nearest(given[0], due, [e for e in sized if e is not due and (self.ahead or due.used or not e.used)])

    def close_window(self) -> None:
        """Forget the batches that an update has used, and those passed over before them."""
        last = -1
        for i, entry in enumerate(self.queue):
            if entry.used:
                last = i
        self._forget(last + 1)
        if not self.queue:
            self.torn.clear()

    def _forget(self, number: int) -> None:
        gone = [self._let_go(entry) for entry in self.queue[:number]]
        del self.queue[:number]
        if self.remembers:
            self.earlier.keep(gone)

    def _let_go(self, entry: Fetched) -> tuple:
        if entry.used and not entry.repeated:
            self.done[entry.epoch] = self.done.get(entry.epoch, 0) + 1
        return *weakly(entry.batch, entry.tensors), entry.epoch, entry.size, entry.used

    def _is_torn(self, due: Fetched) -> bool:
        self.torn_pass = due.epoch if due.epoch in self.torn else -1
        return self.torn_pass >= 0

    def _again(self, given: list[Tensor], trained: bool) -> Fetched | None:
        """Return a batch that is kept by the loop alone, in a list, say; used once more, it may begin a new pass."""
        known = self.earlier.find(given)
        batch = None if known is None else known.again()
        if batch is None:
            return None
        entry = Fetched(batch, known.epoch, tensors_in(batch), known.size, known.used)
        if trained:
            if known.used:
                entry.epoch = self._pass_after(known.epoch)
                entry.repeated = entry.epoch == known.epoch
                self.sizes[entry.epoch][0] += not entry.repeated
            if len(self.queue) >= 2 * self.most:  # in a window without end
                self._forget(1)
            self.queue.insert(0, entry)
        return entry

    def _pass_after(self, number: int) -> int:
        """Return the pass in which a batch used in a pass is used again: the same, until all of a list have been."""
        if number not in self.next_pass:
            fetched, length = self.sizes[number]
            listed = self.whole.get(number, fetched if fetched == length or (length < 0 and self.ahead) else inf)
            used = self.done.get(number, 0) + sum(e.used and e.epoch == number and not e.repeated for e in self.queue)
            if used >= listed:
                self.next_pass[number] = self.start(-1, self.batch_sizes[number])
                self.whole[self.passes] = listed
        return self.next_pass.get(number, number)

    def restarted(self, given: list[Tensor]) -> bool:
        """Say whether forward was given a tensor object that this pass has met: a list gone through again."""
        for tensor in given:
            known = self._seen.get(id(tensor))
            if known is not None and known() is tensor:
                self._seen.clear()
                self.restarted(given)
                return True
        for tensor in given:
            self._seen[id(tensor)] = weakref.ref(tensor)
        if len(self._seen) > self._most_seen:  # references to tensors that are gone stay until here
            self._seen = {key: ref for key, ref in self._seen.items() if ref() is not None}
            self._most_seen = 2 * len(self._seen) + self.most
        return False


def _shared(given: list[Tensor], entry: Fetched) -> Fetched | None:
    """Return the entry whose memory forward was given, or the rows of it that it was given."""
    for t in entry.tensors:
        for x in given:
            if not x.numel() or x.untyped_storage().data_ptr() != t.untyped_storage().data_ptr():
                continue
            if x.numel() == t.numel():
                if x.data_ptr() == t.data_ptr():
                    return entry
            elif x.dim() and t.dim() and x.shape[0] < t.shape[0] and x.shape[1:] == t.shape[1:] and t.stride(0):
                begin, rest = divmod(x.storage_offset() - t.storage_offset(), t.stride(0))
                if not rest and 0 <= begin <= t.shape[0] - x.shape[0]:
                    return entry.part(begin, begin + x.shape[0])
    return None


def _equal(given: list[Tensor], entry: Fetched) -> Fetched | None:
    """Return the entry with the content that forward was given, or its next rows."""
    for t in entry.tensors:
        for x in given:
            if x.numel() == t.numel() > 1:
                if _same_content(x, t):
                    return entry
            elif x.dim() and t.dim() and x.numel() > 1 and x.shape[1:] == t.shape[1:]:
                end = entry.rows_used + x.shape[0]
                if end <= t.shape[0] and _same_content(x, t[entry.rows_used : end]):
                    return entry.part(entry.rows_used, end)
    return None


def _same_content(x: Tensor, t: Tensor) -> bool:
    if x.dtype == t.dtype and x.device == t.device:
        return torch.equal(x.detach().reshape(-1), t.reshape(-1))
    return torch.equal(x.detach().reshape(-1).to("cpu", torch.float64), t.reshape(-1).to("cpu", torch.float64))


def _due(entries: list[Fetched], newest: bool) -> Fetched:
    """Return which of some batches a loop comes to next; ``newest``: it passes over those that it fetched before."""
    waiting = list(takewhile(lambda e: not e.used, reversed(entries)))
    waiting = [e for e in waiting if not e.evaluated] or waiting or entries[-1:]  # used again, where none waits
    return waiting[0 if newest else -1]


def _nearest(x: Tensor, due: Fetched, others: list[Fetched]) -> Fetched:
    """Return the batch that is due, or another one that is clearly nearer to what forward was given.

    Augmented tensors of a few examples may be nearer to a wrong batch than to their own, so order comes first.
    """
    if not others:
        return due
    off = [_off(x, e.tensors) for e in others]
    off = [3.0 if e.used and not due.used and o > SAME else o for e, o in zip(others, off, strict=True)]
    least = min(off)
    best = others[off.index(least)]
    if least > UNLIKE:
        return due
    between = min(_off(t, due.tensors) for t in best.tensors if t.numel() == x.numel())
    times = NEARER if between > UNLIKE else max(NEARER, BY_CHANCE ** (1 / max(1, x.shape[0] if x.dim() else 1)))
    return best if least * times < _off(x, due.tensors) else due


def _off(x: Tensor, tensors: list[Tensor]) -> float:
    """Return 1 - the correlation of a tensor with the nearest of some that are of its size; 3 where none is."""
    least = 3.0
    for t in tensors:
        if t.numel() == x.numel() > 1:
            a, b = (v.detach().reshape(-1).to("cpu", torch.float64) for v in (x, t))
            a, b = a - a.mean(), b - b.mean()
            norm = (a.norm() * b.norm()).item()
            least = min(least, 1 - (a @ b).item() / norm if norm else 2.0)
    return least
