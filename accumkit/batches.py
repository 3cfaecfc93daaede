"""What a batch may be, and what is done with one: look inside, move it, describe it, notice that it was overwritten."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, default_collate

from accumkit.errors import AccumkitError

LABEL_KEYS = ("labels", "label", "targets", "target", "y")
OUT_OF_MEMORY = (MemoryError, torch.cuda.OutOfMemoryError)  # the second is torch.OutOfMemoryError in newer versions
SAMPLE = 16_384  # entries of a tensor that are copied, at about the most, to notice that it was overwritten


def target_of(batch: Any) -> Tensor:
    """Return the target of a batch: a mapping's labels, a tuple's last entry, or the batch itself."""
    if isinstance(batch, (tuple, list)):
        return batch[-1]
    if isinstance(batch, Mapping):
        for key in LABEL_KEYS:
            if key in batch:
                return batch[key]
        raise AccumkitError(
            f"no target in a batch with the keys {sorted(map(str, batch))}; name it one of {', '.join(LABEL_KEYS)}, "
            "or write an Objective of your own"
        )
    return batch


def examples_in(batch: Any) -> int:
    """Return the number of examples in a batch: the leading size of its first tensor that has one, else 1.

    Raises
    ------
    AccumkitError
        The batch holds no tensor.
    """
    if isinstance(batch, PackedSequence):
        return int(batch.batch_sizes[0])
    return leading_size(tensors_in(batch), batch)


def leading_size(tensors: list[Tensor], batch: Any) -> int:
    """Return the leading size of the first of ``tensors`` that has one, 1 if all are scalars."""
    for tensor in tensors:
        if tensor.dim():
            return tensor.size(0)
    if tensors:
        return 1
    raise AccumkitError(
        f"a batch without a tensor: {type(batch).__name__}; examples are counted by a tensor's leading size, so let "
        "the loader yield tensors, or tuples, lists or mappings of them"
    )


def tensors_in(batch: Any) -> list[Tensor]:
    """Return every tensor in a nest of tuples, lists, mappings, dataclasses and objects that can be moved, in order.

    Numpy arrays are given as tensors that share their memory.
    """
    kind = type(batch)
    if kind is tuple or kind is list:  # of tensors alone, as most batches are: sooner told without a function for each
        for part in batch:
            if type(part) is not Tensor:
                break
        else:
            return list(batch)
    found: list[Tensor] = []
    _collect(batch, found, 16)
    return found


def _collect(part: Any, found: list[Tensor], depth: int) -> None:
    if isinstance(part, Tensor):
        found.append(part)
    elif depth:  # an object may refer to itself
        if isinstance(part, (tuple, list)):
            for inner in part:
                _collect(inner, found, depth - 1)
        elif isinstance(part, Mapping):
            for inner in part.values():
                _collect(inner, found, depth - 1)
        elif hasattr(part, "__array_interface__"):
            if part.dtype.kind in "biufc":
                found.append(torch.from_numpy(part if part.flags.writeable and part.ndim else part.copy()))
        elif (hasattr(part, "to") or is_dataclass(part)) and hasattr(part, "__dict__") and not callable(part):
            for inner in vars(part).values():
                _collect(inner, found, depth - 1)


def move(batch: Any, device: torch.device) -> Any:
    """Return ``batch`` with every tensor in it on ``device``.

    Parameters
    ----------
    batch : object
        A tensor; a tuple, list or mapping of batches, nested as deep as you like; or an object with ``.to(device)``.
        Anything else (a string, a number) is passed on as it is.
    device : torch.device
        Where forward runs.

    Returns
    -------
    object
        A batch of the same kind; the one given is not changed.

    Examples
    --------
    >>> import torch
    >>> move({"x": torch.zeros(2), "name": "a"}, torch.device("meta"))["x"].device.type
    'meta'
    """
    if isinstance(batch, Tensor):
        # Pinned memory may be copied while the host runs on; towards the host torch would not wait, so there we do.
        return batch.to(device, non_blocking=device.type == "cuda")
    if hasattr(batch, "to"):  # before tuples and mappings: a PackedSequence is one, a tokenizer's batch the other
        moved = batch.to(device)
        return batch if moved is None else moved
    if isinstance(batch, MutableMapping):
        moved = copy.copy(batch)  # keeps an OrderedDict or a class of the reader's own what it is
        for key, part in batch.items():
            moved[key] = move(part, device)
        return moved
    if isinstance(batch, Mapping):
        return {key: move(part, device) for key, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move(part, device) for part in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)([move(part, device) for part in batch])
    return batch


def mover(device: torch.device | None, first: Any) -> Callable[[Any], Any] | None:
    """Decide once, on the first batch, how batches get to ``device``; None where there is nothing to do.

    Looking at each batch's device costs as much as the rest of the bookkeeping, and a loader does not change its mind:
    if one did, torch refuses to mix devices, so no wrong number comes of it.
    """
    if device is None:
        return None
    if device.type == "cpu":
        tensors = tensors_in(first)
        if tensors and all(tensor.device == device for tensor in tensors):
            return None
    return lambda batch: move(batch, device)


def describe(batch: Any) -> str:
    """Return the tensors of a batch in words, for errors: "tuple of float32 (4, 64) on cpu, int64 (4,) on cpu"."""
    try:
        tensors = tensors_in(batch)
    except Exception:  # an error is being explained already: do not hide it behind another one
        tensors = []
    parts = [f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)} on {t.device}" for t in tensors[:6]]
    parts += ["..."] if len(tensors) > 6 else []
    kind = type(batch).__name__
    if isinstance(batch, Tensor):
        return f"a tensor, {parts[0]}"
    return f"{kind} of {', '.join(parts)}" if parts else f"{kind} without a tensor"


def may_write_again(loader: Any) -> bool:
    """Return whether fetching a batch can write over an earlier one.

    Going through a list runs no code, and torch's own collation makes every batch anew; of others nothing is known.
    """
    collated = type(loader) is DataLoader and loader.batch_sampler is not None and loader.collate_fn is default_collate
    return type(loader) not in (list, tuple) and not collated


def remember(tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor, Tensor, int | None]]:
    """Return each tensor, or a view of parts of a large one, with a copy of what it holds now, and its version."""
    views = [tensor if tensor.numel() <= SAMPLE else _spread(tensor) for tensor in tensors]
    return [
        (view, view.clone(), tensor, None if view is tensor else _version(tensor))
        for view, tensor in zip(views, tensors, strict=True)
        if view.layout is torch.strided
    ]


def _version(tensor: Tensor) -> int | None:
    """Return what any change by torch raises, and so tells of changes that the parts do not show.

    None where there is none, or where it is raised by changes elsewhere in the memory of which this is a view.
    """
    return None if tensor.is_inference() or tensor._is_view() else tensor._version


def changed(remembered: Sequence[tuple[Tensor, Tensor, Tensor, int | None]]) -> bool:
    """Return whether a tensor holds something else than when it was remembered.

    Contents are compared, not addresses: a batch yielded twice, slices that overlap and memory-mapped data are fine,
    while a buffer that is filled again is seen however it was written (through numpy too, which moves no version).
    """
    elsewhere = []
    for now, then, tensor, version in remembered:
        if version is not None and tensor._version != version:
            return True
        if now.is_cpu:
            if not torch.equal(now, then) and _differ(now, then):
                return True
        elif not now.is_meta:
            elsewhere.append(_differ(now, then))
    return bool(elsewhere) and bool(torch.stack([d.to(elsewhere[0].device) for d in elsewhere]).any())  # one wait


def _spread(tensor: Tensor) -> Tensor:
    if tensor.layout is not torch.strided:
        return tensor
    longest = max(range(tensor.dim()), key=tensor.shape.__getitem__)
    step = min(tensor.numel() // SAMPLE + 1, tensor.shape[longest])
    return tensor[(slice(None),) * longest + (slice(step // 2, None, step),)]


def _differ(now: Tensor, then: Tensor) -> Tensor:
    return ((now != then) & ~((now != now) & (then != then))).any()  # NaN is unequal to itself
