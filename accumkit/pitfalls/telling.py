"""A simulation in words and numbers."""

from __future__ import annotations

from math import isfinite, isnan

from accumkit.audit.findings import listed, number, several, span
from accumkit.audit.reading import tolerance_of
from accumkit.audit.wording import ONE
from accumkit.pitfalls.running import Run
from accumkit.trace.record import Trace

KINDS = {  # of events, in the singular and in the plural
    "step": ("update", "updates"),
    "skipped step": ("skipped step", "skipped steps"),
    "scheduler step": ("scheduler step", "scheduler steps"),
    "ema update": ("update of the average", "updates of the average"),
}


def distance(right: Run, wrong: Run) -> float:
    """Return how far two runs' parameters end from each other, in units of how far the first one moved them."""
    moved = (right.end - right.start).norm().item()
    apart = (wrong.end - right.end).norm().item()
    return apart / moved if moved else (0.0 if apart == 0 else float("inf"))


def furthest_ratio(trace: Trace) -> float | None:
    """Return the gradient ratio furthest from 1 of all updates; None where none was measured."""
    ratios = [u.gradient_ratio for u in trace.updates if u.gradient_ratio is not None and isfinite(u.gradient_ratio)]
    return max(ratios, key=lambda r: abs(r - 1) if r < 1 else 1 - 1 / r, default=None)


def sentence(right: Run, wrong: Run) -> str:
    """Say what a wrong loop did, with its numbers, beside the right one."""
    trace = wrong.trace
    said = (
        _weights(trace),
        _gone(trace),
        _steps(trace, right.trace),
        _windows(trace, right.trace),
        _precision(trace),
        _rate(right, wrong),
        _memory(right, wrong),
        _parameters(right, wrong),
    )
    parts = [part for part in said if part]
    text = "; ".join(parts) + "."
    return text[0].upper() + text[1:]


def _parameters(right: Run, wrong: Run) -> str:
    if not wrong.end.isfinite().all():
        return "in the end parameters are NaN"
    apart = distance(right, wrong)
    if apart < 1e-9:
        return "the parameters end where the right loop's do"
    return f"the parameters end apart from the right loop's by {number(100 * apart)} % of the way that those have gone"


def _weights(trace: Trace) -> str | None:
    unit, tolerance = ONE.get(trace.unit, "example"), tolerance_of(trace)
    kept = [m.weight for u in trace.updates for m in u.micro_batches if m.fate != "erased" and m.weight is not None]
    kept = [w for w in kept if not isnan(w)]
    ratio = furthest_ratio(trace)
    if not kept or ratio is None:
        return None
    off = [w for w in kept if abs(w - 1) > tolerance]
    weigh = f"one {unit} weighs {span(off)} instead of 1" if off else f"every {unit} that counts weighs 1"
    if off and len(off) < len(kept):
        weigh += f" in {len(off)} of {several(len(kept), 'micro-batch')}"
    if abs(ratio - 1) <= tolerance:
        return weigh
    return f"{weigh}, and a gradient is {number(ratio)} times that of the big batch"


def _gone(trace: Trace) -> str | None:
    fates = {}
    for m in trace.micro_batches:
        fates.setdefault(m.fate, []).append(m)
    words = {"erased": "cleared before the step", "lost": "in no update", "leaked": "in the next pass's first update"}
    said = [f"{several(len(fates[fate]), 'micro-batch')} {text}" for fate, text in words.items() if fate in fates]
    return listed(said) if said else None


def _steps(trace: Trace, right: Trace) -> str | None:
    said = []
    for kind, nouns in KINDS.items():
        made, meant = trace.count_of(kind), right.count_of(kind)
        if made != meant:
            said.append(f"{made} {nouns[made != 1]} instead of {meant}")
    carried = max((u.carried for u in trace.updates), default=0.0)
    if carried > tolerance_of(trace):
        said.append(f"up to {number(carried)} of a gradient is left over from earlier updates")
    return listed(said) if said else None


def _windows(trace: Trace, right: Trace) -> str | None:
    """Say which windows were made, where they are not those that were meant; and how often the data were begun."""
    made, meant = ([u.accumulated for u in t.updates] for t in (trace, right))
    said = []
    if made != meant and made:
        said.append(f"windows of {_list(made)} micro-batches instead of {_list(meant)}")
    if len(trace.epoch_sizes) > len(right.epoch_sizes):
        said.append(f"the data are begun {len(trace.epoch_sizes)} times instead of {len(right.epoch_sizes)}")
    return listed(said) if said else None


def _list(sizes: list[int]) -> str:
    return listed([str(size) for size in sizes]) if len(sizes) <= 6 else ", ".join(map(str, sizes[:6])) + ", ..."


def _rate(right: Run, wrong: Run) -> str | None:
    if abs(right.learning_rate - wrong.learning_rate) <= 1e-9:
        return None
    return f"the learning rate ends at {number(wrong.learning_rate)} instead of {number(right.learning_rate)}"


def _precision(trace: Trace) -> str | None:
    clips = [u for u in trace.updates if u.clip_factor is not None and u.expected_clip_factor]
    off = [u.clip_factor / u.expected_clip_factor for u in clips]
    off = [f for f in off if abs(f - 1) > max(tolerance_of(trace), 1e-3)]
    said = [f"clipping leaves {span(off)} of what it should"] if off else []
    terms = [u.auxiliary for u in trace.updates if u.auxiliary is not None and abs(u.auxiliary - 1) > 1e-3]
    if terms:
        said.append(f"the once-an-update term counts {span(terms)} times")
    errors = [u.relative_error for u in trace.updates if u.relative_error is not None]
    weights = [m.weight for u in trace.updates for m in u.micro_batches if m.weight is not None]
    fair = weights and all(abs(w - 1) <= tolerance_of(trace) for w in weights)
    if fair and errors and max(errors) > 1e-6 and not said:
        said.append(f"a gradient differs from the big batch's by up to {number(max(errors))} of its length")
    return listed(said) if said else None


def _memory(right: Run, wrong: Run) -> str | None:
    if wrong.kept <= right.kept:
        return None
    each = wrong.kept / len(wrong.trace.micro_batches)
    return f"after training {wrong.kept:,} bytes of activations are still held, {each:,.0f} for every micro-batch"
