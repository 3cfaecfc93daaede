"""Exercise 04c: the momentum with which N micro-batches move the running statistics as far as one big batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from accumkit.checks.outcome import Outcome
from accumkit.checks.problem import Problem, WrongAnswer
from accumkit.checks.questions import Question, Slip, judged
from accumkit.checks.stubs import solved
from accumkit.checks.values import is_number, plain
from accumkit.studies.running import corrected_momentum

MOMENTUM, STEPS = 0.1, 6  # of the big batch's layers; micro-batches in a window
NEAR = 0.004  # so that 0.0174 will do, and 0.0167 will not
MODES = ("evaluation", "training", "both", "neither")
OUTSIDE = "It is a part of the way from the old value to the new one: a number from 0 to 1."
SAID = {"eval": "evaluation", "train": "training", "none": "neither"}

ANSWER = """\
### BEGIN SOLUTION
answer = dict(
    acts_as=1 - (1 - 0.1) ** 6,  # a number
    momentum=1 - (1 - 0.1) ** (1 / 6),  # a number
    mends="evaluation",  # "evaluation", "training", "both" or "neither"
)
### INSTEAD OF
# answer = dict(
#     acts_as=...,  # a number
#     momentum=...,  # a number
#     mends=...,  # "evaluation", "training", "both" or "neither"
# )
### END SOLUTION
"""

HINTS = (
    "Look at what *stays* of the old running mean. One forward with momentum m leaves the part 1 - m of it. What do "
    "six forwards in a row leave?",
    "Six forwards with momentum m leave (1 - m) ** 6 of the old value, so they move it by 1 - (1 - m) ** 6. For the "
    "second question, that should be 0.1: solve it for m. For the third: which mode reads the running statistics?",
    "The six forwards should leave as much as one of the big batch does, 0.9.\n\n"
    """
    (1 - momentum) ** 6 == 1 - 0.1
    """,
)


def moved(momentum: float, forwards: int) -> float:
    """Return which part of the way a running mean goes from its old value to that of the data; BatchNorm is run.

    Examples
    --------
    >>> from accumkit.checks.exercises.momentum_for_n import moved
    >>> round(moved(0.2, 1), 4), round(moved(0.2, 2), 4)
    (0.2, 0.36)
    """
    layer = nn.BatchNorm1d(1, momentum=momentum, dtype=torch.float64)  # its running mean begins at 0
    data = torch.tensor([[0.0], [2.0]], dtype=torch.float64)  # whose mean is 1, in every micro-batch
    with torch.no_grad():
        for _ in range(forwards):
            layer(data)
    return layer.running_mean.item()


def _judge(attempt: Any) -> Outcome:
    acts_as, momentum, mends = _questions()
    if isinstance(attempt, dict) and isinstance(attempt.get("mends"), str):
        said = attempt["mends"].strip().lower().removesuffix("mode").strip()
        attempt = attempt | {"mends": SAID.get(said, said)}
    given = plain(attempt.get("momentum")) if isinstance(attempt, dict) else None
    if is_number(given) and not 0 <= given <= 1:
        momentum = replace(momentum, why=OUTSIDE, slips=_percent(given))
    elif is_number(given):
        momentum = replace(
            momentum, why=_why(given), slips=[replace(s, says=_why(given, s.says)) for s in momentum.slips]
        )
    part = plain(attempt.get("acts_as")) if isinstance(attempt, dict) else None
    if is_number(part) and not 0 <= part <= 1:
        acts_as = replace(acts_as, why=OUTSIDE, slips=_percent(part))
    cure = moved(momentum.right, STEPS)
    praise = (
        f"BatchNorm was run. {STEPS} forwards with a momentum of {momentum.right:.4f} move the running mean by "
        f"{cure:.2g} of the way, as one with {MOMENTUM} does; {STEPS} with {MOMENTUM} move it by {acts_as.right:.2f}. "
        "Evaluation mode is mended by that. In training mode each micro-batch is still normalised by itself."
    )
    return judged(attempt, [acts_as, momentum, mends], praise)


def _questions() -> list[Question]:
    m, n = MOMENTUM, STEPS
    right = moved(m, n)
    acts_as = Question(
        "acts_as",
        right,
        f"BatchNorm was run: {n} forwards with a momentum of {m} do not move the running mean by that part of the way. "
        "What does each of them leave of the old value?",
        [
            Slip(m, "one-forward", f"That is how far one forward moves it. A window has {n}."),
            Slip(m * n, "multiplied", f"That would be right if each forward moved it by {m} of the whole way. But the "
                 "second one moves only what the first has left."),
            Slip((1 - m) ** n, "what-is-left", "So much of the old value is left. How far has it moved, then?"),
            Slip(m**n, "power-of-m", "What stays is multiplied, 1 - m for each forward, not what moves."),
            Slip(1 - (1 - m) ** (1 / n), "the-other-way", f"That is less than {m}; {n} forwards move it further."),
        ],
        near=NEAR,
    )  # fmt: skip
    momentum = Question(
        "momentum",
        corrected_momentum(m, n),
        "",
        [
            Slip(m, "batchnorm-momentum", "That is the momentum as it was."),
            Slip(m / n, "divided-by-n", "It is near. But the second micro-batch moves only what the first has left."),
            Slip(m * n, "multiplied-by-n", "More micro-batches call for a smaller momentum, not for a larger one."),
            Slip(1 - (1 - m) ** n, "acts-as", "That is what a window amounts to when nothing is corrected."),
            Slip((1 - m) ** (1 / n), "the-part-that-stays", "That is the part of the old value that stays. In PyTorch, "
                 "momentum is the part of the new one."),
            Slip(1 - m, "the-other-convention", "Other libraries call the part that stays the momentum; PyTorch does "
                 "not. And N is not in it."),
            Slip(m ** (1 / n), "root-of-m", "The parts that stay are multiplied, not those that move: take the root "
                 "of 1 - m."),
            Slip(1 - m ** (1 / n), "root-of-m", "Take the root of what stays, 1 - m, not of what moves."),
            Slip(1 - (1 - m) / n, "missing-brackets", f"Is there a power without brackets? Python reads `** 1 / {n}` "
                 f"as a power of 1, then divided by {n}. A root needs them: `** (1 / {n})`."),
        ],
        near=NEAR,
    )  # fmt: skip
    which = "In training mode BatchNorm takes mean and variance of the micro-batch at hand. Is the momentum in that?"
    mends = Question(
        "mends",
        "evaluation",
        "",
        [
            Slip("training", "gradient-mended", which),
            Slip("both", "mends-both", f"One of them. {which}"),
            Slip(
                "neither",
                "mends-nothing",
                "The momentum moves the running statistics. Which mode normalises with them?",
            ),
        ],
        choices=MODES,
    )
    return [acts_as, momentum, mends]


def _why(momentum: float, says: str = "") -> str:
    """Say what a momentum from 0 to 1 does when BatchNorm is run with it."""
    part = f"{moved(momentum, STEPS):.4f}"
    part = "nearly all" if part == "1.0000" and momentum < 1 else part
    return (
        f"BatchNorm was run: {STEPS} forwards with a momentum of {momentum:.4g} move the running mean by {part} of the "
        f"way. The big batch moves it by {moved(MOMENTUM, 1):g}. {says}"
    ).rstrip()


def _percent(value: float) -> list[Slip]:
    """Return what is said of a number that may be percent; whether it is right is not known before it is divided."""
    says = f"{OUTSIDE} If it is meant in percent, divide by 100 and check again."
    return [Slip(value, "percent", says)] if 1 < value <= 100 else []


def _with(name: str, value: str) -> str:
    return f'{solved(ANSWER)}answer["{name}"] = {value}\n'


WRONG_ANSWERS = (
    WrongAnswer("divided-by-n", _with("momentum", "0.1 / 6")),
    WrongAnswer("batchnorm-momentum", _with("momentum", "0.1")),
    WrongAnswer("the-other-convention", _with("momentum", "1 - 0.1")),
    WrongAnswer("multiplied-by-n", _with("momentum", "0.1 * 6")),
    WrongAnswer("the-part-that-stays", _with("momentum", "(1 - 0.1) ** (1 / 6)")),
    WrongAnswer("missing-brackets", _with("momentum", "1 - 0.9**1/6")),
    WrongAnswer("percent", _with("acts_as", "46.9")),
    WrongAnswer("what-is-left", _with("acts_as", "(1 - 0.1) ** 6")),
    WrongAnswer("multiplied", _with("acts_as", "0.1 * 6")),
    WrongAnswer("gradient-mended", _with("mends", '"training"')),
    WrongAnswer("mends-both", _with("mends", '"both"')),
)

PROBLEM = Problem(
    id="04c",
    title="A momentum for N micro-batches",
    kind="choose",
    minutes=8,
    difficulty="medium",
    asks="answer",
    answer=ANSWER,
    hints=HINTS,
    judge=_judge,
    wrong_answers=WRONG_ANSWERS,
)

check, hint, solution = PROBLEM.check, PROBLEM.hint, PROBLEM.solution
