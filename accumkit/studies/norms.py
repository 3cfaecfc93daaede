"""How far accumulation takes each norm's gradient from that of the big batch, by micro-batch size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accumkit import tasks
from accumkit.objective import AccumkitError
from accumkit.studies import table
from accumkit.studies.layers import commit
from accumkit.studies.nets import KINDS, NETWORKS, kind, net, one_thread

SIZES = (64, 32, 16, 8, 4, 2, 1)
NORMS = ("batch", "group", "layer", "none", "frozen")

WHY_REFUSED = {
    "batch": "with one example, a channel of a fully connected layer has one value: its mean is the value itself and "
    "its variance 0, so all that is left of it is 0, and torch refuses; in a convolution every pixel counts as a "
    "sample, so one example is enough to normalise (it is then normalised by itself, as in InstanceNorm)",
    "instance": "in a fully connected layer each channel of an example has a single value, and normalising it by "
    "itself leaves 0; InstanceNorm needs pixels, so torch refuses",
}


@dataclass(frozen=True)
class Row:
    """One norm: the accumulated gradient against the big batch's, by micro-batch size, for every seed."""

    norm: str  # a key of KINDS
    sizes: tuple[int, ...]
    cosines: tuple[tuple[float, ...], ...]  # by size, then by seed; empty where torch refused
    errors: tuple[tuple[float, ...], ...]  # |accumulated - big batch| / |big batch|, the same way
    refused: dict[int, str]  # by size: torch's own words

    @property
    def title(self) -> str:
        """The norm's name."""
        return KINDS[self.norm].title

    def cosine(self, size: int) -> float | None:
        """Return the mean cosine over seeds at a micro-batch size; None where torch refused it."""
        found = self.cosines[self.sizes.index(size)]
        return fmean(found) if found else None

    def error(self, size: int) -> float | None:
        """Return the largest relative error of all seeds at a micro-batch size; None where torch refused it."""
        return max(self.errors[self.sizes.index(size)], default=None)

    @property
    def exact(self) -> bool:
        """Whether the gradient is the big batch's at every size, for every seed, up to rounding."""
        return not self.refused and all(error < 1e-12 for errors in self.errors for error in errors)

    @property
    def why(self) -> str:
        """Why torch refused a size, in words; empty where it refused none."""
        return WHY_REFUSED["instance" if self.norm == "instance" else "batch"] if self.refused else ""


@dataclass(frozen=True, repr=False)
class Comparison:
    """What :func:`compare` found; prints as a table of cosines and one of errors."""

    network: str
    window: int
    seeds: int
    rows: tuple[Row, ...]

    def row(self, norm: str) -> Row:
        """Return the row of a norm."""
        return next(row for row in self.rows if row.norm == norm)

    def __repr__(self) -> str:
        return table.plain(*self._table())

    def _repr_html_(self) -> str:
        return table.html(*self._table())

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]], str]:
        sizes = self.rows[0].sizes if self.rows else ()
        cells = [(row.title, *(_cell(row, i) for i in range(len(sizes))), _worst(row)) for row in self.rows]
        note = (
            f"Cosine between accumulated and big-batch gradient: mean ± standard deviation over {self.seeds} seeds; "
            f"{NETWORKS[self.network]} network, window of {self.window} digits, float64."
        )
        note += "".join(f" Refused: {why}." for why in dict.fromkeys(row.why for row in self.rows if row.refused))
        return ("micro-batch size", *map(str, sizes), "largest error"), cells, note


