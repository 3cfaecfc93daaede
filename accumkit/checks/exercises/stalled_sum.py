"""Exercise 05c: what ``.grad`` holds after thousands of small gradients, in three precisions, and what mends it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from accumkit.checks.outcome import Outcome
from accumkit.checks.problem import Problem, WrongAnswer
from accumkit.checks.questions import Question, Slip, judged
from accumkit.checks.stubs import solved
from accumkit.studies.nets import one_thread

STEPS, GRADIENT = 4096, 0.25  # micro-batches in the window, and the gradient that each of them has
PRECISIONS = ("bfloat16", "float16", "float32")
WAYS = ("divide_first", "scaler", "autocast", "beside")

ANSWER = """\
### BEGIN SOLUTION
answer = dict(
    stands_still=256,  # in bfloat16: the micro-batch after which .grad does not change
    bfloat16=64,  # what .grad holds after all 4,096
    float16=512,
    float32=1024,
    divide_first=False,  # True or False: does it mend the sum of the bfloat16 model?
    scaler=False,
    autocast=True,
    beside=True,
)
### INSTEAD OF
# answer = dict(
#     stands_still=...,  # in bfloat16: the micro-batch after which .grad does not change
#     bfloat16=...,  # what .grad holds after all 4,096
#     float16=...,
#     float32=...,
#     divide_first=...,  # True or False: does it mend the sum of the bfloat16 model?
#     scaler=...,
#     autocast=...,
#     beside=...,
# )
### END SOLUTION
"""

HINTS = (
    "What counts is not how large a number is, but how large it is *beside what is added to it*. In the lesson 1 was "
    "added, and adding ended at 256 of them. What changes when each is a quarter?",
    "bfloat16 has 8 binary digits: a sum that is 256 times what is added to it stands still. float16 has 11, and so "
    "2,048 times; float32 has 24. Numbers that are all multiplied by the same, sum and gradients, stand still at the "
    "same place.",
    "So count gradients first: a sum of k of them is k times as large as one, whatever one is. Compare k with the "
    "three limits, and 4,096 too; what `.grad` holds is k gradients of 0.25. Of each way ask: does it change how large "
    "a gradient is beside the sum, or how many digits the sum has?",
)

SAYS = {
    "stands_still": "Run it in your head: the sum grows, and each gradient is smaller beside it. At how many times the "
    "gradient did adding end in the lesson?",
    "limit-as-value": "That is what it holds then. After how many gradients of 0.25 does it hold that?",
    "quarter-counted-twice": "A gradient that is a quarter as large goes with a sum that is a quarter as large. Does "
    "the number of additions change?",
    "first-without-effect": "That is the first one that changes nothing. After which one does it stand still?",
    "never": "It does stand still, long before the end.",
    "float16-limit": "That is where float16 ends, which has three binary digits more.",
    "bfloat16": "Take the number of gradients after which it stands still. Each of them is 0.25.",
    "float16": "float16 stands still too, but later. At how many times the gradient?",
    "float32": "float32 has 24 binary digits. Does a sum of 4,096 equal gradients need more?",
    "nothing-rounded": "That is the exact sum. But the sum is kept in 16 bits, and rounded after each addition.",
    "one-too-many": "One gradient too many is in that. Which was the last one that changed the sum?",
    "one-too-few": "One gradient is missing in that. Which was the last one that changed the sum?",
    "limit-for-one": "There the sum of ones ended. These gradients are 0.25.",
    "too-early": "float32 does not stand still here: it would need some 16 million gradients.",
    "divided-for-nothing": "Measured: divided by N first, the sum stands still after as many gradients as before. "
    "Gradient and sum are smaller by the same factor.",
    "scaled-for-nothing": "Measured: with a scale of 65,536 the sum stands still after as many gradients as before. A "
    "scaler keeps small numbers from vanishing in float16; how does gradient compare with sum?",
    "autocast-doubted": "Measured: under autocast the sum is exact. In which precision are the parameters there, and "
    "so `.grad`?",
    "beside-doubted": "Measured: the sum beside `.grad` is within one rounding of the exact one.",
}  # fmt: skip


@dataclass(frozen=True)
class Found:
    """What the sums came to."""

    stands_still: int  # in bfloat16: the number of gradients after which the sum did not change
    holds: dict[str, float]  # by precision
    mends: dict[str, bool]  # by way


@functools.cache
def measured() -> Found:
    """Add the gradients up in ``.grad``, with a backward for each."""
    exact = STEPS * GRADIENT
    with one_thread():
        sums = {name: _sums(getattr(torch, name)) for name in PRECISIONS}
        mended = {
            "divide_first": _sums(torch.bfloat16, 1 / STEPS)[-1] * STEPS,
            "scaler": _sums(torch.bfloat16, 65536.0)[-1] / 65536.0,
            "autocast": _autocast(),
            "beside": _beside(),
        }
    low = sums["bfloat16"]
    return Found(
        stands_still=next(i + 1 for i, value in enumerate(low) if value == low[-1]),
        holds={name: values[-1] for name, values in sums.items()},
        mends={name: abs(value / exact - 1) < 1 / 128 for name, value in mended.items()},  # a rounding of bfloat16
    )


def _sums(dtype: torch.dtype, factor: float = 1.0) -> list[float]:
    """Return what stands in ``.grad`` after each backward, the loss multiplied by a factor."""
    weight = nn.Parameter(torch.ones((), dtype=dtype))
    found = []
    loss = weight * (GRADIENT * factor)
    for _ in range(STEPS):
        loss.backward(retain_graph=True)  # the same graph each time: all gradients are alike
        found.append(weight.grad.item())
    return found


def _autocast() -> float:
    """Return what stands in ``.grad`` of a float32 layer that computes in bfloat16."""
    layer, image = nn.Linear(1, 1, bias=False), torch.tensor([[GRADIENT]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(image).sum()
    for _ in range(STEPS):
        output.backward(retain_graph=True)
    return layer.weight.grad.item()


def _beside() -> float:
    """Return the sum of a bfloat16 parameter's gradients, kept in float32 and rounded once."""
    weight = nn.Parameter(torch.ones((), dtype=torch.bfloat16))
    total: Tensor = torch.zeros(())
    loss = weight * GRADIENT
    for _ in range(STEPS):
        loss.backward(retain_graph=True)
        total += weight.grad.float()
        weight.grad = None
    return total.bfloat16().item()


