"""Timing side by side: every row runs in every round, so that a busy machine is unfair to none.

The clock is the processor time of this process: on one thread it is the time that passes on an idle machine, and other
programs add less to it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Row:
    """One line of a table: what ran, how long a micro-batch took, and the ratio to the first row."""

    name: str
    microseconds: float
    ratio: float
    limit: float | None


def interleaved(
    runs: dict[str, Callable[[], None]], micro_batches: int, rounds: int, limits: dict[str, float]
) -> list[Row]:
    """Run each entry once a round, each round starting one further on; ratios are taken within a round.

    Parameters
    ----------
    runs : dict of str to callable
        Each goes through ``micro_batches`` micro-batches; the first is what the others are held against.
    """
    names = list(runs)
    for run in runs.values():
        run()  # warms up caches, thread pools and lazily imported parts
    times: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds):
            start = turn % len(names)
            for name in names[start:] + names[:start]:
                begin = time.process_time()
                runs[name]()
                times[name].append((time.process_time() - begin) / micro_batches * 1e6)
            gc.collect()
    finally:
        gc.enable()
    base = times[names[0]]
    return [
        Row(name, median(times[name]), median(t / b for t, b in zip(times[name], base, strict=True)), limits.get(name))
        for name in names
    ]


def table(title: str, rows: list[Row]) -> str:
    """Return the rows as a table; a ratio above its limit is marked."""
    width = max(len(row.name) for row in rows)
    lines = [title, f"  {'':{width}}  us/micro-batch   ratio   limit"]
    for row in rows:
        limit = "-" if row.limit is None else f"{row.limit:.2f}"
        mark = "  over its limit" if row.limit is not None and row.ratio > row.limit else ""
        lines.append(f"  {row.name:{width}}  {row.microseconds:>14.1f}  {row.ratio:>6.3f}  {limit:>6}{mark}")
    return "\n".join(lines)
