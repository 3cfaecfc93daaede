"""Rules about coupling: examples that act on each other, so that a window is more than its micro-batches added up."""

from __future__ import annotations

from accumkit.audit.findings import Finding, listed, named, number, several, span
from accumkit.audit.reading import Case
from accumkit.trace.record import Update

DEFAULT = 0.1  # torch's momentum of running statistics: one that is smaller was chosen, perhaps for accumulation
NEAR = 0.9995
SEEN = 1e-9  # 1 - cosine beyond this was measured; below, the window could not be run as one
OTHER = "examples"  # what a trace names where no layer is known to couple them


def batchnorm_statistics(case: Case) -> Finding | None:
    """BatchNorm normalises each micro-batch by itself."""
    layers = [name for name in case.trace.coupled if name != OTHER]
    windows = _long(case)
    if not layers or not windows:
        return None
    return Finding(
        "batchnorm-statistics",
        f"BatchNorm ({_layers(layers)}) normalises each micro-batch by itself, so the updates are not those of the big "
        f"batch, however well the loop divides and steps{_apart(case, windows)}. {_where(case, windows)}",
        None,
        "replace it by GroupNorm, which does not mix examples, `model = ak.replace_batchnorm(model, groups=...)`; or "
        "freeze its statistics, `frozen=True`; or keep micro-batches large (SyncBatchNorm joins ranks, not "
        "micro-batches)",
        "gradient",
    )


def batchnorm_momentum(case: Case) -> Finding | None:
    """The running statistics move at every micro-batch, with a momentum that was meant for updates."""
    updates = len(case.boundary.windows)
    moved = [
        (layer, momentum, moves / updates)
        for layer, momentum, moves in case.trace.running
        if momentum is not None and momentum >= DEFAULT and updates and moves >= 1.5 * updates
    ]
    if not moved or not _long(case):
        return None
    _, momentum, often = moved[0]
    layers = [layer for layer, _, _ in moved]
    meant = 1 - (1 - momentum) ** (1 / case.steps)
    mean = " on average" if len({u.accumulated for u in case.boundary.windows}) > 1 else ""
    return Finding(
        "batchnorm-momentum",
        f"the running statistics of BatchNorm ({_layers(layers)}) move {number(often)} times an update{mean}: their "
        f"momentum of {number(momentum)} amounts to {number(1 - (1 - momentum) ** often)} an update",
        None,
        f"set each layer's momentum to `1 - (1 - momentum) ** (1 / {case.steps})`, here {number(meant)}; that mends "
        "evaluation mode alone: gradients still come from each micro-batch's own statistics",
        "record",
    )


def coupled_examples(case: Case) -> Finding | None:
    """The loss of an example depends on others in its micro-batch, through the loss or a layer of one's own."""
    windows = _long(case)
    if OTHER not in case.trace.coupled or not windows:
        return None
    return Finding(
        "coupled-examples",
        "the objective's gradient over a whole window is not the sum of those over its micro-batches: examples act on "
        f"each other, in the loss (contrastive, ranking) or in a layer, and can do so only within a micro-batch"
        f"{_apart(case, windows)}. {_where(case, windows)}",
        windows[0].micro_batches[0].location,
        "compare with the whole window: keep what the examples are compared with (embeddings of the window, computed "
        "first without gradients) at hand for each micro-batch; or use a loss of each example by itself",
        "gradient",
    )


def dropout_masks(case: Case) -> Finding | None:
    """Micro-batches of one window draw the same random numbers, since the seed is set again before each."""
    wrong = [u for u in _long(case) if u.masks_repeated]
    if not wrong:
        return None
    repeated, drew = sum(u.masks_repeated for u in wrong), sum(u.drew for u in wrong)
    return Finding(
        "dropout-masks",
        f"{repeated:,} of {several(drew, 'micro-batch')} drew the same random numbers in forward as an earlier one of "
        "their window, so their dropout masks are the same; in the big batch every example has masks of its own. "
        f"{_where(case, wrong)}",
        wrong[0].micro_batches[0].location,
        "set the seed once, before the training: leave `torch.manual_seed(...)` out of the loop. Masks then differ "
        "from the big batch's in value, not in distribution",
        "gradient",
        tuple(u.index for u in wrong),
    )


def masks_differ(case: Case) -> str | None:
    """Return what a reader should know of dropout that is as it should be; no fault, and changes no status."""
    windows = [u for u in _long(case) if u.drew > 1 and not u.masks_repeated]
    if not windows:
        return None
    return (
        f"Forward draws random numbers (such as dropout masks): those of N micro-batches are drawn as the big batch's "
        f"are, but are not the same ones, so gradients agree in distribution, not in value. {_where(case, windows)}."
    )


def _long(case: Case) -> list[Update]:
    """Return the updates of several micro-batches; with one, nothing is split."""
    return [update for update in case.boundary.windows if update.accumulated > 1]


def _layers(names: list[str]) -> str:
    if len(names) == 1:
        return f"layer {names[0] or 'itself'}"
    return "layers " + listed(names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"])


def _apart(case: Case, windows: list[Update]) -> str:
    """Say how far the gradients are from the big batch's, where that was measured and is more than rounding."""
    seen = [u for u in windows if u.cosine is not None and u.relative_error is not None and 1 - u.cosine > SEEN]
    seen = [u for u in seen if u.relative_error > case.tolerance]
    if not seen:
        return ""
    differs = f"{span(u.relative_error for u in seen)} of the big batch's length"
    if min(u.cosine for u in seen) > NEAR:  # in three digits it would be 1.000
        return f": the gradient differs from the big batch's by {differs}"
    return f": the gradient's cosine to the big batch's is {_cosines(seen)}, its difference {differs}"


def _cosines(windows: list[Update]) -> str:
    low, high = (f"{f(u.cosine for u in windows):.3f}" for f in (min, max))
    return low if low == high else f"{low} to {high}"


def _where(case: Case, updates: list[Update]) -> str:
    everywhere = len(updates) == len(case.boundary.windows) and len(updates) > 1
    return f"In every update ({len(updates)})" if everywhere else f"In {named(u.index for u in updates)}"
