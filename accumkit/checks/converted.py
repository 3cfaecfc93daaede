"""A network with BatchNorm in several depths, and what a learner's function made of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # private in name; every BatchNorm is one

from accumkit import tasks
from accumkit.convert import replace_batchnorm
from accumkit.studies.nets import one_thread, seeded

CHANNELS = 4  # in each group
WINDOW, MICRO_BATCH = 32, 8
NEAR = 1e-6


class Block(nn.Module):
    """A convolution and its norm, added to what came in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Add the normalised convolution."""
        return F.relu(x + self.norm(self.conv(x)))


class Network(nn.Module):
    """A small network for the digits, with six BatchNorm layers of 8, 12 and 20 channels in several depths."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.blocks = nn.ModuleList([Block(8), Block(8)])
        self.wider = nn.Sequential(
            nn.Sequential(nn.Conv2d(8, 12, 3, stride=2, padding=1), nn.BatchNorm2d(12), nn.ReLU()),
            nn.Sequential(nn.Conv2d(12, 20, 3, padding=1), nn.BatchNorm2d(20), nn.ReLU()),
        )
        self.norm = nn.BatchNorm2d(20)
        self.head = nn.Linear(20, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of shape (examples, 10)."""
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(self.wider(x)).mean((2, 3)))


def network() -> Network:
    """Return the network as some training left it, in float64 and in training mode; the same each time.

    Examples
    --------
    >>> from accumkit.checks.converted import batchnorms, network
    >>> len(batchnorms(network())), network().norm.num_features
    (6, 20)
    """
    with seeded(0):
        model = Network().double()
        for layer in batchnorms(model).values():
            nn.init.uniform_(layer.weight, 0.5, 1.5)  # no longer 1 and 0, so that losing them shows
            nn.init.uniform_(layer.bias, -0.5, 0.5)
    return model


def batchnorms(model: nn.Module) -> dict[str, _BatchNorm]:
    """Return every BatchNorm layer by its name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)}


def dotted(model: nn.Module) -> list[str]:
    """Return names of children that have a dot in them, which no forward ever uses."""
    return [name for module in model.modules() for name in module._modules if "." in name]


@dataclass(frozen=True)
class Replaced:
    """What stands where a BatchNorm stood."""

    name: str
    channels: int
    now: nn.Module | None  # None: nothing has that name any more
    weight: Tensor  # that the BatchNorm had
    bias: Tensor

    @property
    def groups(self) -> int | None:
        """Groups of a GroupNorm; None for anything else."""
        return self.now.num_groups if isinstance(self.now, nn.GroupNorm) else None

    @property
    def kept(self) -> bool:
        """Whether weight and bias are those of before, and still learn."""
        pairs = ((self.weight, getattr(self.now, "weight", None)), (self.bias, getattr(self.now, "bias", None)))
        return all(
            isinstance(now, Tensor)
            and now.requires_grad
            and now.shape == before.shape
            and torch.allclose(now.detach().double().cpu(), before, rtol=0, atol=NEAR)
            for before, now in pairs
        )


def replaced(model: nn.Module) -> Iterator[Replaced]:
    """Yield what stands in a model in place of each BatchNorm of `network`."""
    now = dict(model.named_modules())
    for name, layer in batchnorms(network()).items():
        yield Replaced(name, layer.num_features, now.get(name), layer.weight.detach(), layer.bias.detach())


@dataclass(frozen=True)
class Run:
    """What a converted network does in training mode."""

    apart: float  # |accumulated - big batch| / |big batch|, of the gradient of a window
    as_meant: bool  # its scores are those of the network with the GroupNorm that is asked for
    shape: tuple[int, ...]  # of its scores


def tried(model: nn.Module) -> Run:
    """Train a converted network on one window, at once and in micro-batches."""
    batch = images, _ = tasks.digits(WINDOW, torch.float64).tensors
    with one_thread(), seeded(0):
        model = copy.deepcopy(model).train()  # as a training loop would set it
        big, small = (_gradient(model, batch, size) for size in (WINDOW, MICRO_BATCH))
        scores = model(images).detach()
        meant = replace_batchnorm(network(), groups=lambda channels: channels // CHANNELS)(images).detach()
    same = scores.shape == meant.shape and torch.allclose(scores.double(), meant, rtol=0, atol=NEAR)
    return Run(float((small - big).norm() / big.norm()), same, tuple(scores.shape))


def _gradient(model: nn.Module, batch: tuple[Tensor, Tensor], size: int) -> Tensor:
    """Return the gradient of the window's mean loss, accumulated; of parameters that take no part it is zero."""
    model.zero_grad()
    for x, y in zip(*(part.split(size) for part in batch), strict=True):
        (F.cross_entropy(model(x), y, reduction="sum") / WINDOW).backward()
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()])
