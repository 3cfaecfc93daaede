"""What a move of the pitfall panel costs: the simulation, with both loops watched, and the redraw after it."""

from __future__ import annotations

import time
from statistics import median

from accumkit import panels, pitfalls

SLUGS = ("missing-division", "tail-dropped", "zero-every-micro-batch", "token-weighting")
LIMITS = {"first run": 80.0, "simulation": 80.0, "redraw": 40.0, "another bar": 40.0}  # milliseconds


def bench(quick: bool) -> str:
    """Return the table of milliseconds, in the processor time of this process."""
    pitfalls.warm_up()  # what the panel does while the page loads
    lines = [
        "The pitfall panel at its default setting: milliseconds, the median",
        f"  {'':24}" + "".join(f"{name:>13}" for name in LIMITS),
    ]
    for slug in SLUGS:
        measured = _moves(slug, 5 if quick else 30)
        mark = "  over its limit" if any(measured[name] > most for name, most in LIMITS.items()) else ""
        lines.append(f"  {slug:24}" + "".join(f"{measured[name]:>13.1f}" for name in LIMITS) + mark)
    return "\n".join([*lines, f"  {'limit':24}" + "".join(f"{most:>13.0f}" for most in LIMITS.values())])


def _moves(slug: str, rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in LIMITS}

    def clock(name: str, run, *given) -> None:
        begin = time.process_time()
        run(*given)
        times[name].append(1e3 * (time.process_time() - begin))

    def move(control: str, value: object) -> None:
        panel.controls[control].value = value

    clock("first run", pitfalls.simulate, slug)
    panel = panels.pitfalls(slug, strict=True)
    panel.prediction.choices.value = "lost"
    for i in range(rounds):
        clock("simulation", pitfalls.simulate, slug)
        clock("another bar", move, "look", 1 + (i + 1) % 2)
        move("mended", True)
        clock("redraw", move, "mended", False)  # both pictures, the code and the digits; nothing is run
    return {name: median(seen) for name, seen in times.items()}
