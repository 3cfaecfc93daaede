"""Small networks for the digits that differ in their normalisation alone, and the norms they can have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from accumkit import tasks
from accumkit.convert import replace_batchnorm
from accumkit.objective import AccumkitError
from accumkit.studies.layers import DeferredBatchNorm, GhostBatchNorm

NETWORKS = {"mlp": "fully connected", "cnn": "convolutional"}
WIDTH = 64  # units of a hidden layer
CALIBRATION = 512  # digits that a frozen BatchNorm takes its statistics from


@dataclass(frozen=True)
class Kind:
    """One way to normalise: its name, and what one needs to know of it."""

    slug: str
    title: str
    mixes: bool  # the examples of a batch act on each other
    says: str


KINDS = {
    kind.slug: kind
    for kind in (
        Kind("none", "no norm", False, "nothing is normalised"),
        Kind("group", "GroupNorm", False, "each example by itself, over a group of its channels"),
        Kind("layer", "LayerNorm", False, "each example by itself, over all its channels"),
        Kind("instance", "InstanceNorm", False, "each channel of each example by itself, over its pixels"),
        Kind("batch", "BatchNorm", True, "each channel over all examples of the micro-batch"),
        Kind("frozen", "frozen BatchNorm", False, "by fixed statistics, those of 512 digits"),
        Kind("ghost", "Ghost BatchNorm", True, "each channel over ghost batches of a fixed size"),
        Kind("deferred", "BatchNorm, deferred statistics", True, "as BatchNorm; running statistics once an update"),
    )
}


def kind(slug: str) -> Kind:
    """Return the norm of that name.

    Raises
    ------
    AccumkitError
        There is none; the message lists them.
    """
    if slug not in KINDS:
        raise AccumkitError(f"norm {slug!r} is not known; give one of {', '.join(KINDS)}")
    return KINDS[slug]


def net(
    norm: str,
    network: str = "mlp",
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    groups: int = 4,
    ghost: int = 8,
) -> nn.Sequential:
    """Return a network for the digits whose parameters depend on ``seed`` alone, not on its norm.

    Parameters
    ----------
    norm : str
        A key of ``KINDS``.
    network : {"mlp", "cnn"}
        Two hidden layers of 64 units, a norm after each; or ``tasks.cnn``, a norm after each convolution.
    seed : int
    dtype : torch.dtype
    groups : int
        Of GroupNorm.
    ghost : int
        Examples in a ghost batch.

    Returns
    -------
    nn.Sequential
        From images of shape (examples, 1, 8, 8) to scores of shape (examples, 10), in training mode.

    Raises
    ------
    AccumkitError
        No such norm or network; or groups that do not divide the channels.

    Examples
    --------
    >>> from accumkit.studies.nets import net
    >>> net("group", "cnn")[1].num_groups
    4
    """
    kind(norm)
    if network not in NETWORKS:
        raise AccumkitError(f"network={network!r}: give one of {', '.join(map(repr, NETWORKS))}")
    channels = WIDTH if network == "mlp" else 16
    if norm == "group" and (isinstance(groups, bool) or not isinstance(groups, int) or groups < 1 or channels % groups):
        fitting = ", ".join(str(g) for g in range(1, channels + 1) if channels % g == 0)
        raise AccumkitError(f"groups={groups!r} do not divide the {channels} channels of this network; give {fitting}")
    layer = _layers(network, groups, ghost)[norm]
    model = _mlp(layer, seed) if network == "mlp" else tasks.cnn(seed, norm=layer)
    model.to(dtype)
    if norm != "frozen":
        return model
    calibrate(model, tasks.digits(CALIBRATION, dtype).tensors[0])
    return replace_batchnorm(model, frozen=True)


def calibrate(model: nn.Module, images: torch.Tensor) -> None:
    """Set every BatchNorm's running statistics to those of ``images``, in one pass in training mode."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    kept = [m.momentum for m in norms]
    for m in norms:
        m.reset_running_stats()
        m.momentum = None  # a plain average
    with torch.no_grad(), one_thread():
        model(images)
    for m, momentum in zip(norms, kept, strict=True):
        m.momentum = momentum


def _layers(network: str, groups: int, ghost: int) -> dict[str, Callable[[int], nn.Module]]:
    flat = network == "mlp"
    return {
        "none": lambda channels: nn.Identity(),
        "group": lambda channels: nn.GroupNorm(groups, channels),
        "layer": nn.LayerNorm if flat else lambda channels: nn.GroupNorm(1, channels),  # over channels and pixels
        "instance": _one_pixel if flat else lambda channels: nn.InstanceNorm2d(channels, affine=True),
        "batch": nn.BatchNorm1d if flat else nn.BatchNorm2d,
        "frozen": nn.BatchNorm1d if flat else nn.BatchNorm2d,  # frozen once it has its statistics
        "ghost": lambda channels: GhostBatchNorm(channels, ghost),
        "deferred": DeferredBatchNorm,
    }


def _one_pixel(channels: int) -> nn.Module:
    """InstanceNorm where each channel of an example is a single value; torch says what it thinks of that."""
    return nn.Sequential(nn.Unflatten(1, (channels, 1)), nn.InstanceNorm1d(channels, affine=True), nn.Flatten())


def _mlp(layer: Callable[[int], nn.Module], seed: int, depth: int = 2) -> nn.Sequential:
    parts: list[nn.Module] = [nn.Flatten()]
    with seeded(seed):
        for inputs in [64] + [WIDTH] * (depth - 1):
            parts += [nn.Linear(inputs, WIDTH), layer(WIDTH), nn.ReLU()]
        parts.append(nn.Linear(WIDTH, 10))
    return nn.Sequential(*parts)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from ``seed`` inside, and leave torch's global generator as it was."""
    state = torch.get_rng_state()
    try:
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which would seed every GPU as well
        yield
    finally:
        torch.set_rng_state(state)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: faster for networks as small as these, and sums in one order on every machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
