"""The small problem that the studies of mixed precision share: digits, a perceptron, SGD, a scaler."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accumkit import tasks
from accumkit.objective import AccumkitError

PRECISIONS = ("float64", "float32", "float16 autocast", "bfloat16 autocast")
MICRO_BATCH = 4
NEAR = 1e-3  # relative: two updates this near are one


@dataclass
class Problem:
    """A model, its optimizer and scaler, and micro-batches in windows."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    windows: list[list[tuple[Tensor, Tensor]]]
    autocast: torch.dtype | None
    device: str

    def backward(self, batch: tuple[Tensor, Tensor], size: int) -> None:
        """Run forward and backward of one micro-batch of a window of ``size`` equal ones."""
        x, y = (part.to(self.device) for part in batch)
        with torch.autocast(self.device, dtype=self.autocast) if self.autocast else nullcontext():
            output = self.model(x)
        self.scaler.scale(F.cross_entropy(output.to(self.dtype), y) / size).backward()

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters."""
        return next(self.model.parameters()).dtype

    @property
    def gradient(self) -> Tensor:
        """What is in ``.grad`` now, in float64; zeros where there is none. Shape (parameters,)."""
        return flat(p.grad if p.grad is not None else torch.zeros_like(p) for p in self.model.parameters())

    @property
    def parameters(self) -> Tensor:
        """The parameters now, in float64. Shape (parameters,)."""
        return flat(self.model.parameters())


def problem(
    windows: int, accumulation_steps: int, scale: float = 1.0, precision: str = "float64", device: str = "cpu",
    optimizer: Any = None, enabled: bool = True, **scaler: Any,
) -> Problem:  # fmt: skip
    """Return the problem, in a precision of PRECISIONS, with ``optimizer(parameters)``; SGD by default."""
    if precision not in PRECISIONS:
        raise AccumkitError(f"precision={precision!r}: give one of {', '.join(PRECISIONS)}")
    examples = MICRO_BATCH * accumulation_steps * windows
    if not 1 <= examples <= 1797:
        raise AccumkitError(
            f"{windows} windows of N = {accumulation_steps} micro-batches of {MICRO_BATCH} are {examples:,} digits; "
            "there are 1,797, so take fewer"
        )
    dtype = torch.float64 if precision == "float64" else torch.float32
    model = tasks.mlp(dtype=dtype, hidden=16).to(device)
    made = optimizer(model.parameters()) if optimizer else torch.optim.SGD(model.parameters(), lr=0.1)
    batches = list(zip(*(part.split(MICRO_BATCH) for part in tasks.digits(examples, dtype).tensors), strict=True))
    n = accumulation_steps
    autocast = getattr(torch, precision.split()[0]) if "autocast" in precision else None
    return Problem(
        model=model,
        optimizer=made,
        scaler=torch.amp.GradScaler(device, init_scale=scale, enabled=enabled, **scaler),
        windows=[batches[i : i + n] for i in range(0, len(batches), n)],
        autocast=autocast,
        device=device,
    )


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """Return tensors as one row, in float64, on the host."""
    return torch.cat([t.detach().double().cpu().reshape(-1) for t in tensors])


def cosine(a: Tensor, b: Tensor) -> float:
    """Return the cosine between two rows; nan where one is zero."""
    lengths = (a.norm() * b.norm()).item()
    return (a @ b).item() / lengths if lengths else float("nan")


def times(ratio: float) -> str:
    """Return a ratio for people: "1", "2.2", "1/65,536", "65,536".

    Examples
    --------
    >>> from accumkit.studies.precision.problem import times
    >>> times(1.0), times(2.214), times(1 / 65536), times(0.25)
    ('1', '2.2', '1/65,536', '0.25')
    """
    if not isfinite(ratio):
        return "not finite"
    if abs(ratio - 1) <= NEAR:
        return "1"
    if 0 < ratio < 0.05:
        return f"1/{_large(1 / ratio)}"
    return f"{ratio:.2g}" if ratio < 100 else _large(ratio)


def _large(value: float) -> str:
    return f"{value:.2g}" if value >= 1e7 else f"{value:,.0f}"
