"""When the objective is to be doubted, and not the loop: what is wrong is no larger than what it leaves unexplained."""

from __future__ import annotations

from typing import Any

from accumkit.trace.record import Trace

SUSPECT = 6  # times what the objective leaves unexplained: smoothed labels, say, move weights by up to so much


def suspected(trace: Trace, windows: tuple[Any, ...], ways: dict[int, str | None], tolerance: float) -> frozenset[int]:
    """Return the updates whose objective is to be doubted, and not their loop; ``windows``: as ``read`` makes them.

    A term that the objective lacks has a part along its gradient, which looks like a weight, and a part that no
    multiple of it explains. Where no way to divide explains what is wrong, and it is no larger than the second part
    lets expect, the first is all that was seen.
    """
    floor = max((update.floor or 0.0 for update in trace.updates), default=0.0)
    rounding = 2 * floor or tolerance  # what rounding leaves unexplained tells nothing of the objective
    found = set()
    for w in windows:
        rest = w.update.unexplained or 0.0
        if rest <= rounding:
            continue
        if w.fair:  # over a window the gradients cancel in part, and such a term does not
            off = w.update.relative_error or 0.0
            small = 10 * tolerance < off <= SUSPECT * w.size**0.5 * rest
        else:
            off = max(abs(weight - 1) for weight in w.weights)
            small = ways[w.update.index] is None and off <= SUSPECT * rest
        if small:
            found.add(w.update.index)
    return frozenset(found)
