"""Exercise 02b: say what one example weighs, from a loop's lines and the sizes of its micro-batches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F

from accumkit import tasks
from accumkit.checks.audited import in_micro_batches
from accumkit.checks.outcome import RIGHT, Outcome
from accumkit.checks.problem import Problem, WrongAnswer
from accumkit.checks.questions import Question, Slip, judged
from accumkit.checks.stubs import solved
from accumkit.objective import classification
from accumkit.trace.record import Trace
from accumkit.trace.watch import watch

STEPS = 4
SIZES = (2, 8, 2, 4, 4, 4)  # examples in the micro-batches of a pass: a full window, and a tail of two

PRAISE = (
    "that is what the three loops did when they were run just now. The first loop's weights are N times those of the "
    "second, in full windows and in the tail. (The picture shows the second loop.)"
)


def loop_a(model, loader, optimizer, accumulation_steps):  # noqa: D103
    for i, (images, labels) in enumerate(loader, 1):
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        if i % accumulation_steps == 0 or i == len(loader):
            optimizer.step()
            optimizer.zero_grad()


def loop_b(model, loader, optimizer, accumulation_steps):  # noqa: D103
    for i, (images, labels) in enumerate(loader, 1):
        loss = F.cross_entropy(model(images), labels) / accumulation_steps
        loss.backward()
        if i % accumulation_steps == 0 or i == len(loader):
            optimizer.step()
            optimizer.zero_grad()


def loop_c(model, loader, optimizer, accumulation_steps):  # noqa: D103
    micro_batches = iter(loader)
    while window := list(islice(micro_batches, accumulation_steps)):
        count = sum(len(labels) for images, labels in window)
        optimizer.zero_grad()
        for images, labels in window:
            loss = F.cross_entropy(model(images), labels, reduction="sum") / count
            (loss / accumulation_steps).backward()
        optimizer.step()


ANSWER = """\
### BEGIN SOLUTION
answer = dict(
    a=[8, 2, 8, 4, 2, 2],  # what one example weighs in each micro-batch with loop_a
    b=[2, 0.5, 2, 1, 0.5, 0.5],  # the same with loop_b
    c=[0.25] * 6,  # the same with loop_c
)
### INSTEAD OF
# answer = dict(
#     a=...,  # what one example weighs in each micro-batch with loop_a: a list of six numbers
#     b=...,  # the same with loop_b
#     c=...,  # the same with loop_c
# )
### END SOLUTION
"""

HINTS = (
    "A weight is a share, divided by the fair share. Fair is the micro-batch's count over its window's count: 2/16, "
    "8/16, 2/16, 4/16, and in the tail 4/8, 4/8. What share does each loop give?",
    "A mean loss that is added in full has the share 1; divided by 4 it has 1/4, whatever the micro-batch holds. "
    "In loop_c the sum is divided by the window's count, which gives the fair share; and then it is divided once more.",
    "The first micro-batch, of 2 among 16: in loop_a its share is 1 and fair is 2/16, so one example weighs 8. In "
    "loop_b the share is 1/4, and one example weighs 2. In loop_c the share is 2/16/4. Go on like that; in the tail, "
    "fair is 4/8.",
)


@functools.cache
def _ran(loop: Callable) -> Trace:
    """Return what a loop does on micro-batches of these sizes."""
    model, objective = tasks.mlp(dtype=torch.float64, hidden=8), classification()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = in_micro_batches(tasks.digits(sum(SIZES), dtype=torch.float64), SIZES)
    with watch(model, objective, accumulation_steps=STEPS) as trace:
        loop(model, loader, optimizer, STEPS)
    return trace


def _weights(loop: Callable) -> list[float]:
    return [round(micro.weight, 6) for micro in _ran(loop).micro_batches]


def _shares(loop: Callable) -> list[float]:
    return [round(micro.share, 6) for micro in _ran(loop).micro_batches]


def _over(numbers: list[float]) -> list[float]:
    return [1 / number for number in numbers]


def _questions() -> list[Question]:
    """Return what is asked, with values of the loops as they ran, and of the ways to work them out wrongly."""
    a, b, c = map(_weights, (loop_a, loop_b, loop_c))
    fair = [micro.fair_share for micro in _ran(loop_b).micro_batches]
    tail = [update.accumulated for update in _ran(loop_b).updates for _ in update.micro_batches]  # k, for each
    own = [weight * STEPS / k for weight, k in zip(b, tail, strict=True)]  # each mean divided by k, not by N
    equal = [float(k) for k in tail]
    share = "Those are the shares. A weight is a share, divided by the fair share: count / the window's count."
    fair_slip = Slip(fair, "fair-share-for-weight", "Those are the fair shares, the same for every loop. Divide the "
                     "share that the loop gives by them.")  # fmt: skip
    over = "The other way round: share / fair share, so that an example with more than its share weighs more than 1."
    sizes = (
        "These would be the weights if all micro-batches of a window had one size. Here they hold 2 to 8 examples, and "
        "each micro-batch's mean counts alike, however many examples share it."
    )
    return [
        Question("a", a, "Each micro-batch's mean is added in full, so its share is 1. What would be its fair share?", [
            Slip(equal, "sizes-ignored", sizes),
            Slip([float(STEPS)] * 6, "sizes-ignored", sizes),
            Slip([1.0] * 6, "share-for-weight", "With weights of 1 the loop would be right. What is 1 here are the "
                 "shares, since each mean is added in full. A weight is a share, divided by the fair share: count / "
                 "the window's count."),
            fair_slip,
            Slip(_over(a), "upside-down", over),
            Slip(b, "division-imagined", "So it would be if each loss were divided by N. Read loop_a again: nothing "
                 "is divided."),
            Slip(own, "division-imagined", "So it would be if each loss were divided by the number of micro-batches "
                 "in its window. Read loop_a again: nothing is divided."),
            Slip([STEPS * weight for weight in own], "tail-taken-for-full", "The last window has two micro-batches, "
                 "not four: the fair share of each is a half."),
        ]),
        Question("b", b, "Each micro-batch has the share 1/4, those in the tail too. What would be its fair share?", [
            Slip([k / STEPS for k in tail], "sizes-ignored", sizes),
            Slip([1.0] * 6, "sizes-ignored", "With weights of 1 the loop would be right, as it is for full windows of "
                 "micro-batches of one size. Here they hold 2 to 8 examples, and each mean counts alike, however many "
                 "share it. The tail is divided by 4 too, though it has two micro-batches."),
            Slip(own, "tail-divisor", "The tail has two micro-batches, but the line divides by `accumulation_steps`, "
                 "which is 4 there too."),
            Slip(_shares(loop_b), "share-for-weight", share),
            fair_slip,
            Slip(_over(b), "upside-down", over),
            Slip(_over(own), "upside-down", f"{over} And the line divides by 4 in the tail too."),
            Slip(a, "division-overlooked", "So it is in loop_a. Here each loss is divided by `accumulation_steps`."),
        ]),
        Question("c", c, "The sums are divided by the window's count, which is fair. And then?", [
            Slip([1.0] * 6, "double-division", "The first division makes it fair. The line with `backward()` has "
                 "another one."),
            Slip([1 / k for k in tail], "tail-divisor", "The tail has two micro-batches, but the second division is by "
                 "`accumulation_steps`, which is 4 there too."),
            Slip(_shares(loop_c), "share-for-weight", share),
            fair_slip,
            Slip(_over(c), "upside-down", over),
            Slip(b, "mean-of-means", "So it would be with mean losses. This loop sums them, and divides by the count "
                 "of the whole window: large and small micro-batches get what is fair, before the last division."),
        ]),
    ]  # fmt: skip


def _judge(answer: Any) -> Outcome:
    outcome = judged(answer, _questions(), PRAISE, trace=_ran(loop_b))
    return outcome if outcome.status == RIGHT else Outcome(outcome.status, outcome.lead, outcome.items)


def _wrong(fault: str, values: str) -> WrongAnswer:
    return WrongAnswer(fault, f"{solved(ANSWER)}answer.update({values})\n")


WRONG_ANSWERS = (
    _wrong("sizes-ignored", "a=[4, 4, 4, 4, 2, 2], b=[1, 1, 1, 1, 0.5, 0.5], c=[0.25] * 6"),
    _wrong("share-for-weight", "a=[1] * 6, b=[0.25] * 6, c=[1 / 32, 1 / 8, 1 / 32, 1 / 16, 1 / 8, 1 / 8]"),
    _wrong("upside-down", "a=[1 / 8, 1 / 2, 1 / 8, 1 / 4, 1 / 2, 1 / 2], b=[0.5, 2, 0.5, 1, 2, 2], c=[4] * 6"),
    _wrong("tail-divisor", "a=[8, 2, 8, 4, 2, 2], b=[2, 0.5, 2, 1, 1, 1], c=[1 / 4] * 4 + [1 / 2] * 2"),
    _wrong("fair-share-for-weight", "a=[8, 2, 8, 4, 2, 2], b=[1 / 8, 1 / 2, 1 / 8, 1 / 4, 1 / 2, 1 / 2], c=[0.25] * 6"),
    _wrong("tail-taken-for-full", "a=[8, 2, 8, 4, 4, 4], b=[2, 0.5, 2, 1, 1, 1], c=[0.25] * 6"),
    _wrong("double-division", "a=[8, 2, 8, 4, 2, 2], b=[2, 0.5, 2, 1, 0.5, 0.5], c=[1] * 6"),
    _wrong("division-imagined", "a=[2, 0.5, 2, 1, 1, 1], b=[2, 0.5, 2, 1, 0.5, 0.5], c=[0.25] * 6"),
)

PROBLEM = Problem(
    id="02b",
    title="What each example weighs",
    kind="predict",
    minutes=12,
    difficulty="medium",
    asks="answer",
    answer=ANSWER,
    hints=HINTS,
    judge=_judge,
    wrong_answers=WRONG_ANSWERS,
)

check, hint, solution = PROBLEM.check, PROBLEM.hint, PROBLEM.solution
