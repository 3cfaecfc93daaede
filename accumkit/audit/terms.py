"""The rule about a loss's term that belongs once to an update, such as a penalty on the weights."""

from __future__ import annotations

from collections import Counter

from accumkit.audit.findings import Finding, number, span
from accumkit.audit.reading import Case, near
from accumkit.audit.saying import indices, which
from accumkit.trace.record import Update


def repeated_auxiliary_loss(case: Case) -> Finding | None:
    """The objective's once-an-update term is added at every micro-batch."""
    wrong = [u for u in case.boundary.windows if u.auxiliary is not None and _once_each(case, u)]
    if not wrong:
        return None
    times = span(u.auxiliary for u in wrong)
    first = wrong[0]
    return Finding(
        "repeated-auxiliary-loss",
        f"the objective's once-an-update term counts {times} times: once for each micro-batch of a window, "
        f"{number(_kept(first))} of them in update {first.index + 1}. In {which(wrong)}",
        _line(case, wrong),
        "add it once a window, outside the loop over its micro-batches; where it stands in each micro-batch's loss, "
        "divide it by their number",
        "gradient",
        indices(wrong),
    )


def _line(case: Case, updates: list[Update]) -> str | None:
    """Return the line of the term's own backward, where it has one, else of the micro-batches'."""
    own = {m.index: m.location for u in updates for m in u.micro_batches}
    backwards = [e for e in case.trace.events if e.kind == "backward" and e.micro_batch in own]
    second = Counter(e.location for e in backwards if e.location != own[e.micro_batch])
    line, often = second.most_common(1)[0] if second else (None, 0)
    return line if 2 * often > len(own) else updates[0].micro_batches[0].location


def _kept(update: Update) -> int:
    return sum(m.fate != "erased" for m in update.micro_batches)


def _once_each(case: Case, update: Update) -> bool:
    """Whether the term counts as often as the window has micro-batches, and not because all its losses do."""
    kept, times = _kept(update), update.auxiliary
    if kept < 2:
        return False
    tolerance = max(10 * case.tolerance, 1e-3)
    shares = [m.share for m in update.micro_batches]
    total = 1.0 if None in shares else sum(shares)  # 1 where the losses were divided as they should be
    if near([times], [kept], tolerance):
        return not near([total], [kept], tolerance)
    return total > 0 and near([times / total], [kept], tolerance)
