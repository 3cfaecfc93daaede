"""Six runs for exercise 05d, alike in all but their fault: one model, one scaler, one clip, one schedule."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import DataLoader

from accumkit import tasks
from accumkit.modes import as_new
from accumkit.objective import classification
from accumkit.studies.nets import one_thread, seeded
from accumkit.trace.watch import watch

RIGHT = "right"
FAULTS = (
    "clip-before-unscale", "clip-every-micro-batch", "missing-scaler-update", "scale-changed-in-window",
    "skipped-update",
)  # fmt: skip
EXAMPLES, MICRO_BATCH, STEPS, PASSES = 32, 4, 4, 2
LIMIT = 0.1  # what all runs clip to
HIDDEN, LEARNING_RATE = 32, 0.05  # such that no number in the log is near to where it would be rounded otherwise
FIRST, BACKOFF = 2.0**24, 2.0**-8  # the scale begins so high that each run skips its first step, and falls far at once


@dataclass(frozen=True)
class Row:
    """What one window logged; where something is not finite, its norms and weights are neither."""

    scales: tuple[float, ...]  # what the loss of each micro-batch was multiplied by
    saw: float  # the norm that the last clip of the window returned
    made: float  # the norm after it
    weights: tuple[float | None, ...]  # what one example weighed in each micro-batch; None: not measured
    stepped: bool
    scheduled: bool


@functools.cache
@as_new()
def logged(slug: str) -> tuple[Row, ...]:
    """Run the loop with a fault of `FAULTS`, or the right one, and return a row for each of its windows.

    Examples
    --------
    >>> from accumkit.checks.scaler_runs import logged
    >>> [row.stepped for row in logged("right")]
    [False, True, True, True]
    """
    with one_thread(), seeded(0), warnings.catch_warnings():
        # torch warns of a schedule that moves before the first step was made; nobody is to be told which run that is
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
        model = tasks.mlp(hidden=HIDDEN)
        loader = DataLoader(tasks.digits(EXAMPLES), batch_size=MICRO_BATCH)
        with watch(model, classification(), accumulation_steps=STEPS) as trace:
            windows = _train(model, loader, slug)
    weights = [tuple(m.weight for m in update.micro_batches) for update in trace.updates]
    return tuple(Row(*own[:3], weighed, *own[3:]) for own, weighed in zip(windows, weights, strict=True))


def _train(model: nn.Module, loader: DataLoader, slug: str) -> list[tuple]:
    """Train, with one fault or none, and log each window."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    scheduler = LinearLR(optimizer, start_factor=1.0, end_factor=0.5, total_iters=PASSES * len(loader) // STEPS)
    scaler, rows = _scaler(), []
    for _ in range(PASSES):
        scales = []
        for i, (images, labels) in enumerate(loader, 1):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(images), labels) / STEPS
            scales.append(scaler.get_scale())
            scaler.scale(loss).backward()
            if slug == "clip-every-micro-batch":
                saw, made = _clipped(model, scaler.get_scale())
            if slug == "scale-changed-in-window" and i % 3 == 0:
                scaler.update(scaler.get_scale() / 2)
            if i % STEPS:
                continue
            if slug == "clip-before-unscale":
                saw, made = _clipped(model)
            scaler.unscale_(optimizer)
            if slug not in ("clip-before-unscale", "clip-every-micro-batch"):
                saw, made = _clipped(model)
            before = [p.detach().clone() for p in model.parameters()]
            scaler.step(optimizer)
            scale = scaler.get_scale()
            scaler.update()
            fell = scaler.get_scale() < scale
            if slug == "missing-scaler-update":
                scaler = _scaler()
            if not fell or slug == "skipped-update":
                scheduler.step()
            optimizer.zero_grad()
            moved = any(not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
            rows.append((tuple(scales), saw, made, moved, not fell or slug == "skipped-update"))
            scales = []
    return rows


def _scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=FIRST, backoff_factor=BACKOFF)


def _clipped(model: nn.Module, scale: float = 1.0) -> tuple[float, float]:
    """Clip gradients that are still scaled as if they were not, where a scale is given; return both norms."""
    for p in model.parameters():
        p.grad /= scale
    saw = clip_grad_norm_(model.parameters(), LIMIT).item()
    made = torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()
    for p in model.parameters():
        p.grad *= scale
    return saw, made
