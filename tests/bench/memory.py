"""What stays in memory of ten thousand micro-batches."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import accumkit as ak

from .loops import mlp

LIMIT = 1024  # bytes a micro-batch
N = 4


def endless(micro_batches: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield fresh micro-batches of 8 without a length, each made when it is asked for."""
    for _ in range(micro_batches):
        yield torch.randn(8, 64), torch.randint(0, 10, (8,))


def resident() -> int | None:
    """Return the bytes of this process in memory, None where the system does not say."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def growth(run: Callable[[int], Any], micro_batches: int) -> tuple[float, float | None]:
    """Return bytes a micro-batch that stay while the result of ``run`` is kept: Python's own, and the process's.

    The same number goes through once before, so that pools and caches have the size they settle at.
    """
    run(micro_batches)
    gc.collect()
    before = resident()
    kept = run(micro_batches)
    gc.collect()
    after = resident()
    del kept
    gc.collect()
    tracemalloc.start()
    start = tracemalloc.get_traced_memory()[0]
    kept = run(micro_batches)
    gc.collect()
    traced = tracemalloc.get_traced_memory()[0] - start
    tracemalloc.stop()
    del kept
    return traced / micro_batches, None if before is None else (after - before) / micro_batches


def through_windows(micro_batches: int) -> list:
    model, optimizer = mlp()
    objective, counts = ak.classification(), []
    for window in ak.windows(endless(micro_batches), N, objective):
        optimizer.zero_grad()
        for batch in window:
            (objective.total(model, batch) / window.count).backward()
        optimizer.step()
        counts.append(window.count)
    return counts


def through_train_epoch(micro_batches: int, buffered: bool = True) -> Any:
    model, optimizer = mlp()
    return ak.train_epoch(
        model, endless(micro_batches), optimizer, ak.classification(), accumulation_steps=N, buffered=buffered
    )


def through_watch(micro_batches: int, objective: ak.Objective | None) -> Any:
    model, optimizer = mlp()
    with ak.watch(model, objective, accumulation_steps=N) as trace:
        for i, (x, y) in enumerate(trace.batches(endless(micro_batches)), 1):
            (F.cross_entropy(model(x), y) / N).backward()
            if i % N == 0:
                optimizer.step()
                optimizer.zero_grad()
    return trace


# Each: name -> a function that lets so many micro-batches through and returns what a user would keep.
RUNS: dict[str, Callable[[int], Any]] = {
    "windows": through_windows,
    "train_epoch": through_train_epoch,
    "train_epoch, buffered=False": lambda micro_batches: through_train_epoch(micro_batches, buffered=False),
    "watch, events only": lambda micro_batches: through_watch(micro_batches, None),
    "watch, every window measured": lambda micro_batches: through_watch(micro_batches, ak.classification()),
}


def bench(quick: bool) -> str:
    """Return the table of memory."""
    micro_batches = 2_000 if quick else 10_000
    lines = [f"Memory that stays, bytes a micro-batch over {micro_batches:,}; limit {LIMIT}"]
    width = max(map(len, RUNS))
    lines.append(f"  {'':{width}}  Python's  process")
    for name, run in RUNS.items():
        traced, process = growth(run, micro_batches)
        shown = "unknown" if process is None else f"{process:.0f}"
        mark = "  over its limit" if max(traced, process or 0) > LIMIT else ""
        lines.append(f"  {name:{width}}  {traced:>8.0f}  {shown:>7}{mark}")
    return "\n".join(lines)
