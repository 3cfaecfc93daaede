"""What exercises say of a loop whose loss is another one, or that leaves examples out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from accumkit.audit import Verdict
from accumkit.audit.findings import number, several, span
from accumkit.audit.reading import tolerance_of, unexplained_limit
from accumkit.checks.audited import CALLS, Setting, audited
from accumkit.objective import Objective
from accumkit.trace.record import Trace

ALL_ELSE = 0.01  # of a gradient that is no multiple of the objective's: then the loss is another one


class Kind(NamedTuple):
    """A way to count a window, or another loss, and what to say of it."""

    slip: str
    seen: str
    change: str
    of: Callable[..., Any]  # a count of (inputs, labels), or a summed loss of (output, inputs, labels)


def _nll_of(logs: Tensor, labels: Tensor) -> Tensor:
    return -logs.gather(1, labels[:, None]).sum()


AS_THEY_ARE = "give the model's outputs to `F.cross_entropy` as they are"
LOSSES = (
    Kind("softmax-before-cross-entropy", "the outputs go through a softmax first, and `F.cross_entropy` takes another "
         "one by itself", AS_THEY_ARE,
         lambda output, images, labels: F.cross_entropy(output.softmax(1), labels, reduction="sum")),
    Kind("no-softmax", "the outputs are taken for logarithms of probabilities, as `F.nll_loss` does, and they are none",
         AS_THEY_ARE, lambda output, images, labels: _nll_of(output, labels)),
    Kind("no-logarithm", "the probabilities themselves are summed, as `F.nll_loss` does with what a softmax gives, and "
         "not their logarithms", AS_THEY_ARE, lambda output, images, labels: _nll_of(output.softmax(1), labels)),
    Kind("label-smoothing", "the labels are smoothed, by 0.1", "leave out `label_smoothing`",
         lambda output, images, labels: F.cross_entropy(output, labels, reduction="sum", label_smoothing=0.1)),
)  # fmt: skip
CROSS_ENTROPY = (
    "sum `F.cross_entropy(model(images), labels)` and nothing else: no softmax before it, no term beside it, no "
    "weights of classes, no smoothed labels"
)


def another_loss(
    train: Callable,
    verdict: Verdict,
    kinds: Sequence[Kind],
    setting_with: Callable[[Objective], Setting],
    seconds: float,
    otherwise: str | None = None,
) -> tuple[str, ...] | None:
    """Say which other loss a loop takes, where it is a known one.

    Parameters
    ----------
    train : callable
    verdict : Verdict
        Of that loop, with the loss that is asked for.
    kinds : sequence of Kind
    setting_with : callable
        From an objective to what the loop is run on.
    seconds : float
        For each run.
    otherwise : str, optional
        What to change where it is none of the kinds; by default nothing is said then.
    """
    at = _lines_of_the_loss(verdict.trace)
    for kind in kinds:
        if _takes(train, kind, setting_with, seconds):
            return (
                f"The loss is another one ({kind.slip})",
                f"Measured: {kind.seen}.",
                f"To change, {at}: {kind.change}.",
            )
    if otherwise is None:
        return None
    off = span(update.unexplained or 0 for update in verdict.trace.updates)
    return (
        "The loss is another one (another-loss)",
        f"Measured: {off} of the loop's gradients is no multiple of the gradient of the loss that is asked for.",
        f"To change, {at}: {otherwise}.",
    )


def _lines_of_the_loss(trace: Trace) -> str:
    """Return where a loss is made: from the line that calls the model to that of its backward."""
    lines = {kind: next((event.location for event in trace.events if event.kind == kind and event.location), None)
             for kind in ("forward", "backward")}  # fmt: skip
    forward, backward = lines.values()
    if forward is None or backward is None or forward == backward:
        return f"at {backward or forward or 'the line with `backward()`'}"
    return f"from the forward at {forward} to the backward at {backward}"


def foreign(verdict: Verdict, limit: float | None = None) -> bool:
    """Return whether a loop's gradients are not made of those of the objective."""
    if limit is None:
        limit = unexplained_limit(tolerance_of(verdict.trace))
    return any((update.unexplained or 0) >= limit for update in verdict.trace.updates)


def left_out(verdict: Verdict, sizes: Sequence[int], unit: str = "example") -> tuple[str, ...] | None:
    """Say how many examples had no part in a backward, although all micro-batches had one; None where none is missing.

    Parameters
    ----------
    verdict : Verdict
    sizes : sequence of int
        Examples in each micro-batch of a pass.
    unit : str
        What an example is called.
    """
    ran = verdict.trace.micro_batches
    had, due = sum(m.examples for m in ran), CALLS * sum(sizes)
    if len(ran) < CALLS * len(sizes) or not 0 < had < due:
        return None  # whole micro-batches are missing: that is said elsewhere
    shown = ""
    if len(ran) == CALLS * len(sizes):
        pairs = zip(ran, [*sizes] * CALLS, strict=True)
        where = next((f"micro-batch {m.index + 1} with {m.examples} of {size}" for m, size in pairs
                      if m.examples < size), None)  # fmt: skip
        shown = f", {where}" if where else ""
    return (
        f"Some {unit}s are left out ({unit}s-left-out)",
        f"Measured: {number(had)} of {several(due, unit)} had a part in a backward{shown}.",
        f"To change, at or before {ran[0].location}: train on every {unit} that the loader gives, and count each of "
        "them once.",
    )


def _takes(train: Callable, kind: Kind, setting_with: Callable[[Objective], Setting], seconds: float) -> bool:
    def total(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return kind.of(model(batch[0]), *batch)

    objective = Objective(total_loss=total, count=lambda batch: len(batch[1]))
    verdict = audited(train, setting_with(objective), seconds)
    return bool(verdict.trace and verdict.trace.updates) and not foreign(verdict, ALL_ELSE)
