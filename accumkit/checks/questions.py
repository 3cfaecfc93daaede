"""Answers that are values: what is asked, how it is read, and the slips that give themselves away by their result."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from accumkit.checks.outcome import NOT_YET, RIGHT, Outcome
from accumkit.errors import AccumkitError


@dataclass(frozen=True)
class Slip:
    """A wrong value that tells how it came about."""

    value: Any
    fault: str  # a slug of the catalog, or a word for the slip, named in parentheses
    says: str  # sentences, to the learner


@dataclass(frozen=True)
class Question:
    """One value of an answer.

    Parameters
    ----------
    name : str
        Its key in the answer.
    right : bool, int, float, str, or a list of int or float
        The kind of this value is the kind that is asked for; measured or computed, not written down, where it can be.
    why : str
        Sentences for a wrong value that matches no slip: a nudge that does not give the value away.
    slips : sequence of Slip
    near : float
        How far off a number may be, as a part of the right one.
    choices : sequence of str
        What a str is one of.

    Examples
    --------
    >>> from accumkit.checks.questions import Question, Slip, judged
    >>> slip = Slip(5, "step-every-micro-batch", "That many backwards.")
    >>> updates = Question("updates", 2, "Count the windows.", [slip])
    >>> judged({"updates": 2}, [updates], "two windows.")
    Right: two windows.
    >>> judged({"updates": 5}, [updates], "two windows.")
    Not yet: 0 of 1 is right.
    <BLANKLINE>
    1. `updates`: 5 (step-every-micro-batch)
       That many backwards.
    """

    name: str
    right: Any
    why: str
    slips: Sequence[Slip] = ()
    near: float = 1e-3
    choices: Sequence[str] = ()

    @property
    def kind(self) -> str:
        """What is asked for, in words."""
        if isinstance(self.right, bool):
            return "True or False"
        if isinstance(self.right, str):
            return "one of " + ", ".join(repr(choice) for choice in self.choices)
        if isinstance(self.right, list):
            return f"a list of {len(self.right)} numbers"
        return "a whole number" if isinstance(self.right, int) else "a number"

    def read(self, given: Any) -> Any:
        """Return a learner's value as plain Python, a str without its blanks and capitals.

        Raises
        ------
        AccumkitError
            It is not of the kind that is asked for.
        """
        if isinstance(self.right, str) and isinstance(given, str):
            known = {choice.lower(): choice for choice in self.choices}
            said = given.strip().lower()
            if said in known:
                return known[said]
            close = difflib.get_close_matches(said, known, n=1)
            raise AccumkitError(f"{given[:60]!r} is not among the answers" + (f": {known[close[0]]!r}?" * bool(close)))
        try:
            plain = _plain(given)
        except Exception:  # a learner's own objects may raise anything
            plain = given
        fits = {
            bool: lambda v: isinstance(v, bool),
            int: lambda v: _number(v) and v == int(v),
            float: _number,
            list: lambda v: isinstance(v, list) and bool(v) and all(map(_number, v)),
        }
        if not fits.get(type(self.right), lambda v: False)(plain):
            raise AccumkitError(f"{_shown(given)} is given, and {self.kind} is asked for")
        return plain

    def same(self, given: Any, value: Any) -> bool:
        """Return whether a value that was read says what another one does."""
        if isinstance(value, list):
            return len(given) == len(value) and all(map(self.same, given, value))
        if isinstance(value, bool | str):
            return given == value
        return (
            math.isclose(given, value, rel_tol=self.near, abs_tol=1e-9) if isinstance(value, float) else given == value
        )


def judged(attempt: Any, questions: Sequence[Question], praise: str, **more: Any) -> Outcome:
    """Return what is to be said of an answer: which values are right, and of each other one how it came about.

    Parameters
    ----------
    attempt : dict
        Values by the names of the questions.
    questions : sequence of Question
    praise : str
        What to say when all are right.
    **more
        Passed on to `Outcome`, such as ``trace``.

    Returns
    -------
    Outcome

    Raises
    ------
    AccumkitError
        ``attempt`` is not a dict, or lacks a name that is asked for.
    """
    names = [question.name for question in questions]
    if not isinstance(attempt, dict):
        raise AccumkitError(f"the answer is a dict with {', '.join(map(repr, names))}; given: {_shown(attempt)}")
    missing = [name for name in names if name not in attempt]
    if missing:
        odd = [repr(name) for name in attempt if name not in names]
        raise AccumkitError(
            f"the answer has no {missing[0]!r}" + f" (but {', '.join(odd)}, which nobody asked for)" * bool(odd)
        )
    items = [item for question in questions if (item := _item(question, attempt[question.name]))]
    if not items:
        return Outcome(RIGHT, praise, **more)
    right = len(questions) - len(items)
    lead = f"{right} of {len(questions)} {'is' if len(questions) == 1 else 'are'} right."
    return Outcome(NOT_YET, lead, tuple(items), **more)


def _item(question: Question, given: Any) -> tuple[str, ...] | None:
    """Return heading and sentences on one value; None where it is right."""
    if given is None or given is ...:
        return f"`{question.name}`: still open", f"Put {question.kind} in its place."
    try:
        value = question.read(given)
    except AccumkitError as refused:
        return f"`{question.name}`: cannot be read", f"{refused}."
    if question.same(value, question.right):
        return None
    heading = f"`{question.name}`: {_shown(value)}"
    for slip in question.slips:
        if question.same(value, slip.value):
            return f"{heading} ({slip.fault})", slip.says
    if isinstance(value, list) and len(value) != len(question.right):
        return heading, f"It has {len(value)} numbers; {len(question.right)} are asked for.", question.why
    return heading, question.why


def _plain(value: Any) -> Any:
    """Return numbers of torch and numpy, and what holds them, as Python's own."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return float(value) if isinstance(value, Real) and not isinstance(value, bool | int | float) else value


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _shown(value: Any) -> str:
    """Return a value in few characters."""
    try:
        text = f"{value:g}" if isinstance(value, float) else repr(value)
    except Exception:  # a learner's own __repr__ may raise anything
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."
