"""What a batch may be, and what is done with one: look inside, move it, describe it, notice that it was overwritten."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from functools import lru_cache
from math import prod
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, default_collate

from accumkit.errors import AccumkitError

OUT_OF_MEMORY = (MemoryError, torch.cuda.OutOfMemoryError)  # the second is torch.OutOfMemoryError in newer versions
SAMPLE = 16_384  # entries of a tensor that are copied, at the most, to notice that it was overwritten
SUMS = 4093  # sums over a large tensor, each of entries this far apart: a prime, and so no row's or channel's length
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
PARTS = {  # what a layout other than the usual one keeps a tensor in
    torch.sparse_coo: ("_indices", "_values"), torch.jagged: ("offsets", "values"),
    **dict.fromkeys((torch.sparse_csr, torch.sparse_bsr), ("crow_indices", "col_indices", "values")),
    **dict.fromkeys((torch.sparse_csc, torch.sparse_bsc), ("ccol_indices", "row_indices", "values")),
}  # fmt: skip


def examples_in(batch: Any, tensors: list[Tensor] | None = None) -> int:
    """Return the number of examples in a batch: the leading size of its first tensor that has one, else 1.

    Of a PackedSequence, its lines. ``tensors``: those in the batch, where they are known.

    Raises
    ------
    AccumkitError
        The batch holds no tensor.
    """
    first = (
        next(iter(batch.values() if type(batch) is dict else batch), None) if type(batch) in (tuple, dict) else batch
    )
    if type(first) is Tensor and first.dim():  # as in most batches
        return first.size(0)
    size = _leading(batch, 16)
    return leading_size(tensors_in(batch) if tensors is None else tensors, batch) if size is None else size


def _leading(part: Any, depth: int) -> int | None:
    if isinstance(part, PackedSequence):  # its first tensor leads with the time steps of all lines
        return int(part.batch_sizes[0])
    if depth and isinstance(part, (tuple, list, Mapping)):
        inner = part.values() if isinstance(part, Mapping) else part
        return next((size for size in (_leading(each, depth - 1) for each in inner) if size is not None), None)
    return part.size(0) if isinstance(part, Tensor) and part.dim() else None


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
        if isinstance(part, (tuple, list, Mapping)):
            for inner in part.values() if isinstance(part, Mapping) else part:
                _collect(inner, found, depth - 1)
        elif hasattr(part, "__array_interface__"):
            if getattr(getattr(part, "dtype", None), "kind", None) in {*"biufc"}:  # an image of PIL's has none
                found.append(_over(part))
        elif (hasattr(part, "to") or is_dataclass(part)) and hasattr(part, "__dict__") and not callable(part):
            for inner in vars(part).values():
                _collect(inner, found, depth - 1)


def _over(array: Any) -> Tensor:
    """Return a tensor over an array's own memory: its bytes, where torch has not its format; turned round, if it is."""
    with suppress(TypeError, ValueError):
        if array.flags.writeable:
            return torch.from_numpy(array)
    numpy = sys.modules["numpy"]  # where there is an array, it is loaded
    array = numpy.asarray(array)[(..., *(slice(None, None, -1 if step < 0 else 1) for step in array.strides))]
    at = {**array.__array_interface__, "strides": array.strides}
    at["data"] = at["data"][0], False  # torch warns of memory that it may not write, and nothing here writes
    holder = SimpleNamespace(__array_interface__=at, array=array)
    try:
        return torch.from_numpy(numpy.asarray(holder))
    except (TypeError, ValueError):
        at.update(typestr="|u1", shape=(*array.shape, array.itemsize), strides=(*array.strides, 1))
        return torch.from_numpy(numpy.asarray(holder))


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


def remember(tensors: Sequence[Tensor]) -> list[tuple[Tensor | None, Tensor, Tensor, int | None]]:
    """Return each tensor, or a view of parts of a large one, with a copy of what it holds now, and its version.

    Where the parts mostly hold one value (one-hot rows), sums over the whole tensor follow, with None for the view.
    """
    kept = []
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            kept += remember([getattr(tensor, part)() for part in PARTS.get(tensor.layout, ())])
        elif tensor.numel() <= SAMPLE:
            kept.append((tensor, tensor.clone(), tensor, None))
        else:
            view = tensor[_spread(tensor.shape)]
            kept.append((view, view.clone(), tensor, _version(tensor)))
            flat = kept[-1][1].flatten()
            if tensor.is_cpu and 2 * int((flat[1:] == flat[:-1]).sum()) > flat.numel():
                kept.append((None, _sums(tensor), tensor, None))
    return kept


def _version(tensor: Tensor) -> int | None:
    """Return what any change by torch raises, and so tells of changes that the parts do not show.

    None where there is none, or where it is raised by changes elsewhere in the memory of which this is a view.
    """
    return None if tensor.is_inference() or tensor._is_view() else tensor._version


def changed(remembered: Sequence[tuple[Tensor | None, Tensor, Tensor, int | None]]) -> bool:
    """Return whether a tensor holds something else than when it was remembered.

    Contents are compared, not addresses: a batch yielded twice, slices that overlap and memory-mapped data are fine,
    while a buffer that is filled again is seen however it was written (through numpy too, which moves no version).
    """
    elsewhere = []
    for now, then, tensor, version in remembered:
        if version is not None and tensor._version != version:
            return True
        now = _sums(tensor) if now is None else now
        if now.is_cpu:
            if not torch.equal(now, then) and _differ(now, then):
                return True
        elif not now.is_meta:
            elsewhere.append(_differ(now, then))
    return bool(elsewhere) and bool(torch.stack([d.to(elsewhere[0].device) for d in elsewhere]).any())  # one wait


@lru_cache(maxsize=64)
def _spread(shape: torch.Size) -> tuple[slice, ...]:
    """Return where a large tensor is looked at: in every row, where they are not too many, at the first entry and on.

    A smaller batch may fill the first rows of a buffer alone.
    """
    steps, sizes = [1] * len(shape), list(shape)
    while prod(sizes) > SAMPLE:
        along = max(range(len(sizes)), key=lambda dim: (dim > 0 and sizes[dim] > 1, sizes[dim]))
        steps[along] = 2 * steps[along] + 1  # odd, for what is laid out in pairs and powers of two
        sizes[along] = -(-shape[along] // steps[along])
    return tuple(slice(None, None, step) for step in steps)


def _sums(tensor: Tensor) -> Tensor:
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    flat = flat.view(BITS.get(flat.dtype.itemsize, flat.dtype))  # whole numbers: their sum depends on no order
    rest = flat.numel() % SUMS
    return torch.cat([flat[rest:].view(-1, SUMS).sum(0, dtype=flat.dtype), flat[:rest]])


def _differ(now: Tensor, then: Tensor) -> Tensor:
    return ((now != then) & ~((now != now) & (then != then))).any()  # NaN is unequal to itself
