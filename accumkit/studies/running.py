"""BatchNorm's running statistics under accumulation: how fast they move, and how far from the big batch's they end."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from accumkit import tasks
from accumkit.objective import AccumkitError
from accumkit.studies import table
from accumkit.studies.layers import commit
from accumkit.studies.nets import calibrate, net, one_thread

WAYS = {
    "plain": "momentum as it was",
    "corrected": "momentum corrected",
    "deferred": "statistics deferred",
}
WINDOWS, WINDOW = 24, 64


def effective_momentum(momentum: float, accumulation_steps: int) -> float:
    """Return the momentum that N updates of running statistics in a row amount to: 1 - (1 - m)^N.

    Examples
    --------
    >>> from accumkit.studies.running import effective_momentum
    >>> [round(effective_momentum(0.1, n), 2) for n in (1, 2, 4, 8, 16)]
    [0.1, 0.19, 0.34, 0.57, 0.81]
    """
    _within(momentum, accumulation_steps)
    return 1 - (1 - momentum) ** accumulation_steps


def corrected_momentum(momentum: float, accumulation_steps: int) -> float:
    """Return the momentum whose N updates in a row amount to ``momentum``: 1 - (1 - m)^(1/N).

    Examples
    --------
    >>> from accumkit.studies.running import corrected_momentum
    >>> [round(corrected_momentum(0.1, n), 4) for n in (1, 2, 4, 8, 16)]
    [0.1, 0.0513, 0.026, 0.0131, 0.0066]
    """
    _within(momentum, accumulation_steps)
    return 1 - (1 - momentum) ** (1 / accumulation_steps)


@dataclass(frozen=True)
class Way:
    """One way to keep running statistics, against those of the big batch; layers from the first on, means over seeds.

    Errors are relative: |small - big| / |big| over a layer's channels.
    """

    way: str  # a key of WAYS
    updates: float  # of running statistics, for each optimizer update
    momentum: float  # what they amount to in an update
    mean_errors: tuple[float, ...]
    variance_errors: tuple[float, ...]
    variance_ratios: tuple[float, ...]  # summed over channels, small / big


@dataclass(frozen=True, repr=False)
class Statistics:
    """What :func:`compare` found for one micro-batch size; prints as a table."""

    micro_batch_size: int
    order: str
    ways: tuple[Way, ...]

    def way(self, name: str) -> Way:
        """Return the numbers of one way: "plain", "corrected" or "deferred"."""
        return next(way for way in self.ways if way.way == name)

    def __repr__(self) -> str:
        return table.plain(*self._table())

    def _repr_html_(self) -> str:
        return table.html(*self._table())

    def _table(self):
        head = ("", "updates", "momentum", "mean, 1st layer", "mean, 2nd", "variance, 1st", "variance, 2nd")
        rows = [
            (WAYS[w.way], f"{w.updates:g}", f"{w.momentum:.2f}", *map(table.small, w.mean_errors),
             *(f"{table.small(e)} (x{r:.2f})" for e, r in zip(w.variance_errors, w.variance_ratios, strict=True)))
            for w in self.ways
        ]  # fmt: skip
        note = (
            f"Running statistics after {WINDOWS} windows of {WINDOW} digits in micro-batches of "
            f"{self.micro_batch_size}, {self.order}, against one update for each whole window: relative errors (and "
            "how large the variance is, beside the big batch's). Updates and the momentum they amount to: for each "
            "optimizer update."
        )
        return head, rows, note


def compare(micro_batch_size: int = 8, momentum: float = 0.1, seeds: int = 3, order: str = "shuffled") -> Statistics:
    """Run windows of digits through a fully connected network with BatchNorm, and compare its running statistics.

    Parameters do not move, so what differs comes from the micro-batches alone. Each way starts at the statistics
    of all the digits.

    Parameters
    ----------
    micro_batch_size : int
        A divisor of the window, 64; at least 2.
    momentum : float
        That of the big batch's layers.
    seeds : int
    order : {"shuffled", "by class"}
        By class, each window has its digits sorted: micro-batches then differ from each other.

    Returns
    -------
    Statistics

    Raises
    ------
    AccumkitError
        A size that does not divide the window, or numbers out of range.

    Examples
    --------
    >>> from accumkit.studies import running
    >>> found = running.compare(16, seeds=1)
    >>> found.way("deferred").mean_errors[0] < 1e-12 < found.way("corrected").mean_errors[0] < 0.01
    True
    """
    if not isinstance(micro_batch_size, int) or micro_batch_size < 2 or WINDOW % micro_batch_size:
        raise AccumkitError(f"micro_batch_size={micro_batch_size!r}: give 2, 4, 8, 16, 32 or 64")
    if order not in ("shuffled", "by class"):
        raise AccumkitError(f"order={order!r}: give 'shuffled' or 'by class'")
    steps = WINDOW // micro_batch_size
    used = {"plain": momentum, "corrected": corrected_momentum(momentum, steps), "deferred": momentum}
    per_update = {"plain": steps, "corrected": steps, "deferred": 1}
    ways = []
    for way, own in used.items():
        found = [_errors(way, own, momentum, micro_batch_size, seed, order) for seed in range(seeds)]
        means = [tuple(map(fmean, zip(*(run[i] for run in found), strict=True))) for i in range(3)]
        ways.append(Way(way, per_update[way], effective_momentum(own, per_update[way]), *means))
    return Statistics(micro_batch_size, order, tuple(ways))


def _errors(way: str, own: float, momentum: float, size: int, seed: int, order: str) -> tuple[tuple[float, ...], ...]:
    """Return, by layer, the errors of running mean and variance, and the ratio of the variances."""
    images, labels = tasks.digits(dtype=torch.float64).tensors
    big = net("batch", "mlp", seed)
    small = net("deferred" if way == "deferred" else "batch", "mlp", seed)
    calibrate(big, images)
    small.load_state_dict(big.state_dict())
    for model, value in ((big, momentum), (small, own)):
        for layer in norms_of(model):
            layer.momentum = value
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[: WINDOWS * WINDOW]
    with torch.no_grad(), one_thread():
        for window in chosen.split(WINDOW):
            window = window[labels[window].argsort(stable=True)] if order == "by class" else window
            big(images[window])
            for piece in window.split(size):
                small(images[piece])
            commit(small)
    pairs = list(zip(norms_of(small), norms_of(big), strict=True))
    means = tuple(_apart(a.running_mean, b.running_mean) for a, b in pairs)
    variances = tuple(_apart(a.running_var, b.running_var) for a, b in pairs)
    return means, variances, tuple(float(a.running_var.sum() / b.running_var.sum()) for a, b in pairs)


def disagreement(
    norm: str = "batch", micro_batch_sizes: Sequence[int] = (64, 32, 16, 8, 4, 2), seeds: int = 3, network: str = "mlp"
) -> dict[int, float]:
    """Return how far a network's outputs in training mode are from those in evaluation mode, by micro-batch size.

    The running statistics are those of all the digits, so evaluation has the best there are.

    Parameters
    ----------
    norm, network : str
        As for :func:`accumkit.studies.nets.net`.
    micro_batch_sizes : sequence of int
    seeds : int

    Returns
    -------
    dict of int to float
        |training - evaluation| / |evaluation| over the scores of one window of 64 digits, mean over seeds.

    Examples
    --------
    >>> from accumkit.studies.running import disagreement
    >>> found = disagreement(seeds=1)
    >>> found[64] < found[8] < found[2], disagreement("group", (2,), seeds=1)[2] < 1e-12
    (True, True)
    """
    images = tasks.digits(dtype=torch.float64).tensors[0]
    found: dict[int, list[float]] = {size: [] for size in micro_batch_sizes}
    with torch.no_grad(), one_thread():
        for seed in range(seeds):
            model = net(norm, network, seed)
            calibrate(model, images)
            chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:WINDOW]
            evaluated = copy.deepcopy(model).eval()(images[chosen])
            for size in micro_batch_sizes:
                twin = copy.deepcopy(model).train()
                trained = torch.cat([twin(images[piece]) for piece in chosen.split(size)])
                found[size].append(_apart(trained, evaluated))
    return {size: fmean(values) for size, values in found.items()}


def norms_of(model: nn.Module) -> list[_BatchNorm]:
    """Return a model's BatchNorm layers, in order."""
    return [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]


def _apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def _within(momentum: float, steps: int) -> None:
    if not 0 < momentum < 1:
        raise AccumkitError(f"momentum={momentum!r}: give a number between 0 and 1")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise AccumkitError(f"accumulation_steps={steps!r}: give a whole number of at least 1")
