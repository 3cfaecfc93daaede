"""Exercise 02d: tell five loops apart by their pictures alone."""

from __future__ import annotations

from typing import Any

from accumkit.checks.mystery import RIGHT, Loop, Pictures, named
from accumkit.checks.outcome import Outcome
from accumkit.checks.problem import Problem, WrongAnswer, but
from accumkit.checks.stubs import solved

CHOICES = (
    RIGHT,
    "missing-division",
    "double-division",
    "tail-divisor",
    "tail-dropped",
    "mean-of-means",
    "token-weighting",
)
LOOPS = (
    Loop("A", "tail-divisor", {"examples": 28}),
    # text too, so that the scale of D alone does not name it
    Loop("B", RIGHT, {"examples": 19, "micro_batch_size": 3, "unequal": True}, data="token-weighting"),
    Loop("C", "missing-division", {"examples": 36}),
    Loop("D", "token-weighting", {"examples": 20, "accumulation_steps": 3}),
    Loop("E", "mean-of-means", {"examples": 22}),
)

PRAISE = (
    "each of these faults has a shape of its own. A factor that is the same for all bars of a window is a division too "
    "many or too few; bars of one window that differ are a mean that counts alike, whatever it holds."
)

ANSWER = """\
### BEGIN SOLUTION
answer = dict(
    A="tail-divisor",  # each of them one of the names above, in quotes
    B="right",
    C="missing-division",
    D="token-weighting",
    E="mean-of-means",
)
### INSTEAD OF
# answer = dict(
#     A=...,  # each of them one of the names above, in quotes
#     B=...,
#     C=...,
#     D=...,
#     E=...,
# )
### END SOLUTION
"""

HINTS = (
    "Look at the height of the bars, not at their width: a wide bar is a large micro-batch, and that is no fault. Are "
    "all bars of one window equally high? If so, is that height 1?",
    "Equally high, above 1, as many times as the window has micro-batches: nothing was divided. Below 1 in every full "
    "window: divided once too often. Below 1 in the last, shorter window alone: divided by the full number there. "
    "Unequal: the mean of each micro-batch counted alike.",
    "Sort them. First those of which all bars are fair, wide or narrow. Then those whose bars are equally high inside "
    "a window: is it a full window that is not at 1, or only the short last one? Two are left, with unequal bars in "
    "one window. What do their scales count?",
)

# What is taken for what: by (the loop's own, the guess).
MIXED_UP = {
    ("missing-division", "double-division"): "too-much-for-too-little",
    ("tail-divisor", "tail-dropped"): "little-for-nothing",
    ("tail-divisor", "double-division"): "tail-for-every-window",
    (RIGHT, "mean-of-means"): "width-for-height",
    ("mean-of-means", "token-weighting"): "examples-for-tokens",
    ("token-weighting", "mean-of-means"): "tokens-for-examples",
    ("mean-of-means", RIGHT): "fair-on-average",
    ("missing-division", "mean-of-means"): "factor-for-unequal",
    ("missing-division", "tail-divisor"): "fair-tail-for-fault",
}


def show() -> Pictures:
    """Return the pictures of the five loops, run for real; each has its sentence."""
    return Pictures(LOOPS)


def _judge(answer: Any) -> Outcome:
    return named(answer, LOOPS, CHOICES, PRAISE, MIXED_UP)


def _wrong(loop: str, own: str, guess: str) -> WrongAnswer:
    return WrongAnswer(MIXED_UP[own, guess], but(solved(ANSWER), f'{loop}="{own}"', f'{loop}="{guess}"'))


_SWAPPED = solved(ANSWER) + 'answer.update(D="mean-of-means", E="token-weighting")\n'

WRONG_ANSWERS = (
    _wrong("C", "missing-division", "double-division"),
    _wrong("A", "tail-divisor", "tail-dropped"),
    _wrong("A", "tail-divisor", "double-division"),
    _wrong("B", RIGHT, "mean-of-means"),
    _wrong("C", "missing-division", "tail-divisor"),
    _wrong("C", "missing-division", "mean-of-means"),
    _wrong("E", "mean-of-means", RIGHT),
    WrongAnswer("tokens-for-examples", _SWAPPED),
)

PROBLEM = Problem(
    id="02d",
    title="Five loops by their pictures",
    kind="mystery",
    minutes=10,
    difficulty="medium",
    asks="answer",
    answer=ANSWER,
    hints=HINTS,
    judge=_judge,
    wrong_answers=WRONG_ANSWERS,
)

check, hint, solution = PROBLEM.check, PROBLEM.hint, PROBLEM.solution
