"""Mystery loops: wrong loops run for real and shown by their pictures alone, and what to say of a wrong guess."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from accumkit import pitfalls
from accumkit.checks.outcome import WIDTH, Outcome
from accumkit.checks.questions import Question, Slip, judged
from accumkit.trace.record import Trace

RIGHT = "right"  # the guess that nothing is wrong


@dataclass(frozen=True)
class Loop:
    """One loop that a learner sees and does not read.

    Parameters
    ----------
    name : str
        Its key in the answer: "A".
    slug : str
        A pitfall of the catalog, or "right" for a loop without one.
    settings : mapping
        Of ``ak.pitfalls.simulate``; where ``epochs`` is left out, as many as the pitfall needs.
    data : str
        For a loop without a fault: the pitfall whose data it runs on, such as "token-weighting" for lines of text.

    Examples
    --------
    >>> from accumkit.checks.mystery import Loop
    >>> Loop("A", "missing-division", dict(examples=32)).setting
    '32 examples in micro-batches of 4, N = 4'
    """

    name: str
    slug: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: str = "missing-division"

    @property
    def trace(self) -> Trace:
        """What the loop did."""
        return self.as_if(self.slug)[0]

    @property
    def setting(self) -> str:
        """What it ran on, in words."""
        settings = self._simulation(self.slug).settings
        size = f"{'about ' * settings.unequal}{settings.micro_batch_size}"
        passes = f", {settings.epochs} passes" * (settings.epochs > 1)
        what = "lines of text" if self.trace.unit == "tokens" else "examples"
        return f"{settings.examples} {what} in micro-batches of {size}, N = {settings.accumulation_steps}{passes}"

    def as_if(self, slug: str) -> tuple[Trace, str]:
        """Return what a loop with another fault does on these data, and why that fault cannot show there, if so."""
        simulation = self._simulation(slug)
        return (simulation.right_trace, "") if slug == RIGHT else (simulation.trace, simulation.reason)

    def on_its_own_data(self, slug: str) -> Trace:
        """Return what a loop with another fault does on data on which that fault shows, of this size."""
        needs = pitfalls.CATALOG[slug]
        settings = dict(self.settings) | {"epochs": needs.epochs, "unequal": needs.unequal}
        return _simulated(slug, tuple(sorted(settings.items()))).trace

    def _simulation(self, slug: str) -> pitfalls.Simulation:
        own = self.slug if self.slug != RIGHT else slug if slug != RIGHT else self.data
        needs = pitfalls.CATALOG[own]
        settings = {"epochs": needs.epochs, "unequal": needs.unequal} | dict(self.settings)
        return _simulated(own if slug == RIGHT else slug, tuple(sorted(settings.items())))


@functools.lru_cache(maxsize=64)
def _simulated(slug: str, settings: tuple[tuple[str, Any], ...]) -> pitfalls.Simulation:
    return pitfalls.simulate(slug, **dict(settings))


@dataclass(frozen=True, repr=False)
class Pictures:
    """Loops as a notebook shows them: pictures, and under each the same in words; no fault is named.

    Parameters
    ----------
    loops : sequence of Loop
    timeline : bool
        Show also what each loop did, event by event.
    names : bool
        Whether a micro-batch may be called lost, leaked or erased, and a gradient left over.
    """

    loops: Sequence[Loop]
    timeline: bool = False
    names: bool = True

    def __repr__(self) -> str:
        told_each = [told(loop.trace, self.timeline, self.names) for loop in self.loops]
        said = [f"Loop {loop.name}, {loop.setting}. {text}" for loop, text in zip(self.loops, told_each, strict=True)]
        return "\n\n".join(textwrap.fill(text, WIDTH, subsequent_indent="    ") for text in said)

    def _repr_html_(self) -> str:
        from accumkit.figures import timeline_picture, weights_picture  # only a notebook needs them

        shown = []
        for loop in self.loops:
            name = f"Loop {loop.name}: {loop.setting}"
            if self.timeline:
                shown.append(timeline_picture(name=f"{name}. What it did", names=self.names).html(loop.trace))
            one = "token" if loop.trace.unit == "tokens" else "example"
            weighed = weights_picture(name=f"{name}. What each {one} weighs", names=self.names)
            shown.append(weighed.html(loop.trace))
        return "".join(shown)


def told(trace: Trace, timeline: bool = False, names: bool = True) -> str:
    """Return what the pictures of a trace say; without ``names``, in words that call nothing by its name."""
    from accumkit.figures import describe_timeline, describe_weights
    from accumkit.figures.unnamed import unnamed

    weighed = describe_weights(trace if names else unnamed(trace))
    return " ".join([describe_timeline(trace)] * timeline + [weighed])


def named(
    attempt: Any,
    loops: Sequence[Loop],
    choices: Sequence[str],
    praise: str,
    mixed_up: Mapping[tuple[str, str], str] | None = None,
    timeline: bool = False,
) -> Outcome:
    """Return what is to be said of guesses: of each wrong one, what its picture would look like instead.

    Parameters
    ----------
    attempt : dict
        A choice for the name of each loop.
    loops : sequence of Loop
    choices : sequence of str
        Slugs of the catalog, and "right" where a loop may have no fault.
    praise : str
        What to say when all are right.
    mixed_up : mapping, optional
        From (slug, guess) to a short word for this mix-up, named in parentheses; by default "not-" and the guess.
    timeline : bool
        As in `Pictures`.

    Returns
    -------
    Outcome

    Raises
    ------
    AccumkitError
        As `judged`.

    Examples
    --------
    >>> from accumkit.checks.mystery import Loop, named
    >>> loops = [Loop("A", "missing-division", dict(examples=32))]
    >>> named({"A": "double-division"}, loops, ["missing-division", "double-division"], "fine.")
    Not yet: 0 of 1 is right.
    <BLANKLINE>
    1. `A`: 'double-division' (not-double-division)
       A loop with double-division, run on the same data, gives this: In updates 1 and 2 one example
       weighs 0.25 instead of 1. Compare that with loop A.
    """
    questions = [Question(loop.name, loop.slug, "Look at its picture again.", choices=choices) for loop in loops]
    if isinstance(attempt, dict):
        pairs = zip(questions, loops, strict=True)
        questions = [_with_slip(question, loop, attempt, mixed_up or {}, timeline) for question, loop in pairs]
    return judged(attempt, questions, praise)


def _with_slip(
    question: Question, loop: Loop, attempt: dict, mixed_up: Mapping[tuple[str, str], str], timeline: bool
) -> Question:
    """Return a question that knows what to say of this guess, the only one that has to be run."""
    try:
        guess = question.read(attempt.get(loop.name))
    except Exception:  # told by the question itself
        return question
    if guess == loop.slug:
        return question
    word = mixed_up.get((loop.slug, guess), f"not-{guess}")
    return replace(question, slips=[Slip(guess, word, _instead(loop, guess, timeline))])


def _instead(loop: Loop, guess: str, timeline: bool) -> str:
    """Return what the picture would be, were the guess right."""
    trace, reason = loop.as_if(guess)
    what = "The right loop" if guess == RIGHT else f"A loop with {guess}"
    if trace.unit != loop.trace.unit:
        trace = loop.on_its_own_data(guess)
        said = f"{what}, run on data that are counted in {trace.unit}, gives this: {told(trace, timeline)}"
        return f"{said} Compare the shape with that of loop {loop.name}, whose scale counts {loop.trace.unit}."
    said = f"{what}, run on the same data, gives this: {told(trace, timeline)}"
    if reason:
        said = f"{what} would show nothing of it on these data. {reason}"
    return f"{said} Compare that with loop {loop.name}."
