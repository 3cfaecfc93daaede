"""The rule about evaluations that clear the gradients of a window that is not complete."""

from __future__ import annotations

from accumkit.audit.clearing import cleared_at, erased_in_evaluation
from accumkit.audit.findings import Finding, named, several, span
from accumkit.audit.reading import Case


def validation_erases(case: Case) -> Finding | None:
    """An evaluation in the middle of a window cleared what it had so far."""
    wrong = [(u, gone) for u in case.boundary.windows if (gone := erased_in_evaluation(case.trace, u))]
    if not wrong:
        return None
    gone = [m for _, members in wrong for m in members]
    indices = tuple(u.index for u, _ in wrong)
    first, members = wrong[0]
    left = [m.weight for m in first.micro_batches if m.fate == "kept" and m.weight is not None]
    rest = f", and what is left weighs {span(left)}" if left else ""
    lost = several(len(gone), "micro-batch")
    return Finding(
        "validation-erases",
        f"an evaluation in the middle of a window came with a clearing of the gradients: {lost} had a backward and "
        f"made no update. In update {first.index + 1}, {len(members)} of {first.accumulated} weigh 0{rest}. In "
        f"{named(indices)}",
        cleared_at(case.trace, gone) or gone[-1].location,
        "evaluate between windows, where the gradients are clear anyway; or leave out the `zero_grad()`: an evaluation "
        "under `torch.no_grad()` makes no gradients",
        "gradient",
        indices,
    )
