"""A finding: one named fault of a loop, with its evidence in numbers and what to change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TypeVar

from accumkit.errors import AccumkitError, several

T = TypeVar("T")

AFFECTS = ("gradient", "update", "cost", "record")

TITLES = {
    "missing-division": "the division is missing",
    "double-division": "divided twice",
    "tail-divisor": "the short last window is divided by the full number",
    "nested-accumulation": "a loop that accumulates inside a tool that does so too",
    "tail-dropped": "micro-batches that train nothing",
    "tail-leaked": "a short last window leaks into the next pass",
    "off-by-one": "the boundary comes at the wrong count",
    "step-every-micro-batch": "a step after every micro-batch",
    "zero-every-micro-batch": "gradients cleared inside the window",
    "stale-gradients": "gradients of an earlier update are still there",
    "validation-erases": "an evaluation clears a half-done window",
    "mean-of-means": "a mean of means over micro-batches of unequal size",
    "token-weighting": "tokens weigh unequally",
    "class-weighting": "classes do not weigh what their weights say",
    "repeated-auxiliary-loss": "a term that belongs once to an update counts once a micro-batch",
    "skipped-micro-batch": "a micro-batch is left out, and counted all the same",
    "empty-micro-batch": "the mean of a micro-batch without one target is not a number",
    "scheduler-every-micro-batch": "the scheduler steps at every micro-batch",
    "ema-every-micro-batch": "the average is updated at every micro-batch",
    "horizon-in-micro-batches": "the schedule is planned in micro-batches",
    "batchnorm-statistics": "BatchNorm sees one micro-batch at a time",
    "batchnorm-momentum": "running statistics move at every micro-batch",
    "coupled-examples": "examples act on each other within a micro-batch",
    "dropout-masks": "micro-batches share their dropout masks",
    "clip-before-unscale": "clipped while the gradients are still scaled",
    "clip-every-micro-batch": "clipped after every micro-batch",
    "scale-changed-in-window": "the scale changes inside a window",
    "missing-scaler-update": "the scaler never learns from its steps",
    "skipped-update": "the schedule moves on although the step was skipped",
    "low-precision-sum": "gradients are added up in low precision",
    "data-reused": "every window has the same data",
    "graph-kept": "the graph of every micro-batch is kept",
}

ROUNDING = 1e-6  # of the largest number in a span

_WEIGHTS, _BOUNDARY = "02_what_each_example_weighs", "03_where_an_update_ends"
_NORMS = "04_batchnorm_and_groupnorm"
_AMP = "05_mixed_precision_and_clipping"

LESSONS = {
    "missing-division": _WEIGHTS,
    "double-division": _WEIGHTS,
    "tail-divisor": _WEIGHTS,
    "mean-of-means": _WEIGHTS,
    "token-weighting": _WEIGHTS,
    "class-weighting": _WEIGHTS,
    "repeated-auxiliary-loss": _WEIGHTS,
    "skipped-micro-batch": _WEIGHTS,
    "empty-micro-batch": _WEIGHTS,
    "nested-accumulation": _BOUNDARY,
    "tail-dropped": _BOUNDARY,
    "tail-leaked": _BOUNDARY,
    "off-by-one": _BOUNDARY,
    "step-every-micro-batch": _BOUNDARY,
    "zero-every-micro-batch": _BOUNDARY,
    "stale-gradients": _BOUNDARY,
    "validation-erases": _BOUNDARY,
    "scheduler-every-micro-batch": _BOUNDARY,
    "ema-every-micro-batch": _BOUNDARY,
    "horizon-in-micro-batches": _BOUNDARY,
    "data-reused": _BOUNDARY,
    "batchnorm-statistics": _NORMS,
    "batchnorm-momentum": _NORMS,
    "coupled-examples": _NORMS,
    "dropout-masks": _NORMS,
    "clip-before-unscale": _AMP,
    "clip-every-micro-batch": _AMP,
    "scale-changed-in-window": _AMP,
    "missing-scaler-update": _AMP,
    "skipped-update": _AMP,
    "low-precision-sum": _AMP,
}


@dataclass(frozen=True)
class Finding:
    """One fault that an audit names.

    Parameters
    ----------
    pitfall : str
        Its slug in the catalog, such as "missing-division".
    evidence : str
        What was measured, with the numbers.
    location : str or None
        The line it happens at: "train.py:12", or "cell 5, line 3" in a notebook.
    fix : str
        What to change; code stands in backquotes.
    affects : str
        "gradient" or "update" (the updates are not those of the big batch), "cost" or "record" (they are).
    updates : tuple of int
        The updates concerned, from 0; empty where it concerns none in particular.

    Examples
    --------
    >>> from accumkit.audit import Finding
    >>> finding = Finding("missing-division", "every example weighs 4", "train.py:12", "divide by 4", "gradient")
    >>> finding.title, finding.lesson
    ('the division is missing', '02_what_each_example_weighs')
    """

    pitfall: str
    evidence: str
    location: str | None
    fix: str
    affects: str
    updates: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.affects not in AFFECTS:
            raise AccumkitError(f"affects={self.affects!r}: give one of {', '.join(AFFECTS)}")

    @property
    def title(self) -> str:
        """The fault in a few words."""
        return TITLES.get(self.pitfall, self.pitfall.replace("-", " "))

    @property
    def lesson(self) -> str | None:
        """The notebook that teaches it, without its ending."""
        return LESSONS.get(self.pitfall)

    def __repr__(self) -> str:
        rows = [f"{self.pitfall}: {self.title}"]
        rows.append(row("where", self.location or "no line could be told"))
        rows.append(row("seen", self.evidence))
        rows.append(row("change", self.fix))
        if self.lesson:
            rows.append(row("lesson", self.lesson))
        return "\n".join(rows)


def row(name: str, text: str) -> str:
    """Return a row of a table: a name, and a text wrapped beside it; code in backquotes is not torn apart."""
    whole = "".join(part.replace(" ", "\0") if i % 2 else part for i, part in enumerate(text.split("`")))
    lines = fill(
        whole, 100, initial_indent=f"  {name:<8}", subsequent_indent=" " * 10, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    return lines.replace("\0", " ")


def number(value: float) -> str:
    """Return a number as it is read aloud, in three digits, counts in full: 4, 0.25, 2.33, 65,536, 1.5e-05."""
    if value and (abs(value) < 1e-3 or abs(value) >= 1e7):
        return f"{value:.3g}"
    if abs(value) >= 1e3:
        return f"{value:,.0f}"
    # first to two digits more: 1.875 and 1.8749999, the same but for rounding, read the same
    rounded = float(f"{value:.5g}")
    text = f"{float(f'{rounded:.3g}'):.5f}"
    return text.rstrip("0").rstrip(".")


def span(values: Iterable[float]) -> str:
    """Return "4" for values that agree to three digits, else "1.75 to 2.33"; what is rounding beside others is 0."""
    values = list(values)
    largest = max(map(abs, values))
    values = [0.0 if abs(value) < min(ROUNDING, ROUNDING * largest) else value for value in values]
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def worst_of(items: Sequence[T], size: Callable[[T], float]) -> T:
    """Return the first item whose size is the largest to three digits: which of those is larger, rounding decides."""
    largest = max(map(size, items))
    return next((item for item in items if size(item) >= min(largest, largest * (1 - 1e-3))), items[0])


def named(indices: Iterable[int], noun: str = "update") -> str:
    """Return "update 1", "updates 1 to 3 and 7" for indices from 0; beyond six stretches, how many there are."""
    stretches: list[list[int]] = []
    for index in sorted(set(indices)):
        if stretches and stretches[-1][1] == index - 1:
            stretches[-1][1] = index
        else:
            stretches.append([index, index])
    total = sum(last - first + 1 for first, last in stretches)
    if len(stretches) > 6:
        return f"{several(total, noun)}, from {noun} {stretches[0][0] + 1} on"
    parts = []
    for first, last in stretches:
        if last - first == 1:
            parts += [f"{first + 1}", f"{last + 1}"]
        else:
            parts.append(f"{first + 1}" if first == last else f"{first + 1} to {last + 1}")
    plural = noun if total == 1 else several(2, noun).split(" ", 1)[1]
    return f"{plural} {listed(parts)}"


def listed(parts: list[str]) -> str:
    """Return "a", "a and b", "a, b and c"."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
