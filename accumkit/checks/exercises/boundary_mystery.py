"""Exercise 03c: five loops that nobody shows you, known from what they did."""

from __future__ import annotations

from typing import Any

from accumkit.checks.mystery import RIGHT, Loop, Pictures, named
from accumkit.checks.outcome import Outcome
from accumkit.checks.problem import Problem, WrongAnswer

SETTING = {"examples": 26, "epochs": 2}  # two passes of a full window and one of three micro-batches
LOOPS = (
    Loop("A", "stale-gradients", SETTING),
    Loop("B", "tail-dropped", SETTING),
    Loop("C", "off-by-one", SETTING),
    Loop("D", "zero-every-micro-batch", SETTING),
    Loop("E", "tail-leaked", SETTING),
)
CHOICES = (
    "off-by-one", "stale-gradients", "step-every-micro-batch", "tail-dropped", "tail-leaked", "zero-every-micro-batch",
    RIGHT,
)  # fmt: skip

ANSWER = """\
### BEGIN SOLUTION
answer = dict(
    A="stale-gradients",
    B="tail-dropped",
    C="off-by-one",
    D="zero-every-micro-batch",
    E="tail-leaked",
)
### INSTEAD OF
# answer = dict(A=..., B=..., C=..., D=..., E=...)
### END SOLUTION
"""

HINTS = (
    "The data are the same for all: 7 micro-batches a pass, N = 4. So a right loop steps after micro-batches 4, 7, 11 "
    "and 14, and clears the gradients four times. For each loop, find the first event that is not where it should be.",
    "Two questions tell all of them apart. Are the steps where they should be, too early, or missing at the end of a "
    "pass? And are the gradients cleared once an update, too often, or never? A missing step is not yet a lost "
    "micro-batch: that depends on what is cleared before the next pass.",
    "Count, for each loop, the steps and the calls of zero_grad.\n\n"
    """
    # right                    4 steps, 4 x zero_grad
    # never cleared            4 steps, no zero_grad
    # cleared at each backward 4 steps, more than that
    # no step at a tail        2 steps; cleared before the next pass, or not
    # steps a place too early  6 steps, the first after micro-batch 1
    """,
)

PRAISE = (
    "five faults from what the loops did, without a line of code. Where the steps are and what is cleared between them "
    "is all that it takes; the weights then say what it costs."
)

# What is taken for what, and why that is easy to do.
MIXED_UP = {
    ("tail-dropped", "tail-leaked"): "cleared-not-carried",
    ("tail-leaked", "tail-dropped"): "carried-not-cleared",
    ("stale-gradients", "tail-leaked"): "every-update-not-one",
    ("tail-leaked", "stale-gradients"): "one-update-not-every",
    ("off-by-one", RIGHT): "fair-but-shifted",
    ("tail-dropped", RIGHT): "fair-but-missing",
}


def loops(names: bool = False) -> Pictures:
    """Return what the five loops did, as pictures with their text.

    Parameters
    ----------
    names : bool
        Whether they say what is lost, leaked, erased or left over, which makes the question an easy one.

    Examples
    --------
    >>> from accumkit.checks import boundary_mystery as q
    >>> [loop.name for loop in q.loops().loops]
    ['A', 'B', 'C', 'D', 'E']
    """
    return Pictures(LOOPS, timeline=True, names=names)


def _judge(attempt: Any) -> Outcome:
    return named(attempt, LOOPS, CHOICES, PRAISE, MIXED_UP, timeline=True)


def _with(**guesses: str) -> str:
    """Return an answer with some guesses that are wrong."""
    said = ", ".join(f"{loop.name}={guesses.get(loop.name, loop.slug)!r}" for loop in LOOPS)
    return f"answer = dict({said})\n"


WRONG_ANSWERS = (
    WrongAnswer("cleared-not-carried", _with(B="tail-leaked")),
    WrongAnswer("carried-not-cleared", _with(E="tail-dropped")),
    WrongAnswer("every-update-not-one", _with(A="tail-leaked")),
    WrongAnswer("one-update-not-every", _with(E="stale-gradients")),
    WrongAnswer("fair-but-shifted", _with(C=RIGHT)),
    WrongAnswer("fair-but-missing", _with(B=RIGHT)),
    WrongAnswer("not-step-every-micro-batch", _with(D="step-every-micro-batch")),
    WrongAnswer("not-zero-every-micro-batch", _with(A="zero-every-micro-batch")),
)

PROBLEM = Problem(
    id="03c",
    title="Name the fault from what the loop did",
    kind="mystery",
    minutes=8,
    difficulty="medium",
    asks="answer",
    answer=ANSWER,
    hints=HINTS,
    judge=_judge,
    wrong_answers=WRONG_ANSWERS,
)

check, hint, solution = PROBLEM.check, PROBLEM.hint, PROBLEM.solution
