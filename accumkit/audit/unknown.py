"""Why updates could not be judged: what was not seen, not measured, or may serve another purpose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from accumkit.audit.fetched_words import perhaps_over, perhaps_passed_over
from accumkit.audit.findings import Finding, listed, named, several, span
from accumkit.audit.reading import Case, without_evidence
from accumkit.trace.record import Update

EXPLAINS = ("empty-micro-batch",)  # findings that say why a gradient could not be measured


def unknowns(case: Case, differs: bool) -> Iterator[str]:
    """Yield why updates could not be judged; ``differs``: something else shows that they are not the big batch's."""
    boundary = case.boundary
    if not boundary.windows:
        yield _nothing(case)
        return
    if boundary.kind == "unclear" and not boundary.missed:
        sizes = boundary.sizes
        shown = listed([str(s) for s in sizes[:8]]) if len(sizes) <= 8 else ", ".join(map(str, sizes[:8])) + ", ..."
        if boundary.how:
            meant = f", and {boundary.how}"
        elif _grows(sizes, case.steps):
            meant = "; they grow, as in a warm-up: if that is meant, nothing is wrong with them"
        elif common := _one_number(sizes):
            shown = str(common)
            meant = f": declare accumulation_steps={common} if that is meant, else let the loop use the number declared"
        else:
            meant = "; declare the one that is meant, or look where the boundary's condition holds"
        fair = " Every example weighs 1 in its own window." if _all_fair(case) else ""
        yield f"Windows of {shown} micro-batches do not follow from accumulation_steps={case.steps}{meant}.{fair}"
    if over := perhaps_over(case):
        yield over
    if over := perhaps_passed_over(case):
        yield over
    if case.trace.unit is None:
        alone = "; the order of the events alone shows no fault, and `p.grad.data.zero_()`, say, is no event"
        yield (
            f"No objective was given, so no share was measured{'' if differs else alone}. "
            "Give ak.watch an objective, such as ak.classification()."
        )
        return
    if all(u.skipped for u in boundary.windows):
        yield "The scaler skipped every step, so no update was made that could be judged."
    yield from not_measured(case)
    yield from _says_nothing(case)
    yield from another_objective(case)


def another_objective(case: Case, found: bool = False) -> Iterator[str]:
    """Yield that the loop's gradients are not the objective's; ``found``: beside faults that have a name."""
    foreign = [u for u in case.boundary.windows if case.foreign(u) and not _unmeasured(u)]
    if foreign:
        also = " What examples weigh there is measured with that objective, and may be off as much." if found else ""
        yield (
            f"The loop's gradients are not those of the declared objective: {span(u.unexplained for u in foreign)} of "
            f"them is no multiple of its gradient in {_of(foreign)}. Is the loop's loss another one, or does the "
            f"objective lack a term?{also}{_joined(case, foreign)}"
        )


def not_measured(case: Case, findings: Iterable[Finding] = ()) -> Iterator[str]:
    """Yield why shares were not measured, but for updates of which a finding says why."""
    if case.trace.unit is None:
        return
    told = {index for finding in findings if finding.pitfall in EXPLAINS for index in finding.updates}
    unseen = [u for u in case.boundary.windows if not u.skipped and _unmeasured(u) and u.index not in told]
    for why, updates in _grouped((u.why, u) for u in unseen):
        said = why.removesuffix(".") if why else "no reason was recorded"
        yield f"{_of(updates).capitalize()} could not be measured: {said}."


def _says_nothing(case: Case) -> Iterator[str]:
    """Yield why windows that were measured give no evidence; a gradient of 0 matters only where none gives any."""
    blank = [u for u in case.boundary.windows if not u.skipped and without_evidence(u) and not case.foreign(u)]
    zero = [u for u in blank if u.grad_norm == 0]
    if zero and not case.windows:
        yield (
            f"The gradient is 0 in {_of(zero)}, or too short to be squared, so nothing shows what an example weighs: "
            "watch the loop on data from which the model still learns."
        )
    rest = [u for u in blank if u not in zero]
    if rest:
        yield (
            f"{_of(rest).capitalize()} could not be judged: beside their reference, or in their length, the gradients "
            "give numbers that are not finite."
        )


def _nothing(case: Case) -> str:
    ran = len(case.trace.micro_batches)
    if ran:
        return f"{several(ran, 'micro-batch')} had a backward, but no optimizer step was seen."
    made = sum(not u.skipped for u in case.trace.updates)
    if made:
        return (
            f"{several(made, 'optimizer step')} {'was' if made == 1 else 'were'} made, but no backward was seen: only "
            "what `.backward()` adds to `.grad` can be watched, not what comes from `torch.autograd.grad` or is "
            "written into `.grad`."
        )
    return "No backward and no optimizer step was seen: nothing was trained."


def _joined(case: Case, updates: list[Update]) -> str:
    """Say it where one backward was for several forward calls, whose losses may have been averaged."""
    calls: dict[int, int] = {}
    for event in case.trace.events:
        if event.kind == "forward":
            calls[event.micro_batch] = calls.get(event.micro_batch, 0) + 1
    if not all(any(calls.get(m.index, 0) > 1 for m in u.micro_batches) for u in updates):
        return ""
    return (
        " One backward was for several forward calls there: a mean of their means weighs examples unequally where "
        "they differ in size (mean-of-means), and is not measured call by call."
    )


def _unmeasured(update: Update) -> bool:
    return update.why is not None or any(m.share is None for m in update.micro_batches)


def _all_fair(case: Case) -> bool:
    return len(case.windows) == len(case.boundary.windows) and all(w.fair for w in case.windows)


def _one_number(sizes: list[int]) -> int | None:
    """Return the N of a loop that keeps to one: most windows have it, and only the ends of passes are shorter."""
    largest = max(sizes)
    return largest if sizes.count(largest) > 1 and 2 * sizes.count(largest) >= len(sizes) else None


def _grows(sizes: list[int], steps: int) -> bool:
    inner = sizes[:-1]
    return len(set(inner)) > 1 and inner == sorted(inner) and max(sizes) <= steps


def _grouped(pairs) -> list[tuple[str | None, list[Update]]]:
    groups: dict[str | None, list[Update]] = {}
    for key, update in pairs:
        groups.setdefault(key, []).append(update)
    return list(groups.items())


def _of(updates) -> str:
    return named(u.index for u in updates)
