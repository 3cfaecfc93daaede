"""Words and look-ups that the rules about clipping and scalers share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from accumkit.audit.findings import named, span
from accumkit.audit.reading import Case
from accumkit.trace.record import Update

ORDER = "`scaler.unscale_(optimizer)`, clip, `scaler.step(optimizer)`, `scaler.update()`"
SAME = 1e-3  # relative: two scales, or two norms, are one


def inner_of(case: Case) -> set[int]:
    """Return the micro-batches after which their window goes on."""
    return {m.index for u in case.boundary.windows for m in u.micro_batches[:-1]}


def line_of(case: Case, kind: str, at: set[int]) -> str | None:
    """Return the line of the events of a kind after these micro-batches, the most frequent one."""
    lines = Counter(e.location for e in case.trace.events if e.kind == kind and e.micro_batch in at)
    return lines.most_common(1)[0][0] if lines else None


def weights_of(updates: Iterable[Update]) -> str:
    """Return ": one example weighs 0.5 to 1.5", or nothing where that was not measured."""
    weights = [m.weight for u in updates for m in u.micro_batches if m.weight is not None and m.count]
    return f": one example weighs {span(weights)}" if weights else ""


def indices(updates: Iterable[Update]) -> tuple[int, ...]:
    """Return the updates' indices."""
    return tuple(update.index for update in updates)


def which(updates: Iterable[Update]) -> str:
    """Return "updates 1 to 3"."""
    return named(indices(updates))
