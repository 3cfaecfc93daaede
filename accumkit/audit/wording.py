"""Words that the rules about divisors share: what an example weighs, in which updates, at which line."""

from __future__ import annotations

from accumkit.audit.findings import named, span
from accumkit.audit.reading import Case, Window

ONE = {"tokens": "token", "class weights": "unit of class weight", "values": "value"}  # what is counted; else: example

SUMMED = 'sum the losses (`reduction="sum"`)'
COUNTED = f"{SUMMED} and divide by the count of the whole window: `(loss / window.count).backward()`, with ak.windows"


def weigh(case: Case, windows: list[Window]) -> str:
    """Return "one example weighs 1.75 to 2.33"."""
    unit = ONE.get(case.trace.unit, "example")
    return f"one {unit} weighs {span(weight for w in windows for weight in w.weights)}"


def ratio(windows: list[Window]) -> str:
    """Return ", the gradient is 4 times that of the big batch", or nothing where it was not measured."""
    ratios = [w.update.gradient_ratio for w in windows if w.update.gradient_ratio is not None]
    return f", the gradient is {span(ratios)} times that of the big batch" if ratios else ""


def where(case: Case, windows: list[Window]) -> str:
    """Return "In every update (5)" or "In updates 1 and 3"."""
    everywhere = len(windows) == len(case.boundary.windows)
    return f"In every update ({len(windows)})" if everywhere and len(windows) > 1 else f"In {named(indices(windows))}"


def indices(windows: list[Window]) -> tuple[int, ...]:
    """Return the indices of the windows' updates."""
    return tuple(w.update.index for w in windows)


def backward(windows: list[Window]) -> str | None:
    """Return the line of the first window's first backward."""
    return windows[0].members[0].location
