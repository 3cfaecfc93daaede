"""What a trace says about the updates themselves, beside the faults that rules can name."""

from __future__ import annotations

from collections.abc import Iterator

from accumkit.audit.coupling import masks_differ
from accumkit.audit.ends import cut_short, dropped, leaking
from accumkit.audit.findings import Finding, listed, named, number, several, span
from accumkit.audit.horizon import perhaps_in_micro_batches
from accumkit.audit.nested import perhaps_nested
from accumkit.audit.reading import Case, near
from accumkit.audit.reuse import perhaps_reused
from accumkit.audit.schedule import perhaps_too_often
from accumkit.trace.record import Update

EQUIVALENT, SCALED, DIFFERENT, UNKNOWN = "equivalent", "equivalent up to scale", "not equivalent", "cannot tell"

# what may be a fault or meant, or what a reader should know: a sentence each, or None
PERHAPS = (masks_differ, perhaps_nested, perhaps_in_micro_batches, perhaps_reused, perhaps_too_often)

TURNED = (
    " The gradient points the other way: with an optimizer that climbs (maximize=True) the objective still falls, as "
    "it should; with any other it grows."
)

INSIDE = {"clip": "clipped", "unscale": "unscaled"}  # what changes gradients of a window that is not complete yet


def status_of(case: Case, findings: tuple[Finding, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the status of the updates and its reasons, each a sentence.

    Numbers that were measured outrank what could not be: one update that is not the big batch's makes the run
    "not equivalent", else one that cannot be judged makes it "cannot tell".
    """
    explained = {index for finding in findings for index in finding.updates}
    differences = list(_differences(case, explained))
    unknowns = list(_unknowns(case))
    notes = [*_notes(case), *map(_sentence, case.trace.reasons)]
    if any(finding.affects in ("gradient", "update") for finding in findings):
        return DIFFERENT, (*differences, *notes)
    if differences:
        return DIFFERENT, (*differences, *unknowns, *notes)
    if unknowns:
        return UNKNOWN, (*unknowns, *notes)
    if case.constant:
        return SCALED, (_scale(case), *notes)
    for said in (_units(case), _by_hand(case)):
        if said:
            return SCALED, (said, *notes)
    return EQUIVALENT, tuple(notes)


def _differences(case: Case, explained: set[int]) -> Iterator[str]:
    """Yield what was measured to differ from the big batch's updates and belongs to no finding."""
    windows, tolerance = case.boundary.windows, case.tolerance
    gone = [u for u in windows if u.index not in explained and any(m.fate == "erased" for m in u.micro_batches)]
    gone = [u for u in gone if not case.foreign(u)]
    if gone and case.boundary.kind != "unclear":
        erased = sum(m.fate == "erased" for u in gone for m in u.micro_batches)
        yield f"{several(erased, 'micro-batch')} of {_of(gone)} were cleared before the step and weigh 0."
    first = case.trace.updates[0] if case.trace.updates else None
    if first is not None and first.carried > tolerance:
        yield (
            f"Update 1 began with a gradient that was there before the watch, {number(first.carried)} times as long as "
            "the whole gradient at its step: clear the gradients first, or begin to watch between two windows."
        )
    unequal = [w for w in case.windows if w.update.index not in explained and case.ways[w.update.index] is None]
    if not case.constant and unequal and case.boundary.kind != "unclear":
        weights = span(weight for w in unequal for weight in w.weights)
        yield (
            f"One example weighs {weights} in {_of(w.update for w in unequal)}, in a way that no rule of this audit "
            f"explains{_inside(case)}."
        )
    clipped = [u for u in windows if u.index not in explained and _clipped_wrongly(u, max(tolerance, 1e-3))]
    if clipped:
        u = clipped[0]
        yield (
            f"Clipping multiplied the gradient of update {u.index + 1} by {number(u.clip_factor)}, where its max_norm "
            f"asks for {number(u.expected_clip_factor)} of the whole window's unscaled gradient. In {_of(clipped)}."
        )
    terms = [u for u in windows if u.auxiliary is not None and abs(u.auxiliary - 1) > max(10 * tolerance, 1e-4)]
    terms = [u for u in terms if u.index not in explained]
    if terms:
        yield (
            f"The objective's once-an-update term counted {span(u.auxiliary for u in terms)} times instead of once "
            f"in {_of(terms)}."
        )
    fair = {w.update.index for w in case.windows if w.fair} if case.boundary.kind != "straddling" else set()
    touched = [u for u in windows if u.index in fair - explained and _touched(u, tolerance) and not terms]
    if touched and not case.trace.coupled:
        yield (
            f"Every example weighs 1 in {_of(touched)}, but the gradient at the step differs from the big batch's by "
            f"{span(u.relative_error for u in touched)} of its length: something else has changed it."
        )


def _unknowns(case: Case) -> Iterator[str]:
    """Yield why updates could not be judged."""
    boundary = case.boundary
    if not boundary.windows:
        ran = len(case.trace.micro_batches)
        if ran:
            yield f"{several(ran, 'micro-batch')} had a backward, but no optimizer step was seen."
        else:
            yield "No backward and no optimizer step was seen: nothing was trained."
        return
    if boundary.kind == "unclear":
        sizes = boundary.sizes
        shown = listed([str(s) for s in sizes[:8]]) if len(sizes) <= 8 else ", ".join(map(str, sizes[:8])) + ", ..."
        if boundary.how:
            meant = f", and {boundary.how}: they may serve several purposes (two networks, two losses)"
        elif _grows(sizes, case.steps):
            meant = "; they grow, as in a warm-up: if that is meant, nothing is wrong with them"
        else:
            meant = "; declare the one that is meant, or look where the boundary's condition holds"
        fair = " Every example weighs 1 in its own window." if _all_fair(case) else ""
        yield f"Windows of {shown} micro-batches do not follow from accumulation_steps={case.steps}{meant}.{fair}"
    if case.trace.unit is None:
        yield (
            "No objective was given, so no share was measured; the order of the events alone shows no fault. "
            "Give ak.watch an objective, such as ak.classification()."
        )
        return
    if all(u.skipped for u in boundary.windows):
        yield "The scaler skipped every step, so no update was made that could be judged."
    for why, updates in _grouped((u.why, u) for u in boundary.windows if not u.skipped and _unmeasured(u)):
        said = why.removesuffix(".") if why else "no reason was recorded"
        yield f"{_of(updates).capitalize()} could not be measured: {said}."
    foreign = [u for u in boundary.windows if case.foreign(u) and not _unmeasured(u)]
    if foreign:
        yield (
            f"The loop's gradients are not those of the declared objective: {span(u.unexplained for u in foreign)} of "
            f"them is no multiple of its gradient in {_of(foreign)}. Is the loop's loss another one, or does the "
            "objective lack a term?"
        )


def _notes(case: Case) -> Iterator[str]:
    """Yield what a reader should know and what changes no status."""
    boundary = case.boundary
    if boundary.kind == "straddling":
        across = [u for u in boundary.windows if len({m.epoch for m in u.micro_batches}) > 1]
        yield (
            f"Windows go on across the end of a pass ({_of(across)}), each with its {case.steps} micro-batches, which "
            f"weigh alike."
        )
    if boundary.kind in ("straddling", "unclear") and boundary.windows and case.trace.lost and not dropped(case):
        yield f"{several(len(case.trace.lost), 'micro-batch')} at the end of the run made no update."
    if cut_short(case):
        last = boundary.passes[-1]
        size = max(p.size for p in boundary.passes)
        yield f"The last pass ended after {last.ran + last.left_out} of {size} micro-batches."
    yield from (said for note in PERHAPS if (said := note(case)))
    skipped = [u for u in case.trace.updates if u.skipped]
    if skipped:
        yield f"The scaler skipped {several(len(skipped), 'step')} ({_of(skipped)}), which changed nothing."
    if case.trace.tail == "drop" and any(boundary.is_tail(u) for u in boundary.windows):
        yield 'tail="drop" was declared, but short last windows had a step.'
    meant = case.trace.tail == "drop" and boundary.kind == "declared" and case.trace.lost
    if meant and not dropped(case) and not leaking(case):  # of a tail that leaks, the run's last was not dropped
        yield f"{several(len(case.trace.lost), 'micro-batch')} in short last windows were dropped, as declared."


def _scale(case: Case) -> str:
    kind, factor = case.constant
    turned = "" if factor > 0 else TURNED
    if kind == "coefficient":
        how = (
            "is summed and never divided" if abs(factor - 1) <= 2 * case.tolerance else f"counts {number(factor)} times"
        )
        return (
            f"Every example weighs the same over the whole run, and its loss {how}: right if a summed loss is meant "
            f"and the learning rate was chosen for it. For the mean, divide by the count of the window.{turned}"
        )
    length = number(abs(factor))
    longer = "" if length == "1" else f": a constant factor, as a learning rate {length} times as large would be"
    return f"Every example weighs {number(factor)} instead of 1, the same over the whole run{longer}.{turned}"


def _units(case: Case) -> str | None:
    sums = [w for w in case.following("sum") if not w.fair]
    if not sums:
        return None
    return (
        f"Every example weighs {span(x for w in sums for x in w.weights)} instead of 1: the loss is summed over the "
        "window and never divided. With micro-batches of one unit, a loss summed on purpose and a missing division "
        "(missing-division) are the same thing: if the mean is meant, divide by the count of the window."
    )


def _by_hand(case: Case) -> str | None:
    """Say by what every finished gradient was multiplied by hand, where that is too regular for clipping."""
    factors = [u.clip_factor for u in case.boundary.windows if not u.skipped]
    if len(factors) < 2 or None in factors or case.trace.count_of("clip"):
        return None
    if not near(factors, [factors[0]] * len(factors), case.tolerance) or near(factors, [1.0] * len(factors), 1e-3):
        return None
    return (
        f"The finished gradient is multiplied by {number(factors[0])} before every step: a constant factor, as a "
        f"learning rate {number(factors[0])} times as large would be."
    )


def _inside(case: Case) -> str:
    """Name what touched the gradients of a window before it was complete."""
    inner = {m.index for u in case.boundary.windows for m in u.micro_batches[:-1]}
    for event in case.trace.events:
        if event.kind in INSIDE and event.micro_batch in inner:
            return f"; gradients were {INSIDE[event.kind]} inside a window at {event.location}"
    return ""


def _clipped_wrongly(update: Update, tolerance: float) -> bool:
    made, meant = update.clip_factor, update.expected_clip_factor
    return made is not None and meant is not None and abs(made - meant) > tolerance * meant


def _touched(update: Update, tolerance: float) -> bool:
    return update.relative_error is not None and update.relative_error > 10 * tolerance


def _unmeasured(update: Update) -> bool:
    return update.why is not None or any(m.share is None for m in update.micro_batches)


def _all_fair(case: Case) -> bool:
    return len(case.windows) == len(case.boundary.windows) and all(w.fair for w in case.windows)


def _grows(sizes: list[int], steps: int) -> bool:
    inner = sizes[:-1]
    return len(set(inner)) > 1 and inner == sorted(inner) and max(sizes) <= steps


def _grouped(pairs) -> list[tuple[str | None, list[Update]]]:
    groups: dict[str | None, list[Update]] = {}
    for key, update in pairs:
        groups.setdefault(key, []).append(update)
    return list(groups.items())


def _sentence(reason: str) -> str:
    return reason[:1].upper() + reason[1:] + ("" if reason.endswith((".", "?", "!", ".)")) else ".")


def _of(updates) -> str:
    return named(u.index for u in updates)
