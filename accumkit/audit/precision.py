"""Rules about clipping and low-precision sums: what may be done to gradients, when, and in which precision."""

from __future__ import annotations

from collections import Counter

from accumkit.audit.findings import Finding, number, several, span, worst_of
from accumkit.audit.reading import Case
from accumkit.audit.saying import ORDER, SAME, indices, inner_of, line_of, weights_of, which
from accumkit.trace.record import Update

# A low-precision sum is accused from this many times what rounding it once would cost. A sum of 2 costs exactly one
# rounding, as any gradient in that precision does; of 3 about 1.25, of 4 about 1.5, of 16 about 3. Below four
# micro-batches it is left alone.
TIMES, FEWEST = 1.1, 4


def clip_before_unscale(case: Case) -> Finding | None:
    """Clipping saw gradients that a scaler's scale was still in."""
    wrong = [u for u in case.boundary.windows if _scaled(u) and not u.skipped]
    if not wrong:
        return None
    first = next((u for u in wrong if u.clip_factor is not None), wrong[0])
    by_event = line_of(case, "clip", {u.micro_batches[-1].index for u in wrong})
    how = "" if by_event else " (clipped by hand: the line named is the step)"
    return Finding(
        "clip-before-unscale",
        f"clipping saw gradients multiplied by {number(first.clip_scale)}{_shrunk(first)}. In {which(wrong)}{how}",
        by_event or first.location,
        f"unscale first, once a window, after its last backward: {ORDER}",
        "update",
        indices(wrong),
    )


def _scaled(update: Update) -> bool:
    return update.clip_scale is not None and abs(update.clip_scale - 1) > SAME


def _shrunk(update: Update) -> str:
    """Say what an update's clipping did, and what it should have done."""
    if update.clip_factor is None:
        return ""
    norm, limit, right = update.grad_norm, update.max_norm, update.expected_clip_factor
    saw = "" if norm is None else f": in update {update.index + 1} a norm of {number(norm * update.clip_scale)}, where "
    saw += "" if norm is None else f"theirs is {number(norm)}"
    asked = "" if limit is None else f"; with a limit of {number(limit)} it"
    meant = "" if right is None else f" instead of {number(right)}"
    return f"{saw}{asked or '; it'} multiplied them by {number(update.clip_factor)}{meant}"


def clip_every_micro_batch(case: Case) -> Finding | None:
    """Gradients were clipped while their window was still being added up."""
    inner = inner_of(case)
    events = [e for e in case.trace.events if e.kind == "clip" and e.micro_batch in inner]
    if not events:
        return _clipped_by_hand(case, inner)
    bit = [e for e in events if e.value is None or e.value < 1 - SAME]
    seen = f"{several(len(events), 'clip')} came inside a window, before its last backward"
    updates = [u for u in case.boundary.windows if {m.index for m in u.micro_batches} & {e.micro_batch for e in events}]
    if bit:
        factors = [e.value for e in bit if e.value is not None]
        by = f", and multiplied what was there by {span(factors)}" if factors else ", and cut single values"
        seen += f": {len(bit)} of them changed the gradients{by}{weights_of(updates)}. In {which(updates)}"
    else:
        seen += "; none of them changed anything, as every norm was below the limit: the first that is above it will"
    return Finding(
        "clip-every-micro-batch",
        seen,
        Counter(e.location for e in events).most_common(1)[0][0],
        "clip once a window, after its last backward and before the step; each clip inside it shrinks the "
        "micro-batches before it once more",
        "gradient" if bit else "record",
        indices(updates) if bit else (),
    )


def _clipped_by_hand(case: Case, inner: set[int]) -> Finding | None:
    """Tell clips written by hand inside windows: different factors that all end at one norm."""
    touched = [m for u in case.boundary.windows for m in u.micro_batches if m.index in inner and m.touched is not None]
    clipped = [m for m in touched if 0 < m.touched < 1 - SAME and m.touched_norm]
    norms, factors = [m.touched_norm for m in clipped], [m.touched for m in clipped]
    if len(clipped) < 2 or max(norms) - min(norms) > SAME * max(norms) or max(factors) - min(factors) < SAME:
        return None
    hit = {m.index for m in clipped}
    updates = [u for u in case.boundary.windows if hit & {m.index for m in u.micro_batches}]
    return Finding(
        "clip-every-micro-batch",
        f"after {len(clipped)} backward calls inside a window the gradients were multiplied by {span(factors)} and "
        f"always ended at a norm of {number(max(norms))}: a clip written by hand{weights_of(updates)}. In "
        f"{which(updates)} (the line named is the backward before it)",
        clipped[0].location,
        "clip once a window, after its last backward and before the step",
        "gradient",
        indices(updates),
    )


def low_precision_sum(case: Case) -> Finding | None:
    """The window's sum is held in a precision that rounds at every addition."""
    measured = [u for u in case.boundary.windows if u.sum_error is not None and u.one_rounding]
    wrong = [u for u in measured if u.accumulated >= FEWEST and u.sum_error > TIMES * u.one_rounding]
    if not wrong:
        return None
    worst = worst_of(wrong, lambda u: u.sum_error)
    return Finding(
        "low-precision-sum",
        f"gradients are added up in {case.trace.precision}: after {several(worst.accumulated, 'micro-batch')} the sum "
        f"in `.grad` is off by {number(worst.sum_error)} of its length, "
        f"{number(worst.sum_error / worst.one_rounding)} times what rounding it once would cost (update "
        f"{worst.index + 1}); the error grows with N. In {which(wrong)}",
        worst.micro_batches[0].location,
        "add up in float32: keep the parameters in float32 and compute under "
        "`torch.autocast(..., dtype=torch.bfloat16)`, or keep the sums outside `.grad`, as "
        "`ak.train_epoch(..., accumulate_dtype=torch.float32)` does",
        "gradient",
        indices(wrong),
    )
