"""Training on the digits with a fixed window: validation error by norm and micro-batch size, in steps one can stop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accumkit import tasks
from accumkit.objective import AccumkitError
from accumkit.studies import table
from accumkit.studies.nets import KINDS, kind, net, one_thread

TRAINED = 1437  # digits to train on; the other 360 are held out
COST_OF_UPDATE = 1.0  # micro-batches' worth of time, for the estimate of the time left

# Wu and He, "Group Normalization", 2018 (arXiv 1803.08494): ResNet-50 on ImageNet, validation error in percent, by
# images per GPU. Theirs, not measured here.
WU_AND_HE_SIZES = (32, 16, 8, 4, 2)
WU_AND_HE = {"batch": (23.6, 23.7, 24.8, 27.3, 34.7), "group": (24.1, 24.2, 24.0, 24.2, 24.1)}


@dataclass(frozen=True)
class Plan:
    """What to train: every norm with every micro-batch size, for some seeds.

    Examples
    --------
    >>> from accumkit.studies.curves import Plan
    >>> Plan(norms=("batch",), sizes=(32, 2), seeds=1).runs
    ((0, 'batch', 32), (0, 'batch', 2))
    """

    norms: tuple[str, ...] = ("batch", "group")
    sizes: tuple[int, ...] = WU_AND_HE_SIZES
    seeds: int = 3
    epochs: int = 6
    window: int = 64
    learning_rate: float = 0.05
    momentum: float = 0.9
    network: str = "mlp"

    def __post_init__(self) -> None:
        for norm in self.norms:
            kind(norm)
        for name in ("seeds", "epochs", "window"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise AccumkitError(f"{name}={value!r}: give a whole number of at least 1")
        if not self.sizes or any(not isinstance(b, int) or b < 1 or b > self.window for b in self.sizes):
            raise AccumkitError(f"sizes={self.sizes!r}: give micro-batch sizes from 1 to the window, {self.window}")

    @property
    def runs(self) -> tuple[tuple[int, str, int], ...]:
        """Seed, norm and micro-batch size of each run, one seed after another: a picture is whole early on."""
        return tuple((seed, norm, size) for seed in range(self.seeds) for norm in self.norms for size in self.sizes)

    @property
    def updates(self) -> int:
        """Updates in an epoch; what does not fill a window is left out."""
        return TRAINED // self.window

    @property
    def work(self) -> float:
        """All that there is to do, in micro-batches' worth of time."""
        return sum(self.epochs * self.work_of_epoch(size) for _, _, size in self.runs)

    def work_of_epoch(self, size: int) -> float:
        """Return an epoch's work at a micro-batch size."""
        return self.updates * (-(-self.window // size) + COST_OF_UPDATE)


@dataclass(repr=False)
class Curves:
    """Validation errors in percent, as far as the training has come; prints as a table.

    Attributes
    ----------
    errors : dict
        By (norm, micro-batch size), then by seed: the error after each epoch, in evaluation mode.
    in_training_mode : dict
        By (norm, micro-batch size), then by seed: the error of the finished network on the same digits in training
        mode, in micro-batches of its size.
    """

    plan: Plan
    errors: dict[tuple[str, int], list[list[float]]] = field(default_factory=dict)
    in_training_mode: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    done: float = 0.0  # micro-batches' worth of time
    seconds: float = 0.0  # spent so far

    @property
    def finished(self) -> bool:
        """Whether all runs are through."""
        return self.done >= self.plan.work - 0.5

    @property
    def seconds_left(self) -> float | None:
        """An estimate from the pace so far; None before there is one."""
        if self.finished:
            return 0.0
        return self.seconds / self.done * (self.plan.work - self.done) if self.done and self.seconds else None

    def final(self, norm: str, size: int) -> list[float]:
        """Return the error after the last epoch of each run that is through."""
        runs = self.errors.get((norm, size), [])
        return [run[-1] for run in runs if len(run) == self.plan.epochs]

    def __repr__(self) -> str:
        return table.plain(*self._table())

    def _repr_html_(self) -> str:
        return table.html(*self._table())

    def _table(self):
        rows = []
        for norm in self.plan.norms:
            name = KINDS[norm].title
            finals = [self.final(norm, size) for size in self.plan.sizes]
            rows.append((name, *(table.spread(found, 1) if found else "-" for found in finals)))
            modes = [self.in_training_mode.get((norm, size), []) for size in self.plan.sizes]
            rows.append((f"{name}, in training mode", *(table.spread(m, 1) if m else "-" for m in modes)))
        note = (
            f"Validation error in percent after {self.plan.epochs} epochs with windows of {self.plan.window}: mean ± "
            f"standard deviation over {self.plan.seeds} seeds, {len(tasks.digits()) - TRAINED} digits held out. In "
            "training mode: the same networks and digits, normalised as in training, in micro-batches of that size."
        )
        return ("micro-batch size", *map(str, self.plan.sizes)), rows, note


def train(plan: Plan | None = None) -> Iterator[Curves]:
    """Train every run of a plan, in slices of one update, so that it can be shown and stopped at any time.

    Parameters
    ----------
    plan : Plan, optional
        The default one takes about 20 s on two cores.

    Yields
    ------
    Curves
        The same object every time, as far as it has come.

    Examples
    --------
    >>> from accumkit.studies import curves
    >>> for found in curves.train(curves.Plan(norms=("batch",), sizes=(32,), seeds=1, epochs=1)):
    ...     pass
    >>> found.finished, len(found.final("batch", 32))
    (True, 1)
    """
    plan = plan or Plan()
    found = Curves(plan)
    images, labels = tasks.digits().tensors
    held_out = images[TRAINED:], labels[TRAINED:]
    for seed, norm, size in plan.runs:
        model = net(norm, plan.network, seed, dtype=images.dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=plan.learning_rate, momentum=plan.momentum)
        order = torch.Generator().manual_seed(seed)
        errors: list[float] = []
        found.errors.setdefault((norm, size), []).append(errors)
        for _ in range(plan.epochs):
            mixed = torch.randperm(TRAINED, generator=order)
            for window in mixed[: plan.updates * plan.window].split(plan.window):
                begun = time.perf_counter()
                _update(model, optimizer, images[window], labels[window], size)
                found.done += plan.work_of_epoch(size) / plan.updates
                found.seconds += time.perf_counter() - begun
                yield found
            errors.append(_error(model, *held_out))
        found.in_training_mode.setdefault((norm, size), []).append(_error(model, *held_out, size))
        yield found


def _update(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor, size: int) -> None:
    """Make one update: the right loop over one window."""
    with one_thread():
        optimizer.zero_grad()
        for x, y in zip(images.split(size), labels.split(size), strict=True):
            (F.cross_entropy(model(x), y, reduction="sum") / len(labels)).backward()
        optimizer.step()


def _error(model: nn.Module, images: Tensor, labels: Tensor, size: int | None = None) -> float:
    """Return the error in percent: in evaluation mode, or in training mode over micro-batches of a size."""
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad(), one_thread():
        model.train(size is not None)
        pieces = [model(x) for x in images.split(size or len(images))]
        model.load_state_dict(kept)  # a pass in training mode moves running statistics
        model.train()
    return 100 * fmean((torch.cat(pieces).argmax(1) != labels).tolist())
