"""Rules about micro-batches that bring nothing: left out of the gradient, or without one target."""

from __future__ import annotations

from math import isnan

from accumkit.audit.findings import Finding, named, several
from accumkit.audit.reading import LEFT_OUT, Case
from accumkit.audit.wording import backward, indices, weigh, where
from accumkit.trace.record import MicroBatch, Update

NOT_FINITE = "not finite"  # in a trace's reason for what was not measured


def skipped_micro_batch(case: Case) -> Finding | None:
    """A micro-batch had no backward, and the divisor counts it all the same."""
    wrong = [w for w in case.following(LEFT_OUT, "sum/W/N") if w.counts_left_out() or w.counts_left_out(w.steps)]
    if not wrong:
        return None
    gone = sum(w.left_out for w in wrong)
    was, counts = ("was", "counts") if gone == 1 else ("were", "count")
    return Finding(
        "skipped-micro-batch",
        f"{several(gone, 'micro-batch')} {was} fetched and brought no gradient, but {counts} in the divisor: "
        f"{weigh(case, wrong)} instead of 1 in what is left of the window. {where(case, wrong)}",
        backward(wrong),
        "count where the backward is, and only there: a micro-batch that is left out adds nothing to the sum of losses "
        "and nothing to the count that it is divided by",
        "gradient",
        indices(wrong),
    )


def empty_micro_batch(case: Case) -> Finding | None:
    """A micro-batch without one target made the gradient NaN."""
    broken = [u for u in case.boundary.windows if u.why is not None and (NOT_FINITE in u.why or u.skipped)]
    sources = [(u, _source(u)) for u in broken]
    wrong = [(u, m) for u, m in sources if m is not None]
    if not wrong:
        return None
    update, empty = wrong[0]
    spoiled = tuple(u.index for u in broken if u.index >= update.index)
    after = "; from then on every parameter is NaN" if not update.skipped and len(spoiled) > 1 else ""
    return Finding(
        "empty-micro-batch",
        f"micro-batch {empty.index + 1} has {several(empty.examples, 'example')} and not one valid target: its mean is "
        f"0/0, and after its backward the gradient is NaN{after}. In {named(spoiled)}",
        empty.location,
        'sum the losses (`reduction="sum"`) and divide once, by the count of the window: the sum over no targets is 0. '
        "Where a mean is needed, divide by `count.clamp(min=1)`",
        "gradient",
        spoiled,
    )


def _source(update: Update) -> MicroBatch | None:
    """Return the empty micro-batch whose backward made a gradient NaN; None where another one may have."""
    members = update.micro_batches
    first = next((m for m in members if m.touched is not None and isnan(m.touched)), None)
    if first is None and not update.skipped:  # nothing but the last backward can have done it
        first = members[-1]
    return first if first is not None and first.count == 0 else None
