"""Windows: the micro-batches of one update, and how many units they hold together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from accumkit import batches as _batches
from accumkit.arguments import check_accumulation_steps, check_objective, check_place, check_tail
from accumkit.batches import examples_in, tensors_in
from accumkit.errors import LEAST, MOST, AccumkitError, as_number, empty, no_count, said, several, single_examples
from accumkit.objective import Objective, target_of


class Window:
    """The micro-batches of one update.

    Iterating gives the batches, each moved to the device when it is reached; a window can be gone through several
    times (an optimizer with a closure needs that) until the next one is fetched.

    Attributes
    ----------
    count : int or float
        Units in the window: what its summed loss is divided by.
    counts : list of int or float
        Units in each micro-batch; a micro-batch's fair share is its count / the window's.
    examples : int
        Examples in the window.
    index : int
        Number of the window, from 0.
    is_tail : bool
        Whether the data ended before the window was full.

    Examples
    --------
    >>> import accumkit as ak, torch
    >>> batches = [(torch.zeros(n, 2), torch.zeros(n, dtype=torch.long)) for n in (4, 3)]
    >>> next(ak.windows(batches, 2, ak.classification()))
    Window 1: 2 micro-batches, 7 examples, count 7
    """

    __slots__ = ("_buffer", "_move", "count", "counts", "examples", "index", "is_tail")

    def __init__(self, index: int) -> None:
        self.index = index
        self.count: int | float = 0
        self.counts: list[int | float] = []
        self.examples = 0
        self.is_tail = False
        self._buffer: list[Any] | None = []
        self._move: Callable[[Any], Any] | None = None

    def __len__(self) -> int:
        return len(self.counts)

    def __iter__(self) -> Iterator[Any]:
        if self._buffer is None:
            raise AccumkitError(
                f"window {self.index + 1} was let go when the next one was fetched, so that only one is held in "
                "memory; use each window inside the for loop, before the next"
            )
        return iter(self._buffer) if self._move is None else map(self._move, self._buffer)

    def __repr__(self) -> str:
        tail = ", tail" if self.is_tail else ""
        held = f"{several(len(self), 'micro-batch')}, {several(self.examples, 'example')}"
        return f"Window {self.index + 1}: {held}, count {self.count}{tail}"

    def add(self, batch: Any, objective: Objective) -> list[torch.Tensor]:
        """Count a batch into the window, and return its tensors."""
        try:
            tensors = tensors_in(batch)
            examples = examples_in(batch, tensors)
            count = objective.count(batch)
            if type(count) is not int:
                count = as_number(count)
        except Exception as error:
            raise uncountable(error, batch, self.where()) from error
        if not (LEAST <= count <= MOST or count == 0):
            raise no_count(count, self.where())
        self.examples += examples
        self.counts.append(count)
        self.count += count
        return tensors

    def where(self) -> str:
        """Return the place of the micro-batch that is being fetched, for errors."""
        return f"window {self.index + 1}, micro-batch {len(self.counts) + 1}"

    def fetch_from(self, iterator: Iterator) -> Any:
        """Return the next batch, or say where the loader failed."""
        try:
            return next(iterator)
        except (StopIteration, *_batches.OUT_OF_MEMORY):
            raise
        except AccumkitError as error:  # of ours already: what was given is no loader of batches
            raise AccumkitError(f"{self.where()}: {said(error)}") from error
        except Exception as error:
            raise AccumkitError(
                f"{self.where()}: the loader raised {type(error).__name__}: {said(error)}; make it give every batch "
                "when it is gone through by itself"
            ) from error

    def let_go(self) -> None:
        """Drop the batches; the numbers stay."""
        self._buffer = None


def fetch(loader: Iterable) -> Iterator:
    """Return an iterator over a loader's batches; every batch that accumkit fetches comes through here."""
    return iter(loader)


def uncountable(error: Exception, batch: Any, where: str) -> AccumkitError:
    """Return the error for a batch whose units or examples cannot be counted."""
    if isinstance(error, AccumkitError):
        return AccumkitError(f"{where}: {said(error)}")
    return AccumkitError(
        f"{where}: objective.count failed with {type(error).__name__}: {said(error)}. The batch was "
        f"{_batches.describe(batch)}; make count= fit such a batch, or the loader yield what count= expects"
    )


