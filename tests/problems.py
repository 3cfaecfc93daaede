"""Small problems on which loops are watched: a model, its data in a given order, and the objective."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader

import accumkit as ak
from accumkit import tasks
from accumkit.trace.record import Trace

CLASS_WEIGHT = torch.linspace(0.5, 2.0, 10, dtype=torch.float64)


@dataclass
class Problem:
    model: nn.Module
    loader: DataLoader
    objective: ak.Objective

    def watch(self, loop, steps: int = 3, tail: str = "step", objective=..., optimizer=None) -> Trace:
        """Run a loop of faulty_loops under a watch."""
        optimizer = optimizer or torch.optim.SGD(self.model.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=100)
        objective = self.objective if objective is ... else objective
        with ak.watch(self.model, objective, accumulation_steps=steps, tail=tail) as trace:
            loop(self.model, self.loader, optimizer, steps, scheduler)
        return trace


def images(examples=32, micro_batch=4, dtype=torch.float64, objective=None, model=None) -> Problem:
    """Digits in equal micro-batches: eight of four, so that N = 3 makes windows of 3, 3 and 2."""
    data = tasks.loader(tasks.digits(examples, dtype), micro_batch)
    return Problem(model or tasks.mlp(dtype=dtype, hidden=8), data, objective or ak.classification())


def unequal_images(sizes=(4, 1, 6, 2, 5, 3, 4, 2), objective=None, dtype=torch.float64) -> Problem:
    """Digits in micro-batches of these sizes."""
    stops = torch.tensor(sizes).cumsum(0).tolist()
    chunks = [list(range(stop - size, stop)) for size, stop in zip(sizes, stops, strict=True)]
    data = DataLoader(tasks.digits(stops[-1], dtype), batch_sampler=chunks)
    return Problem(tasks.mlp(dtype=dtype, hidden=8), data, objective or ak.classification())


def weighted_images() -> Problem:
    """Digits in equal micro-batches, classes weighed from 0.5 to 2."""
    return images(objective=ak.classification(class_weight=CLASS_WEIGHT))


def lines(micro_batch=2) -> Problem:
    """The Zen of Python, lines of unequal length; a micro-batch of one line has no padding."""
    data = tasks.loader(tasks.zen(), micro_batch)
    return Problem(tasks.next_token_model(dtype=torch.float64, hidden=8), data, ak.next_token())
