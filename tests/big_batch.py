"""The oracle: one backward on the concatenated window, with torch's own mean loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES, FEATURES = 3, 5


@dataclass
class Seen:
    """What an optimizer saw: the gradient before each step and the parameters after it, each one flat vector."""

    gradients: list[Tensor] = field(default_factory=list)
    parameters: list[Tensor] = field(default_factory=list)


@contextmanager
def observed(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Seen]:
    """Note every step of an optimizer."""
    seen = Seen()
    hooks = [
        optimizer.register_step_pre_hook(lambda *_: seen.gradients.append(flat(p.grad for p in model.parameters()))),
        optimizer.register_step_post_hook(lambda *_: seen.parameters.append(flat(model.parameters()))),
    ]
    yield seen
    for hook in hooks:
        hook.remove()


def flat(tensors) -> Tensor:
    return torch.cat([t.detach().flatten() for t in tensors if t is not None]).clone()


def error(got: Tensor, wanted: Tensor) -> float:
    """Return |got - wanted| / |wanted|."""
    return ((got - wanted).norm() / wanted.norm()).item()


def mlp(device: str = "cpu", dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES)).to(device, dtype)


def labelled(
    sizes: list[int], seed: int = 1, dtype: torch.dtype = torch.float64, ignored: float = 0.0
) -> list[tuple[Tensor, Tensor]]:
    """Return micro-batches of the given sizes, a part of whose targets is -100."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(sizes), FEATURES, generator=draw, dtype=dtype)
    y = torch.randint(0, CLASSES, (sum(sizes),), generator=draw)
    y[torch.rand(sum(sizes), generator=draw) < ignored] = -100
    return list(zip(x.split(sizes), y.split(sizes), strict=True))


def grouped(batches: list, steps: int, tail: str = "step") -> list[list]:
    """Return the batches in windows."""
    windows = [batches[i : i + steps] for i in range(0, len(batches), steps)]
    return windows if tail == "step" or len(windows[-1]) == steps else windows[:-1]


def mean_cross_entropy(model: nn.Module, window: list, **options) -> Tensor:
    """Return torch's own mean over the concatenated window."""
    device = next(model.parameters()).device
    x, y = (torch.cat(parts).to(device) for parts in zip(*window, strict=True))
    return F.cross_entropy(model(x), y, **options)


def big_batches(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    windows: list[list],
    mean_loss: Callable[[nn.Module, list], Tensor],
    max_grad_norm: float | None = None,
) -> Seen:
    """Train with one backward a window and return what the optimizer saw."""
    with observed(model, optimizer) as seen:
        for window in windows:
            optimizer.zero_grad()
            mean_loss(model, window).backward()
            if max_grad_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
            optimizer.step()
    return seen


def assert_same(got: Seen, wanted: Seen, tolerance: float = 1e-12) -> None:
    """Update by update: the gradients and the parameters after the step."""
    assert len(got.gradients) == len(wanted.gradients)
    for kind in ("gradients", "parameters"):
        for update, (a, b) in enumerate(zip(getattr(got, kind), getattr(wanted, kind), strict=True)):
            assert error(a, b) <= tolerance, f"{kind} of update {update + 1}: relative error {error(a, b):.2g}"
