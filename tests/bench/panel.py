"""What one move of the pitfall panel costs: the simulation, both loops watched, and the redraw after it."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from accumkit import panels, pitfalls

SLUGS = ("missing-division", "tail-dropped", "zero-every-micro-batch", "token-weighting")
LIMITS = {"simulation": 80.0, "redraw": 40.0, "another bar": 40.0}  # milliseconds, at the panel's default setting


def bench(quick: bool) -> str:
    """Return the table of milliseconds, in the processor time of this process."""
    pitfalls.warm_up()
    lines = ["The pitfall panel at its default setting: milliseconds a move, median", f"  {'':22}"]
    lines[1] += "".join(f"{name:>13}" for name in ("first run", *LIMITS))
    for slug in SLUGS:
        first, times = _moves(slug, 5 if quick else 30)
        cells = [first, *(median(times[name]) for name in LIMITS)]
        over = [name for name, most in LIMITS.items() if median(times[name]) > most]
        over += ["first run"] * (first > LIMITS["simulation"])
        lines.append(f"  {slug:22}" + "".join(f"{1 * cell:>13.1f}" for cell in cells) + "  over its limit" * bool(over))
    lines.append(f"  {'limit':22}" + "".join(f"{most:>13.0f}" for most in (LIMITS["simulation"], *LIMITS.values())))
    return "\n".join(lines)


def _moves(slug: str, rounds: int) -> tuple[float, dict[str, list[float]]]:
    first = _milliseconds(lambda: pitfalls.simulate(slug))
    panel = panels.pitfalls(slug, strict=True)
    panel.prediction.choices.value = "lost"
    times: dict[str, list[float]] = {name: [] for name in LIMITS}
    for i in range(rounds):
        times["simulation"].append(_milliseconds(lambda: pitfalls.simulate(slug)))
        panel.forget()
        panel.simulation = panel.run()
        times["redraw"].append(_milliseconds(panel.refresh))
        times["another bar"].append(_milliseconds(lambda: panel.controls["look"].set_trait("value", 1 + (i + 1) % 2)))  # noqa: B023
    return first, times


def _milliseconds(run: Callable[[], object]) -> float:
    begin = time.process_time()
    run()
    return 1e3 * (time.process_time() - begin)