def _judge(attempt: Any) -> Outcome:
    found = measured()
    low, half, full = (found.holds[name] for name in PRECISIONS)
    praise = (
        f"{STEPS:,} gradients of {GRADIENT} make {full:,g}. In bfloat16 `.grad` stands still at {low:g}, after "
        f"{found.stands_still} of them, and in float16 at {half:g}. Only a sum in more digits mends that: under "
        "autocast, or beside `.grad`."
    )
    return judged(attempt, _questions(found), praise)


def _questions(found: Found) -> list[Question]:
    low, half, exact = (found.holds[name] for name in PRECISIONS)
    after, later = found.stands_still, round(half / GRADIENT)
    doubts = dict(
        zip(WAYS, ("divided-for-nothing", "scaled-for-nothing", "autocast-doubted", "beside-doubted"), strict=True)
    )
    return [
        _question(
            "stands_still",
            after,
            (round(after * GRADIENT), "limit-as-value"),
            (round(after / GRADIENT), "quarter-counted-twice"),
            (later, "float16-limit"),
            (after + 1, "first-without-effect"),
            (STEPS, "never"),
        ),
        _question("bfloat16", low, (exact, "nothing-rounded"), (float(after), "limit-for-one"), *_beside_it(low)),
        _question("float16", half, (exact, "nothing-rounded"), (float(later), "limit-for-one"), *_beside_it(half)),
        _question("float32", exact, (low, "too-early"), (half, "too-early"), *_beside_it(exact)),
        *(_question(way, right, (not right, doubts[way])) for way, right in found.mends.items()),
    ]


def _beside_it(total: float) -> tuple[tuple[float, str], ...]:
    return (total + GRADIENT, "one-too-many"), (total - GRADIENT, "one-too-few")


def _question(name: str, right: Any, *slips: tuple[Any, str]) -> Question:
    slips = [Slip(value, fault, SAYS[fault]) for value, fault in slips]
    return Question(name, right, SAYS.get(name, ""), slips, near=0)  # sums of quarters are exact


def _with(**values: Any) -> str:
    return solved(ANSWER) + "".join(f'answer["{name}"] = {value}\n' for name, value in values.items())


WRONG_ANSWERS = (
    WrongAnswer("nothing-rounded", _with(bfloat16=1024, float16=1024)),
    WrongAnswer("limit-for-one", _with(bfloat16=256, float16=2048)),
    WrongAnswer("one-too-many", _with(bfloat16=64.25, float32=1024.25)),
    WrongAnswer("limit-as-value", _with(stands_still=64)),
    WrongAnswer("quarter-counted-twice", _with(stands_still=1024)),
    # what is tried first where sums in 16 bits are off
    WrongAnswer("scaled-for-nothing", _with(scaler=True)),
    WrongAnswer("divided-for-nothing", _with(divide_first=True)),
    WrongAnswer("autocast-doubted", _with(autocast=False)),
    WrongAnswer("beside-doubted", _with(beside=False)),
)

PROBLEM = Problem(
    id="05c",
    title="Where a sum stands still",
    kind="predict",
    minutes=10,
    difficulty="medium",
    asks="answer",
    answer=ANSWER,
    hints=HINTS,
    judge=_judge,
    wrong_answers=WRONG_ANSWERS,
)

check, hint, solution = PROBLEM.check, PROBLEM.hint, PROBLEM.solution
