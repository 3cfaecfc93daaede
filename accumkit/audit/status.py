"""What a trace says about the updates themselves, beside the faults that rules can name."""

from __future__ import annotations

from collections.abc import Iterator

from accumkit.audit.coupling import masks_differ
from accumkit.audit.ends import dropped, leaking
from accumkit.audit.fetched_words import perhaps_over, step_passed_over, without_backward
from accumkit.audit.findings import Finding, named, number, several, span
from accumkit.audit.horizon import perhaps_in_micro_batches
from accumkit.audit.nested import perhaps_nested
from accumkit.audit.reading import Case, near
from accumkit.audit.reuse import perhaps_reused
from accumkit.audit.scale import perhaps_undivided
from accumkit.audit.schedule import perhaps_too_often
from accumkit.audit.stopped import cut_short, perhaps_cut_short
from accumkit.audit.unknown import another_objective, not_measured, unknowns
from accumkit.trace.record import Update

EQUIVALENT, SCALED, DIFFERENT, UNKNOWN = "equivalent", "equivalent up to scale", "not equivalent", "cannot tell"

# what may be a fault or meant, or what a reader should know: a sentence each, or None
PERHAPS = (masks_differ, perhaps_nested, perhaps_in_micro_batches, perhaps_reused, perhaps_too_often, perhaps_undivided)

PART = 1e-6, 1e-3  # of what .grad was multiplied by, its distance from 1 where a small part of it was changed
PART_LIMIT = 1e-4  # of the gradient's length, for such a part

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
    faults = {finding.pitfall for finding in findings}
    differences = [*filter(None, [step_passed_over(case, faults)]), *_differences(case, explained)]
    unclear = list(unknowns(case, bool(differences)))
    notes = [*_notes(case, faults), *map(_sentence, case.trace.reasons)]
    if any(finding.affects in ("gradient", "update") for finding in findings):
        return DIFFERENT, (*differences, *not_measured(case, findings), *another_objective(case, found=True), *notes)
    if differences:
        return DIFFERENT, (*differences, *unclear, *notes)
    if unclear:
        return UNKNOWN, (*unclear, *notes)
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
            f"{span(u.relative_error for u in touched)} times its length: something else has changed it."
        )


def _notes(case: Case, faults: set[str]) -> Iterator[str]:
    """Yield what a reader should know and what changes no status."""
    boundary = case.boundary
    if boundary.kind == "straddling":
        across = [u for u in boundary.windows if len({m.epoch for m in u.micro_batches}) > 1]
        yield (
            f"Windows go on across the end of a pass ({_of(across)}), each with its {case.steps} micro-batches, which "
            f"weigh alike."
        )
    told = perhaps_over(case) or dropped(case)
    if boundary.kind in ("straddling", "unclear") and boundary.windows and case.trace.lost and not told:
        yield f"{several(len(case.trace.lost), 'micro-batch')} at the end of the run made no update."
    if cut_short(case) and not perhaps_cut_short(case):
        last = boundary.passes[-1]
        size = max(p.size for p in boundary.passes)
        waiting = f"; {len(last.left_over)} of them waited for a step" if last.left_over else ""
        yield f"The last pass ended after {last.ran + last.left_out} of {size} micro-batches{waiting}."
    if said := without_backward(case, faults):
        yield said
    yield from (said for note in PERHAPS if (said := note(case)))
    skipped = [u for u in case.trace.updates if u.skipped]
    if skipped:
        yield f"The scaler skipped {several(len(skipped), 'step')} ({_of(skipped)}), which changed nothing."
    if case.trace.tail == "drop" and any(boundary.is_tail(u) for u in boundary.windows):
        yield 'tail="drop" was declared, but short last windows had a step.'
    meant = case.trace.tail == "drop" and boundary.kind == "declared" and case.trace.lost
    if meant and not dropped(case) and not leaking(case):  # of a tail that leaks, the run's last was not dropped
        lost = len(case.trace.lost)
        was = "was" if lost == 1 else "were"
        yield f"{several(lost, 'micro-batch')} in short last windows {was} dropped, as declared."


def _scale(case: Case) -> str:
    kind, factor = case.constant
    turned = "" if factor > 0 else TURNED
    if kind == "coefficient":
        how = (
            "is summed and never divided" if abs(factor - 1) <= 2 * case.tolerance else f"counts {number(factor)} times"
        )
        return (
            f"Every example counts the same over the whole run, and its loss {how}: right if a summed loss is meant "
            f"and the learning rate was chosen for it. For the mean, divide by the count of the window."
            f"{_another_divisor(case)}{_differing(case)}{turned}"
        )
    length = number(abs(factor))
    longer = "" if length == "1" else f": a constant factor, as a learning rate {length} times as large would be"
    return f"Every example weighs {number(factor)} instead of 1, the same over the whole run{longer}.{turned}"


def _another_divisor(case: Case) -> str:
    """Say by what the mean of a micro-batch may be divided, where that is another whole number than N."""
    counts = {m.count for w in case.windows for m in w.members}
    if len(counts) != 1 or not all(counts):
        return ""
    divisor = 1 / (case.constant[1] * counts.pop())
    if round(divisor) < 2 or abs(divisor - round(divisor)) > 2 * case.tolerance * divisor:
        return ""
    return (
        f" If the loss is a micro-batch's mean, it is divided by {round(divisor)}, where a window has "
        f"{span(w.size for w in case.windows)} micro-batches: divide by that number."
    )


def _differing(case: Case) -> str:
    """Say why examples that count the same have different weights."""
    if near([w.count for w in case.windows], [case.windows[0].count] * len(case.windows), case.tolerance):
        return ""
    return (
        " Weights differ only because each is measured against the mean of its own update, and updates hold "
        f"{span(w.count for w in case.windows)} {case.trace.unit}."
    )


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
    # nothing rounds .grad between two backward calls: where part of it was changed there, less is told from rounding
    part = any(m.touched is not None and PART[0] < abs(m.touched - 1) < PART[1] for m in update.micro_batches)
    limit = min(10 * tolerance, PART_LIMIT) if part else 10 * tolerance
    return update.relative_error is not None and update.relative_error > max(limit, update.rounding or 0.0)


def _sentence(reason: str) -> str:
    return reason[:1].upper() + reason[1:] + ("" if reason.endswith((".", "?", "!", ".)")) else ".")


def _of(updates) -> str:
    return named(u.index for u in updates)
