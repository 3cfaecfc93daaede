"""What watching costs beside the same loop unwatched: events only, and with every window measured."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

import accumkit as ak
from accumkit import tasks

from .loops import mlp
from .rounds import interleaved, table

N = 4


def runs_of(
    make: Callable[[], tuple[nn.Module, torch.optim.Optimizer]], batches: list, objective: ak.Objective | None
) -> dict[str, Callable[[], None]]:
    """Return the loop unwatched and watched, each with a model of its own."""

    def hand_written(model: nn.Module, optimizer: torch.optim.Optimizer, fed: object) -> None:
        for i, (x, y) in enumerate(fed):
            (F.cross_entropy(model(x), y) / N).backward()
            if (i + 1) % N == 0:
                optimizer.step()
                optimizer.zero_grad()

    (bare, bare_optimizer), (again, again_optimizer), (seen, seen_optimizer) = make(), make(), make()

    def watched() -> None:
        with ak.watch(seen, objective, accumulation_steps=N) as trace:
            hand_written(seen, seen_optimizer, trace.batches(batches))
        if objective is not None and any(update.why for update in trace.updates):
            raise RuntimeError(f"a window was not measured: {trace.updates[0].why}")

    return {
        "unwatched": lambda: hand_written(bare, bare_optimizer, batches),
        "unwatched again (control)": lambda: hand_written(again, again_optimizer, batches),
        "watched": watched,
    }


def cnn() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a small convolutional net and its optimizer."""
    model = tasks.cnn()
    return model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def images(micro_batches: int, size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return micro-batches of digit-sized images."""
    torch.manual_seed(1)
    return [(torch.rand(size, 1, 8, 8), torch.randint(0, 10, (size,))) for _ in range(micro_batches)]


def opened_and_closed() -> Callable[[], None]:
    """Return a function that opens a watch and closes it."""
    model, _ = mlp()

    def run() -> None:
        with ak.watch(model, accumulation_steps=N):
            pass

    return run


def bench(quick: bool) -> str:
    """Return the tables."""
    torch.manual_seed(1)
    micro_batches, rounds = 128, 4 if quick else 25
    vectors = [(torch.randn(8, 64), torch.randint(0, 10, (8,))) for _ in range(8 * micro_batches)]
    rows = interleaved(runs_of(mlp, vectors, None), len(vectors), rounds, {"watched": 1.2})
    (opened, *_) = interleaved({"opened": opened_and_closed()}, 1, 4 * rounds, {})
    tables = [
        table("Watching, events only: the MLP of above, micro-batches of 8", rows)
        + f"\n  opening and closing the watch, once a run of {len(vectors)}, is in it: {opened.microseconds:.0f} us"
    ]
    for size in (8, 32):
        runs = runs_of(cnn, images(micro_batches, size), ak.classification())
        title = f"Watching with an objective, every window: a small convolutional net, micro-batches of {size}"
        tables.append(table(title, interleaved(runs, micro_batches, rounds, {"watched": 2.3})))
    return "\n\n".join(tables)
