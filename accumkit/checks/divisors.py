"""What the summed losses of each window were divided by, read from a trace."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from accumkit.audit import Verdict
from accumkit.audit.findings import span
from accumkit.audit.reading import tolerance_of
from accumkit.checks.audited import CALLS
from accumkit.trace.record import MicroBatch, Trace, Update


class Divided:
    """A window, as if its losses had been summed, and what each sum was divided by.

    Attributes
    ----------
    update : Update
    members : list of MicroBatch
        Those with a part in the update.
    count : float
        Units in them.
    factors : list of float
        What the sum of each was multiplied by.
    divisor : float
        What the first one was divided by.
    """

    def __init__(self, update: Update) -> None:
        self.update = update
        self.members = [m for m in update.micro_batches if _counts(m)]
        self.count = sum(m.count for m in self.members)
        self.factors = [m.share / m.count for m in self.members]
        self.divisor = 1 / self.factors[0]

    @property
    def weights(self) -> list[float]:
        """What one unit weighs in each micro-batch."""
        return [m.weight for m in self.members]

    @property
    def location(self) -> str | None:
        """The line of its first backward."""
        return self.members[0].location

    def even(self, near: float) -> bool:
        """Whether all were divided by the same."""
        return max(self.factors) - min(self.factors) <= 2 * near * max(map(abs, self.factors))


def windows_of(trace: Trace) -> list[Divided]:
    """Return the windows of a trace whose shares were measured."""
    return [Divided(update) for update in trace.updates if any(map(_counts, update.micro_batches))]


def pure(windows: Sequence[Divided], near: float) -> bool:
    """Return whether the gradients are those of the windows, but for a factor."""
    return all(abs((w.update.cosine or 0) - 1) <= near and w.update.carried <= near for w in windows)


def divided_by(windows: Sequence[Divided], numbers: Sequence[float], near: float) -> bool:
    """Return whether each window was divided by its number."""
    return all(abs(w.divisor - n) <= 2 * near * n for w, n in zip(windows, numbers, strict=True))


def fair(trace: Trace | None) -> bool:
    """Return whether every bar in the picture of a trace is fair."""
    if trace is None or not trace.micro_batches or trace.lost:
        return False
    near = tolerance_of(trace)
    if any(update.carried > near for update in trace.updates):
        return False
    weights = [m.weight if m.fate == "kept" else None for m in trace.micro_batches]
    return all(weight is not None and abs(weight - 1) <= near for weight in weights)


def in_smaller_pieces(verdict: Verdict, micro_batches: Sequence[Sequence[float]]) -> bool:
    """Return whether each update is that of its window, though the loop cuts micro-batches into smaller pieces.

    Parameters
    ----------
    verdict : Verdict
    micro_batches : sequence of sequence of float
        The counts of a window's micro-batches, for each window of a pass.
    """
    trace = verdict.trace
    if verdict.findings or trace is None or trace.lost or not trace.updates:
        return False
    near, windows = tolerance_of(trace), windows_of(trace)
    passes, rest = divmod(len(trace.updates), len(micro_batches))
    if (
        rest
        or passes != CALLS
        or len(windows) != len(trace.updates)
        or len(trace.micro_batches) < passes * sum(map(len, micro_batches))
    ):
        return False  # more passes than were asked for, or micro-batches left out
    counts = [sum(window) for window in micro_batches] * passes
    right = all(w.count == count and w.even(near) for w, count in zip(windows, counts, strict=True))
    return right and pure(windows, near) and divided_by(windows, counts, near)


def uneven(windows: Sequence[Divided], near: float, unit: str) -> tuple[str, ...] | None:
    """Return heading and sentences on micro-batches of one window that were divided by different numbers."""
    wrong = [window for window in windows if not window.even(near)]
    if not wrong:
        return None
    divisor = "the divisor must"
    if all(before > after for window in wrong for before, after in pairwise(window.factors)):
        divisor = "the loop's divisor grows from micro-batch to micro-batch, as a running count does. It must"
    return (
        "The micro-batches of a window are divided by different numbers (uneven-divisor)",
        f"Measured: one {unit} weighs {span(w for window in wrong for w in window.weights)}, and should weigh 1.",
        f"To change, at {wrong[0].location}: {divisor} be the same for all micro-batches of a window. Either count "
        "the whole window before its first backward, or divide every `p.grad` once, after the last; see `q.hint(1)`.",
    )


def _counts(micro: MicroBatch) -> bool:
    return bool(micro.fate == "kept" and micro.share and micro.count)
