"""Exercise 05b: what one pass comes to when two micro-batches of a window overflow."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LinearLR

from accumkit.checks.outcome import Outcome
from accumkit.checks.problem import Problem, WrongAnswer
from accumkit.checks.questions import Question, Slip, judged
from accumkit.checks.stubs import solved
from accumkit.studies.nets import one_thread
from accumkit.studies.precision.problem import MICRO_BATCH, problem
from accumkit.studies.precision.skips import PIXELS

SCALE, MAX_NORM, ACCUMULATION_STEPS, WINDOWS = 16384, 0.25, 4, 3
SPOILED = (6, 8)  # micro-batches, counted from 1: two of the second window

ANSWER = """\
### BEGIN SOLUTION
answer = dict(
    not_finite=3,  # backward calls after which .grad is not finite
    updates=2,  # how often the parameters moved
    examples=32,  # how many of the 48 had a part in an update
    scale=8192,  # scaler.get_scale() after the pass
    schedule=3,  # how often the scheduler moved
    schedule_with_if=2,  # the same, with the if around scheduler.step()
)
### INSTEAD OF
# answer = dict(
#     not_finite=...,  # backward calls after which .grad is not finite
#     updates=...,  # how often the parameters moved
#     examples=...,  # how many of the 48 had a part in an update
#     scale=...,  # scaler.get_scale() after the pass
#     schedule=...,  # how often the scheduler moved
#     schedule_with_if=...,  # the same, with the if around scheduler.step()
# )
### END SOLUTION
"""

HINTS = (
    "Go through the pass window by window. Infinity plus any number is infinity, and `.grad` is cleared only at the "
    "end of a window.",
    "A scaler looks at `.grad` as a whole: it steps with all of the window, or with nothing. And it looks once a "
    "window, so it also adapts its scale once a window, however many micro-batches overflowed.",
    "Windows 1 and 3 are as always; in window 2 `scaler.step(optimizer)` does nothing and `scaler.update()` halves the "
    "scale. The plain line `scheduler.step()` is Python like any other: it runs when it is reached.",
)


# What is said of a wrong value: by the name of its question, or of the slip that it comes from.
SAYS = {
    "not_finite": "Micro-batches 6 and 8 overflow. `.grad` is a sum, and cleared after micro-batches 4, 8 and 12. When "
    "is an infinite entry in it?",
    "only-the-bad-ones": "Micro-batch 7 is a good one. But what does its gradient get added to?",
    "the-whole-window": "Not yet after the first of that window: nothing has overflowed then.",
    "never-cleared": "`optimizer.zero_grad()` runs at the end of each window, also where the step was skipped.",
    "updates": "There are three windows. In which of them does `scaler.step(optimizer)` move the parameters?",
    "skip-overlooked": "A scaler does not step with a gradient that is not finite, and one entry is enough.",
    "stopped-after-overflow": "The scaler skips one window, and the next one begins with gradients of zero.",
    "all-lost": "Only the window with an infinite gradient is skipped.",
    "micro-batches-counted": "That counts good micro-batches. An update is made once a window.",
    "examples": "A micro-batch has 4 examples, a window 4 micro-batches. It is stepped with all of them or with none.",
    "only-bad-micro-batches-lost": "That leaves out the two bad micro-batches alone. Can the good ones of their window "
    "be told apart in `.grad`?",
    "nothing-lost": "That is all of them, also those of a window without a step.",
    "good-start-kept": "The first micro-batch of the window was good, but it is in the same `.grad` as the bad ones.",
    "scale": "The scale begins at 16,384. How often does the scaler see a gradient that is not finite, and what does "
    "it make of its scale then?",
    "scale-kept": "An overflow says that the scale is too large. The scaler lowers it then.",
    "halved-twice": "Two micro-batches overflowed. But how often does the scaler look?",
    "halved-for-each-backward": "The scaler looks once a window, not after each backward.",
    "raised": "A scaler raises its scale after many good steps, 2,000 by default, not after an overflow.",
    "schedule": "Read the loop as it is written: how often is the line `scheduler.step()` reached?",
    "skipped-update": "So it should be. But what in the loop keeps the line `scheduler.step()` from running where the "
    "step was skipped?",
    "scheduler-every-micro-batch": "It stands in the loop over windows, not in that over micro-batches.",
    "schedule_with_if": "With the `if`, the schedule moves where the scale did not fall. In which windows is that?",
    "if-without-effect": "In one of the windows the scale falls. What does the `if` do there?",
    "if-inverted": "The scale falls in one window. The schedule moves in the others.",
}


@dataclass(frozen=True)
class Pass:
    """What one pass came to."""

    not_finite: int  # backward calls after which an entry of .grad is not finite
    updates: int  # windows after which parameters had moved
    scale: int  # at the end
    schedule: int  # steps of a scheduler that is stepped in every window
    schedule_with_if: int  # of one that is stepped where the scale did not fall


@functools.cache
def measured() -> Pass:
    """Run the pass, with a real scaler, in float16."""
    with one_thread():
        run = problem(WINDOWS, ACCUMULATION_STEPS, float(SCALE), "float16 autocast")
        plain, careful = (LinearLR(run.optimizer, total_iters=9) for _ in range(2))
        number = not_finite = updates = 0
        for window in run.windows:
            before = run.parameters
            for images, labels in window:
                number += 1
                run.backward((images * PIXELS if number in SPOILED else images, labels), ACCUMULATION_STEPS)
                not_finite += not run.gradient.isfinite().all()
            scale = run.scaler.get_scale()
            run.scaler.unscale_(run.optimizer)
            clip_grad_norm_(run.model.parameters(), MAX_NORM)
            run.scaler.step(run.optimizer)
            run.scaler.update()
            plain.step()
            if run.scaler.get_scale() >= scale:
                careful.step()
            run.optimizer.zero_grad()
            updates += not torch.equal(before, run.parameters)
    return Pass(not_finite, updates, int(run.scaler.get_scale()), plain.last_epoch, careful.last_epoch)


def _judge(attempt: Any) -> Outcome:
    found = measured()
    praise = (
        f"two bad micro-batches cost a window of {ACCUMULATION_STEPS}, and with it {ACCUMULATION_STEPS * MICRO_BATCH} "
        f"examples; the scaler halved its scale once. {found.updates} updates were made, and the schedule as written "
        f"counts {found.schedule}: it runs ahead of the updates, unless it is asked to wait."
    )
    return judged(attempt, _questions(found), praise)


def _questions(found: Pass) -> list[Question]:
    n, size, first = ACCUMULATION_STEPS, MICRO_BATCH, SPOILED[0]
    backwards, examples = n * WINDOWS, found.updates * n * size
    return [
        _question(
            "not_finite",
            found.not_finite,
            (len(SPOILED), "only-the-bad-ones"),
            (n, "the-whole-window"),
            (backwards - first + 1, "never-cleared"),
        ),
        _question(
            "updates",
            found.updates,
            (WINDOWS, "skip-overlooked"),
            (1, "stopped-after-overflow"),
            (0, "all-lost"),
            (backwards - len(SPOILED), "micro-batches-counted"),
        ),
        _question(
            "examples",
            examples,
            (size * (backwards - len(SPOILED)), "only-bad-micro-batches-lost"),
            (size * backwards, "nothing-lost"),
            (examples + size, "good-start-kept"),
        ),
        _question(
            "scale",
            found.scale,
            (SCALE, "scale-kept"),
            (SCALE // 4, "halved-twice"),
            (SCALE // 8, "halved-for-each-backward"),
            (SCALE * 2, "raised"),
        ),
        _question(
            "schedule",
            found.schedule,
            (found.schedule_with_if, "skipped-update"),
            (backwards, "scheduler-every-micro-batch"),
        ),
        _question(
            "schedule_with_if",
            found.schedule_with_if,
            (found.schedule, "if-without-effect"),
            (1, "if-inverted"),
        ),
    ]


def _question(name: str, right: int, *slips: tuple[int, str]) -> Question:
    return Question(name, right, SAYS[name], [Slip(value, fault, SAYS[fault]) for value, fault in slips])


def _with(name: str, value: str) -> str:
    return f'{solved(ANSWER)}answer["{name}"] = {value}\n'


WRONG_ANSWERS = (
    # reports tell of schedules that end early, and of nobody noticing that steps were skipped
    WrongAnswer("skipped-update", _with("schedule", "2")),
    WrongAnswer("skip-overlooked", _with("updates", "3")),
    WrongAnswer("only-bad-micro-batches-lost", _with("examples", "40")),
    WrongAnswer("nothing-lost", _with("examples", "48")),
    WrongAnswer("halved-twice", _with("scale", "4096")),
    WrongAnswer("scale-kept", _with("scale", "16384")),
    WrongAnswer("only-the-bad-ones", _with("not_finite", "2")),
    WrongAnswer("never-cleared", _with("not_finite", "7")),
)

PROBLEM = Problem(
    id="05b",
    title="What an overflow costs",
    kind="predict",
    minutes=8,
    difficulty="medium",
    asks="answer",
    answer=ANSWER,
    hints=HINTS,
    judge=_judge,
    wrong_answers=WRONG_ANSWERS,
)

check, hint, solution = PROBLEM.check, PROBLEM.hint, PROBLEM.solution
