"""What a fault does to what examples weigh, read from the traces: the measured answer to a prediction."""

from __future__ import annotations

from math import isfinite

from accumkit.audit.reading import tolerance_of
from accumkit.figures.numbers import listed
from accumkit.pitfalls.simulation import Simulation
from accumkit.trace.record import MicroBatch, Trace, Update

LARGE, SMALL, UNEQUAL, LOST, NOTHING = "too large", "too small", "unequal", "lost", "nothing changes"
CHOICES = (LARGE, SMALL, UNEQUAL, LOST, NOTHING)

MEANING = {
    LARGE: "an update gets more than it should",
    SMALL: "an update gets less than it should",
    UNEQUAL: "some examples of an update weigh more than others",
    LOST: "some examples reach no update",
    NOTHING: "what one example weighs stays right",
}


def effects(simulation: Simulation) -> tuple[str, ...]:
    """Return which of the choices came true, in their order.

    An update gets too much or too little by the sum of its shares, which is 1 where it is right. What an earlier
    update left behind, or a clip cut away that should have stayed, counts too.

    Examples
    --------
    >>> from accumkit import pitfalls
    >>> from accumkit.panels.effects import effects
    >>> effects(pitfalls.simulate("missing-division")), effects(pitfalls.simulate("zero-every-micro-batch"))
    (('too large',), ('too small', 'lost'))
    """
    trace, near = simulation.trace, tolerance_of(simulation.trace)
    found = {kind for update in trace.updates for kind in _of(update, near)}
    right = simulation.right_trace
    skipped = [sum(update.skipped for update in t.updates) for t in (trace, right)]  # by a scaler, rightly or not
    if trace.lost or skipped[0] > skipped[1] or _reached(trace) < _reached(right):
        found.add(LOST)
    return tuple(choice for choice in CHOICES if choice in found) or (NOTHING,)


def reply(guess: str, simulation: Simulation) -> str:
    """Say whether a prediction came true, and what else did.

    Examples
    --------
    >>> from accumkit import pitfalls
    >>> from accumkit.panels.effects import SMALL, reply
    >>> reply(SMALL, pitfalls.simulate("missing-division"))
    'You predicted: too small. Measured: too large (an update gets more than it should).'
    """
    found = effects(simulation)
    said = listed([f"{choice} ({MEANING[choice]})" for choice in found])
    if not simulation.runs[1].end.isfinite().all():
        return f"You predicted: {guess}. It is worse: a gradient is not a number, and then no parameter is."
    if not simulation.shows and found == (NOTHING,):
        verdict = "As you predicted, n" if guess == NOTHING else f"You predicted: {guess}. At this setting n"
        return f"{verdict}othing changes. {simulation.reason}"
    if guess not in found:
        text = f"You predicted: {guess}. Measured: {said}."
    elif len(found) == 1:
        text = f"As you predicted: {said}."
    else:
        others = [f"{choice} ({MEANING[choice]})" for choice in found if choice != guess]
        text = f"As you predicted: {guess} ({MEANING[guess]}). And also: {listed(others)}."
    if found == (NOTHING,):
        text += " What goes wrong is elsewhere."
    return text


def _of(update: Update, near: float) -> set[str]:
    if update.skipped:
        return set()
    known = [m for m in update.micro_batches if m.weight is not None and isfinite(m.weight)]
    pulling = [m.weight for m in known if m.fate == "kept"]
    found = set()
    if any(m.fate == "erased" for m in update.micro_batches):
        found.add(LOST)
    if pulling and max(pulling) - min(pulling) > near:
        found.add(UNEQUAL)
    if known:
        total = sum(m.share for m in known)
        if total > 1 + near or update.carried > near:
            found.add(LARGE)
        elif total < 1 - near:
            found.add(SMALL)
    if update.clip_factor is not None and update.expected_clip_factor:
        left = update.clip_factor / update.expected_clip_factor
        found |= {SMALL} if left < 0.999 else {LARGE} if left > 1.001 else set()
    return found


def _reached(trace: Trace) -> int:
    """Return how many examples of the data came to a backward at least once."""
    passes: dict[int, list[MicroBatch]] = {}
    for micro in trace.micro_batches:
        passes.setdefault(micro.epoch, []).append(micro)
    return max((sum(m.examples for m in micros) for micros in passes.values()), default=0)