def windows(
    loader: Iterable,
    accumulation_steps: int,
    objective: Objective,
    device: torch.device | str | int | None = None,
    tail: str = "step",
) -> Iterator[Window]:
    """Yield the windows of a loader: ``accumulation_steps`` micro-batches each, and a shorter tail.

    Parameters
    ----------
    loader : iterable
        Gives batches; needs no length and is gone through once. At most one window of it is held, where it came from
        (for a DataLoader: in host memory).
    accumulation_steps : int
        Micro-batches in a full window, 1 or more.
    objective : Objective
        Its ``count`` says how many units a batch holds.
    device : torch.device, str or int, optional
        Where each batch is moved when it is reached, one at a time; by default batches stay where they are.
    tail : {"step", "drop"}
        Whether the last, shorter window is given or left out.

    Yields
    ------
    Window
        With ``count``, ``counts``, ``examples``, ``is_tail``, a length, and the batches by iterating.

    Raises
    ------
    AccumkitError
        For arguments that cannot work, a data set or one batch in place of a loader, a loader that gives no batch, a
        count that is no count, and a loader that fills memory again which a batch of the same window still uses.

    Examples
    --------
    >>> import accumkit as ak, torch
    >>> data = torch.zeros(19, 2), torch.zeros(19, dtype=torch.long)
    >>> loader = zip(*(part.split(4) for part in data))
    >>> [window.count for window in ak.windows(loader, 3, ak.classification())]
    [12, 7]
    """
    steps = check_accumulation_steps(accumulation_steps)
    check_tail(tail)
    check_objective(objective)
    place = check_place(device)
    return _kept(gather(loader, steps, objective, place), tail, place)


def _kept(gathered: Iterator[Window], tail: str, place: torch.device | None) -> Iterator[Window]:
    for window in gathered:
        if window.is_tail and tail == "drop":
            return
        pinned = place is not None and place.type == "cuda" and any(t.is_pinned() for t in tensors_in(window._buffer))
        yield window
        if pinned:  # its batches may still be on their way over: do not let the loader write over them
            torch.cuda.current_stream(place).synchronize()


def gather(loader: Iterable, steps: int, objective: Objective, device: torch.device | None) -> Iterator[Window]:
    """Yield every window, the tail too; the arguments have been checked."""
    iterator = batches_of(loader)
    move, index, unsure = None, 0, _batches.may_write_again(loader)
    while True:
        window = Window(index)
        buffer, before, tensors = window._buffer, [], None
        while len(buffer) < steps:
            if unsure and buffer:
                before.append(_batches.remember(tensors))  # before the loader can write over it
            try:
                batch = window.fetch_from(iterator)
            except StopIteration:
                window.is_tail = True
                break
            if index == 0 and not buffer:
                move = _batches.mover(device, batch)
            tensors = window.add(batch, objective)
            buffer.append(batch)
        for number, remembered in enumerate(before, 1):
            if _batches.changed(remembered):
                raise AccumkitError(
                    f"window {index + 1}: micro-batch {number} changed after it was fetched. The loader fills one "
                    "buffer again for later batches, and a window holds several; yield copies (tensor.clone(), "
                    "array.copy())"
                    + (
                        "; with worker processes nothing else helps, for they fill it ahead of the loop"
                        if getattr(loader, "num_workers", 0)
                        else ", or train with buffered=False"
                    )
                )
        if not buffer:
            if index == 0:
                raise empty(loader)
            return
        window._move = move
        batch = buffer = before = tensors = remembered = None  # the window alone holds its batches now
        yield window
        window.let_go()
        if window.is_tail:
            return
        index += 1


def batches_of(loader: Iterable) -> Iterator:
    """Return ``fetch(loader)``, or say that a loader cannot be gone through, or gives no batches."""
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise single_examples(loader)
    tensors = type(loader) is tuple and all(isinstance(part, torch.Tensor) for part in loader)
    if tensors and not all(map(_continues, loader, loader[1:])):
        raise AccumkitError(
            f"the loader is a tuple of {len(loader)} tensors, as one batch is, and each of them would be taken for a "
            "batch; give a list of batches, such as [(tokens, labels)], or, where each tensor is a batch, a list of "
            "them"
        )
    try:
        iterator = iter(fetch(loader))
    except TypeError as error:
        if hasattr(loader, "__iter__") or hasattr(loader, "__getitem__"):
            raise
        raise AccumkitError(
            f"the loader is {type(loader).__name__!r}, which cannot be iterated; give a DataLoader, a list of batches "
            "or any other iterable of batches"
        ) from error
    return _batched(loader, iterator) if isinstance(loader, IterableDataset) else iterator


def _continues(piece: torch.Tensor, following: torch.Tensor) -> bool:
    """Return whether a tensor begins where another ends, as the pieces do that ``split`` and ``chunk`` give."""
    if piece.layout is not torch.strided or following.layout is not torch.strided:
        return False
    apart = following.storage_offset() - piece.storage_offset()
    one = piece.untyped_storage().data_ptr() == following.untyped_storage().data_ptr()
    return one and any(apart == size * step for size, step in zip(piece.shape, piece.stride(), strict=True))


def _batched(loader: IterableDataset, iterator: Iterator) -> Iterator:
    """Give what an iterable data set yields: batches, where the first does not show that it is one example."""
    for number, batch in enumerate(iterator):
        if number == 0 and _one_example(batch):
            raise single_examples(loader)
        yield batch


def _one_example(batch: Any) -> bool:
    try:
        target, examples = target_of(batch), examples_in(batch)
    except Exception:  # what it is instead is said where it is counted
        return False
    return examples > 1 and (isinstance(target, (int, float)) or getattr(target, "ndim", None) == 0)
