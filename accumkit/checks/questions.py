"""Answers that are values: what is asked, how it is read, and the slips that give themselves away by their result."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from accumkit.audit.findings import listed
from accumkit.checks.outcome import NOT_YET, RIGHT, Outcome
from accumkit.checks.values import exact, is_number, plain, shown
from accumkit.errors import AccumkitError

QUOTES = "\"'` \t\n"  # around a choice that was copied with them


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
        How far off a number may be, as a part of the right one. 0 asks for exactly this number, where it can be
        known exactly, such as a sum of quarters: nothing beside it is "nearly" right then, and slips are as exact.
    choices : sequence of str
        What a str is one of.
    length_told : bool
        Whether it may be told how many numbers a list has; not where that is the answer to another question.
    which : bool
        A list says which ones, in any order, and how many they are is part of the question; so it may be empty.

    Raises
    ------
    AccumkitError
        The right value is of no such kind, or not among the choices: a fault of the exercise, not of an answer.

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
    which: bool = False
    length_told: bool = True

    def __post_init__(self) -> None:
        right = plain(self.right)
        object.__setattr__(self, "right", right)  # measured values come as tensors too
        listed = isinstance(right, list) and all(map(is_number, right)) and (right or self.which)
        if not (listed or isinstance(right, bool | str) or is_number(right)):
            raise AccumkitError(f"{self.name}: right={shown(right)} is no bool, number, str, or list of numbers")
        if isinstance(right, str) and right not in self.choices:
            raise AccumkitError(f"{self.name}: right={right!r} is not among the choices")

    @property
    def kind(self) -> str:
        """What is asked for, in words."""
        if isinstance(self.right, bool):
            return "True or False"
        if isinstance(self.right, str):
            return "one of " + ", ".join(repr(choice) for choice in self.choices)
        if isinstance(self.right, list):
            return (
                "a list of numbers" if self.which or not self.length_told else f"a list of {_numbers(len(self.right))}"
            )
        return "a whole number" if isinstance(self.right, int) else "a number"

    def read(self, given: Any) -> Any:
        """Return a learner's value as plain Python, a str as the choice that it is.

        Raises
        ------
        AccumkitError
            It is not of the kind that is asked for.
        """
        given = exact(given)
        if isinstance(self.right, str) and isinstance(given, str):
            return self._choice(given)
        value = sorted(map(plain, given)) if self.which and isinstance(given, set | frozenset) else plain(given)
        if isinstance(value, list) and any(one is None or one is ... for one in value):
            raise AccumkitError(f"{shown(given)} is given, and a part of it is still open")
        if self._fits(value):
            return value
        more = ", without quotes around it" * (isinstance(given, str) and not isinstance(self.right, str))
        if isinstance(self.right, bool) and is_number(value) and value in (0, 1):
            more = f"; write {bool(value)} if that is meant"
        raise AccumkitError(f"{shown(given)} is given, and {self.kind} is asked for{more}")

    def same(self, given: Any, value: Any) -> bool:
        """Return whether a value that was read says what another one does."""
        if isinstance(given, list) or isinstance(value, list):
            if not isinstance(given, list) or not isinstance(value, list) or len(given) != len(value):
                return False
            pairs = zip(sorted(given), sorted(value), strict=True) if self.which else zip(given, value, strict=True)
            return all(self.same(*pair) for pair in pairs)
        if isinstance(value, bool | str) or isinstance(given, bool | str):
            return type(given) is type(value) and given == value
        if isinstance(value, float) or isinstance(self.right, float):
            return math.isclose(given, value, rel_tol=self.near, abs_tol=1e-9 if self.near else 0)
        return given == value

    def _choice(self, given: str) -> str:
        """Return the choice that a text is, however it is spelt: 'Tail dropped', '`tail_dropped`'."""
        text = given[:100].strip(QUOTES)
        for spelt in (str, lambda text: "".join(text.lower().split()), _letters):
            fits = [choice for choice in self.choices if spelt(choice) == spelt(text)]
            if len(fits) == 1:
                return fits[0]
        known = {_letters(choice): choice for choice in self.choices}
        said = _letters(given[:100])
        close = difflib.get_close_matches(said, known, n=1, cutoff=0.75) if len(known) == len(self.choices) else []
        hint = f"; the nearest is {known[close[0]]!r}" if close else f"; they are {', '.join(map(repr, self.choices))}"
        raise AccumkitError(f"{shown(given)} is not among the answers{hint}")

    def _fits(self, value: Any) -> bool:
        if isinstance(self.right, bool):
            return isinstance(value, bool)
        if isinstance(self.right, list):
            return isinstance(value, list) and (bool(value) or self.which) and all(map(is_number, value))
        if isinstance(self.right, str) or not is_number(value):
            return False
        # a number that is not whole, for one that is: a slip may explain it
        broken = isinstance(self.right, int) and value != int(value)
        return not broken or any(is_number(slip.value) and self.same(value, slip.value) for slip in self.slips)


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
    if not issubclass(type(attempt), dict):
        raise AccumkitError(f"the answer is a dict with {', '.join(map(repr, names))}; given: {shown(attempt)}")
    attempt = exact(attempt)
    missing = [name for name in names if name not in attempt]
    odd = [shown(name) for name in attempt if type(name) is not str or name not in names]
    unasked = f"{', '.join(odd[:5])}, which nobody asked for"
    if missing:
        raise AccumkitError(f"the answer has no {listed(list(map(repr, missing)))}" + f" (but {unasked})" * bool(odd))
    items = [item for question in questions if (item := _item(question, attempt[question.name]))]
    if not items:
        return Outcome(RIGHT, praise, **more)
    right = len(questions) - len(items)
    lead = f"{right} of {len(questions)} {'is' if 1 in (right, len(questions)) else 'are'} right."
    if odd and any(_open(attempt[name]) for name in names):
        lead += f" (There is also {unasked}.)"
    return Outcome(NOT_YET, lead, tuple(items), **more)


def _item(question: Question, given: Any) -> tuple[str, ...] | None:
    """Return heading and sentences on one value; None where it is right."""
    if _open(given):
        return f"`{question.name}`: still open", f"Put {question.kind} in its place."
    try:
        value = question.read(given)
    except AccumkitError as refused:
        return f"`{question.name}`: cannot be read", f"{refused}."
    except Exception:  # what a learner made raises over being looked at
        return f"`{question.name}`: cannot be read", f"{shown(given)} is given, and {question.kind} is asked for."
    if question.same(value, question.right):
        return None
    heading = f"`{question.name}`: {shown(value)}"
    for slip in question.slips:
        if question.same(value, plain(slip.value)):
            return f"{heading} ({slip.fault})", slip.says
    if isinstance(value, list) and len(value) != len(question.right) and not question.which:
        if not question.length_told:
            return heading, f"It has {_numbers(len(value))}, and another number of them is asked for.", question.why
        asked = len(question.right)
        number = f"It has {_numbers(len(value))}; {asked} {'is' if asked == 1 else 'are'} asked for."
        return heading, number, question.why
    if question.near and isinstance(question.right, float) and math.isclose(value, question.right, rel_tol=0.02):
        return f"{heading}, nearly", "Give more digits, or let Python work it out: a term such as 2 / 3 will do."
    return heading, question.why


def _open(given: Any) -> bool:
    return given is None or given is ...


def _letters(text: str) -> str:
    return "".join(letter for letter in text.lower() if letter.isalnum())


def _numbers(n: int) -> str:
    return f"{n} number{'s' * (n != 1)}"
