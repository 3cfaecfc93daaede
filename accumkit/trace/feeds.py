"""The functions that see what a loop is fed: a DataLoader's passes and batches, and those of any other iterable."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, dataloader

from accumkit.trace.listeners import Listener, call, listeners
from accumkit.trace.where import caller

_passes: weakref.WeakKeyDictionary[Any, list[tuple[Listener, int]]] = weakref.WeakKeyDictionary()


def loader_iter(original: Callable) -> Callable:
    """See a DataLoader begin a pass over the data."""

    def __iter__(self: DataLoader) -> Any:
        iterator = original(self)
        if isinstance(iterator, dataloader._BaseDataLoaderIter):  # a subclass's generator comes here by itself
            _passes[iterator] = _begin(self)
        return iterator

    return __iter__


def loader_next(original: Callable) -> Callable:
    """See a DataLoader's batch."""

    def __next__(self: Any) -> Any:
        batch = original(self)
        begun = _passes.get(self)
        if begun:
            _fetched(begun, batch, caller())
        return batch

    return __next__


def _begin(loader: Any) -> list[tuple[Listener, int]]:
    try:
        length = len(loader)
    except TypeError:  # a stream
        length = -1
    size = getattr(loader, "batch_size", None)
    size = size if isinstance(size, int) else None
    return [(listener, call(listener, "pass_begins", length, size)) for listener in listeners]


def fetch(original: Callable) -> Callable:
    """See what ``ak.windows`` fetches from anything but a DataLoader, which is seen by itself."""

    def fetch(loader: Any) -> Any:
        return original(loader) if isinstance(loader, DataLoader) else told(original(loader), loader)

    return fetch


def told(iterator: Any, source: Any) -> Any:
    """Yield from an iterator that is no DataLoader's, telling the open watches."""
    begun = _begin(source)
    for batch in iterator:
        if begun:
            _fetched(begun, batch, caller())
        yield batch


def _fetched(begun: list[tuple[Listener, int]], batch: Any, line: str | None) -> None:
    for listener, number in begun:
        try:
            listener.fetched(number, batch, line)
        except Exception as error:
            listener.failed(error)