def compare(
    norms: Sequence[str] = NORMS,
    micro_batch_sizes: Sequence[int] = SIZES,
    window: int = 64,
    seeds: int = 5,
    network: str = "mlp",
    groups: int = 4,
    ghost: int = 8,
) -> Comparison:
    """Compare the accumulated gradient of one window with one backward over all of it, norm by norm.

    The loop is right: summed losses, divided by the window's count. What is left is what the norm does.

    Parameters
    ----------
    norms : sequence of str
        Of "batch", "group", "layer", "instance", "none", "frozen", "ghost", "deferred".
    micro_batch_sizes : sequence of int
        From 1 to the window; one that does not divide it has a short last micro-batch.
    window : int
        Examples in the window, handwritten digits.
    seeds : int
        Networks and windows to repeat it with.
    network : {"mlp", "cnn"}
    groups, ghost : int
        Groups of GroupNorm; examples in a ghost batch.

    Returns
    -------
    Comparison

    Raises
    ------
    AccumkitError
        A norm or network that is not known, or numbers out of range.

    Examples
    --------
    >>> from accumkit.studies import norms
    >>> found = norms.compare(("batch", "group"), (64, 2), seeds=2)
    >>> found.row("group").exact, found.row("batch").cosine(2) < 0.5
    (True, True)
    """
    setting = dict(micro_batch_sizes=micro_batch_sizes, window=window, seeds=seeds, network=network, groups=groups)
    rows = tuple(row for row in measure(norms, ghost=ghost, **setting) if row is not None)
    return Comparison(network, window, seeds, rows)


def measure(
    norms: Sequence[str] = NORMS,
    micro_batch_sizes: Sequence[int] = SIZES,
    window: int = 64,
    seeds: int = 5,
    network: str = "mlp",
    groups: int = 4,
    ghost: int = 8,
) -> Iterator[Row | None]:
    """Do what :func:`compare` does in small pieces, so that others can work in between and show what is ready.

    Yields
    ------
    Row or None
        A norm's row once it is ready; None after each piece of work on it, some tens of milliseconds.
    """
    sizes = tuple(micro_batch_sizes)
    _check(norms, sizes, window, seeds)
    data = tasks.digits(dtype=torch.float64)
    for norm in norms:
        cosines: dict[int, list[float]] = {size: [] for size in sizes}
        errors: dict[int, list[float]] = {size: [] for size in sizes}
        refused: dict[int, str] = {}
        for seed in range(seeds):
            order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:window]
            batch = data[order]
            # One model will do for all sizes: in training mode no gradient depends on what ran before.
            model = net(norm, network, seed, groups=groups, ghost=ghost)
            try:
                big = gradient(model, batch, window)
            except ValueError as refusal:  # torch's own; an AccumkitError is one too, and says what to change
                if isinstance(refusal, AccumkitError):
                    raise
                refused = dict.fromkeys(sizes, str(refusal))
                break
            for size in sizes:
                if size in refused:
                    continue
                try:
                    small = gradient(model, batch, size)
                except ValueError as refusal:
                    refused[size] = str(refusal)
                else:
                    cosines[size].append(float(small @ big / (small.norm() * big.norm())))
                    errors[size].append(float((small - big).norm() / big.norm()))
                yield None
        by_size = [tuple(tuple(found[size]) for size in sizes) for found in (cosines, errors)]
        yield Row(norm, sizes, *by_size, refused)


def gradient(model: nn.Module, batch: tuple[Tensor, Tensor], micro_batch_size: int) -> Tensor:
    """Return the gradient of the mean loss over a window, accumulated over micro-batches of a size.

    Parameters
    ----------
    model : nn.Module
    batch : tuple of Tensor
        Images and labels of the whole window.
    micro_batch_size : int
        The window's own size for the big batch.

    Returns
    -------
    Tensor of shape (parameters,)
    """
    images, labels = batch
    with one_thread():
        model.zero_grad()
        for x, y in zip(images.split(micro_batch_size), labels.split(micro_batch_size), strict=True):
            (F.cross_entropy(model(x), y, reduction="sum") / len(labels)).backward()
        commit(model)
        return torch.cat([p.grad.flatten() for p in model.parameters()])


def _check(norms: Sequence[str], sizes: tuple[int, ...], window: int, seeds: int) -> None:
    for norm in norms:
        kind(norm)
    if not 2 <= window <= 1797:
        raise AccumkitError(f"window={window!r}: give a whole number from 2 to 1,797, the digits that there are")
    wrong = [size for size in sizes if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= window]
    if wrong or not sizes:
        raise AccumkitError(f"micro_batch_sizes={sizes!r}: give at least one, each from 1 to the window's {window}")
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise AccumkitError(f"seeds={seeds!r}: give a whole number of at least 1")


def _cell(row: Row, place: int) -> str:
    return table.spread(row.cosines[place]) if row.cosines[place] else "refused"


def _worst(row: Row) -> str:
    errors = [error for errors in row.errors for error in errors]
    return table.small(max(errors)) if errors else "-"
