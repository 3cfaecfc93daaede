"""The pictures of norms in words: where gradients point, how they turn, how the training went."""

from __future__ import annotations

from collections.abc import Sequence
from math import acos, degrees
from statistics import fmean

from accumkit.figures.numbers import below, listed, number
from accumkit.studies.curves import Curves
from accumkit.studies.nets import KINDS
from accumkit.studies.norms import Row

EXACT = 1e-9  # an error below this is rounding, in float64


def cosine_text(value: float) -> str:
    """Return a cosine with two decimals, with three where two would read as 1.

    Examples
    --------
    >>> from accumkit.figures.norm_words import cosine_text
    >>> cosine_text(0.9), cosine_text(0.9953), cosine_text(0.99999)
    ('0.90', '0.995', '1.000')
    """
    return f"{value:.2f}" if value < 0.995 else f"{value:.3f}"


def on_it(row: Row, size: int) -> bool:
    """Whether a norm's accumulated gradient is the big batch's at a size."""
    error = row.error(size)
    return error is not None and error < EXACT


def describe_dials(rows: Sequence[Row], size: int) -> str:
    """Say where each norm's accumulated gradient points, at one micro-batch size.

    Examples
    --------
    >>> from accumkit.figures.norm_words import describe_dials
    >>> from accumkit.studies import norms
    >>> describe_dials(norms.compare(("batch", "group"), (64, 4), seeds=2).rows, 64)
    'Micro-batches of 64: with BatchNorm and GroupNorm the accumulated gradient is that of the big batch.'
    """
    if not rows:
        return "Nothing is measured yet."
    exact = [row.title for row in rows if on_it(row, size)]
    turned = [row for row in rows if row.cosine(size) is not None and not on_it(row, size)]
    refused = [row.title for row in rows if row.cosine(size) is None]
    parts = []
    for row in turned:
        mean = row.cosine(size)
        angle = degrees(acos(max(-1.0, min(1.0, mean))))
        parts.append(
            f"with {row.title} the accumulated gradient is turned from the big batch's by {angle:.0f} degrees "
            f"(cosine {cosine_text(mean)}, relative error up to {number(row.error(size), 2)})"
        )
    if refused:
        parts.append(f"{listed(refused)} is refused by torch, since a channel would have a single value")
    if exact:
        whose = "that of the big batch" if not turned else "the big batch's own"
        parts.append(f"with {listed(exact, most=9)} the accumulated gradient is {whose}")
    return f"Micro-batches of {size}: {'; '.join(parts)}."


def describe_cosines(rows: Sequence[Row]) -> str:
    """Say how each norm's gradient keeps its direction as micro-batches shrink.

    Examples
    --------
    >>> from accumkit.figures.norm_words import describe_cosines
    >>> from accumkit.studies import norms
    >>> describe_cosines(norms.compare(("group",), (64, 4), seeds=2).rows)
    "Cosine to the big batch's gradient, by micro-batch size: GroupNorm 1 at every size (error below 1e-12)."
    """
    if not rows:
        return "Nothing is measured yet."
    parts = []
    for row in rows:
        if row.exact:
            continue
        means = {b: row.cosine(b) for b in row.sizes if row.cosine(b) is not None}
        known = [f"{'1' if on_it(row, b) else cosine_text(mean)} at {b}" for b, mean in means.items()]
        said = f"{row.title} {listed(known, most=9)}" if known else f"{row.title} refused by torch at every size"
        said += f", refused at {listed(list(row.refused))}" if known and row.refused else ""
        parts.append(said)
    exact = [row for row in rows if row.exact]
    if exact:
        worst = max(error for row in exact for errors in row.errors for error in errors)
        parts.append(f"{listed([row.title for row in exact], most=9)} 1 at every size (error {below(worst)})")
    return f"Cosine to the big batch's gradient, by micro-batch size: {'; '.join(parts)}."


def describe_curves(curves: Curves) -> str:
    """Say which validation errors the training has reached, by norm and micro-batch size.

    Examples
    --------
    >>> from accumkit.figures.norm_words import describe_curves
    >>> from accumkit.studies.curves import Curves, Plan
    >>> describe_curves(Curves(Plan()))
    'No run is through yet.'
    """
    parts = []
    for norm in curves.plan.norms:
        finals = {size: curves.final(norm, size) for size in curves.plan.sizes}
        known = [f"{fmean(found):.1f} at {size}" for size, found in finals.items() if found]
        if known:
            parts.append(f"{KINDS[norm].title} {listed(known, most=9)}")
    if not parts:
        return "No run is through yet."
    runs = sum(len(curves.final(n, b)) for n in curves.plan.norms for b in curves.plan.sizes)
    amount = f"{runs} of {len(curves.plan.runs)} runs" if runs < len(curves.plan.runs) else f"all {runs} runs"
    window = curves.plan.window
    return (
        f"Validation error in percent by micro-batch size, windows of {window}: {'; '.join(parts)} (mean of {amount})."
    )
