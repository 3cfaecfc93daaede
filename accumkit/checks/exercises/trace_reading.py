"""Exercise 03d: read what a loop did from its trace alone."""

from __future__ import annotations

import functools
import html
import textwrap
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from accumkit import tasks
from accumkit.checks.mystery import told
from accumkit.checks.outcome import WIDTH, Outcome
from accumkit.checks.problem import Problem, WrongAnswer
from accumkit.checks.questions import Question, Slip, judged
from accumkit.checks.stubs import solved
from accumkit.modes import as_new
from accumkit.objective import classification
from accumkit.trace.record import MicroBatch, Trace, Update
from accumkit.trace.watch import watch

EXAMPLES, SIZE, STEPS, PASSES = 26, 4, 4, 2  # the last micro-batch of a pass has 2
ASKED = 7  # the micro-batch whose weight is asked for, counted from 1
DIRECTIONS = ("as it should be", "shorter", "turned", "shorter and turned")
CONDITIONS = {  # at which i a window ends, counted from 0
    "i % 4 == 0": lambda i: i % STEPS == 0,
    "i % 4 != 0": lambda i: i % STEPS != 0,
    "(i + 1) % 4 == 0": lambda i: (i + 1) % STEPS == 0,
}

ANSWER = """\
### BEGIN SOLUTION
answer = dict(
    lost=[13, 14],  # micro-batches of the run that are in no update: a list of numbers
    mixed=3,  # the update that has examples of both passes: a whole number
    examples=10,  # how many examples have a part in that update: a whole number
    weight=0.5,  # what one example of micro-batch 7 weighs: a number
    first="shorter",  # the gradient of update 1, one of the four
    third="shorter and turned",  # the gradient of update 3, one of the four
    condition="i % 4 == 0",  # one of the three
)
### INSTEAD OF
# answer = dict(
#     lost=...,  # micro-batches of the run that are in no update: a list of numbers
#     mixed=...,  # the update that has examples of both passes: a whole number
#     examples=...,  # how many examples have a part in that update: a whole number
#     weight=...,  # what one example of micro-batch 7 weighs: a number
#     first=...,  # the gradient of update 1, one of the four
#     third=...,  # the gradient of update 3, one of the four
#     condition=...,  # one of the three
# )
### END SOLUTION
"""

HINTS = (
    "Number the micro-batches through the whole run, and go down the column `micro-batches`, adding up: update 1 ends "
    "with micro-batch 1, update 2 with micro-batch 5. A pass has 7, so the second pass begins with micro-batch 8.",
    "The column `examples` counts those that belong to a window; what leaked in from the pass before stands under "
    "`weights`, and in the picture, but not in that column. And two numbers describe a gradient: `cosine` is 1 where "
    "its direction is right, and `ratio` is 1 where it goes as far in that direction as it should.",
    "The windows, by the numbers of their micro-batches; each has 4 examples, but numbers 7 and 14 have 2.\n\n"
    """
    # update 1    1
    # update 2    2  3  4  5
    # update 3    6  7 | 8             the second pass begins at the line
    # update 4    9 10 11 12
    # no update  13 14
    """,
)

PRAISE = (
    "you read it as it was. The first window has one micro-batch, so its gradient, divided by 4, is a quarter of what "
    "it should be; what the first pass leaves over joins the first micro-batch of the second; and what the second "
    "leaves over is lost."
)


@dataclass(frozen=True, repr=False)
class Seen:
    """A trace as a notebook shows it: its table, and a picture of the weights with a text that answers nothing."""

    trace: Trace

    def __repr__(self) -> str:
        return f"{self.trace}\n\n{textwrap.fill(told(self.trace, names=False), WIDTH)}"

    def _repr_html_(self) -> str:
        from accumkit.figures import weights_picture  # only a notebook needs it

        return f"<pre>{html.escape(repr(self.trace))}</pre>{weights_picture(names=False).html(self.trace)}"


def _train(model, loader, optimizer):
    """One pass of the loop whose trace is read."""
    for i, (images, labels) in enumerate(loader):
        (cross_entropy(model(images), labels) / STEPS).backward()
        if i % STEPS == 0:
            optimizer.step()
            optimizer.zero_grad()


@functools.cache
@as_new()
def trace() -> Trace:
    """Run the loop for real, and return its trace.

    Examples
    --------
    >>> from accumkit.checks import trace_reading as q
    >>> len(q.trace().updates)
    4
    """
    model, loader = tasks.mlp(dtype=torch.float64), tasks.loader(tasks.digits(EXAMPLES, torch.float64), SIZE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, classification(), accumulation_steps=STEPS) as seen:
        for _ in range(PASSES):
            _train(model, loader, optimizer)
    return seen


def seen() -> Seen:
    """Return the loop's trace as it is shown."""
    return Seen(trace())


def _judge(attempt: Any) -> Outcome:
    return judged(attempt, _questions(trace()), PRAISE)


def _direction(update: Update) -> str:
    """Return how the gradient of an update stands to the one it should be, from ratio and cosine."""
    turned = update.cosine < 0.999
    shorter = update.gradient_ratio < 0.999
    return DIRECTIONS[shorter + 2 * turned]


def _condition(seen: Trace) -> str:
    """Return the condition that steps where the loop did."""
    a_pass = seen.epoch_sizes[0]
    ends = [update.micro_batches[-1].index for update in seen.updates]
    fits = [text for text, full in CONDITIONS.items()
            if ends == [m.index for m in seen.micro_batches if full(m.index % a_pass)]]  # fmt: skip
    return fits[0]


def _questions(seen: Trace) -> list[Question]:
    lost = [micro.index + 1 for micro in seen.lost]
    mixed = next(update for update in seen.updates if any(micro.fate == "leaked" for micro in update.micro_batches))
    leaked = [micro for micro in mixed.micro_batches if micro.fate == "leaked"]
    asked = seen.micro_batches[ASKED - 1]
    others: dict[float, MicroBatch] = {m.weight: m for m in seen.micro_batches if m.weight not in (None, asked.weight)}
    return [
        Question(
            "lost", lost, "The table says how many they are; add up the windows to find which. They are numbered "
            "through the whole run, from 1.",
            [
                Slip([micro.index + 1 for micro in leaked], "carried-not-lost", "No update follows in the same pass, "
                     "true; but nothing clears them, and there is a later update in which they have a weight."),
                Slip([n - 1 for n in lost], "counted-from-0", "Number the micro-batches from 1, as the task does."),
                Slip([], "overlooked", "Look at the last line of the table."),
                Slip(sorted([*lost, *(m.index + 1 for m in leaked)]), "two-of-them-came-late", "Two of these do have a "
                     "part in an update, a late one."),
            ],
            which=True,
        ),
        Question(
            "mixed", mixed.index + 1, "The first pass ends with micro-batch 7. In which update is that one?",
            [Slip(PASSES, "pass-for-update", "That is the pass; an update is asked for, a row of the table.")],
        ),
        Question(
            "examples", sum(micro.examples for micro in mixed.micro_batches),
            "Add up the examples of all micro-batches that have a weight in that update.",
            [
                Slip(mixed.examples, "own-examples-only", "The column `examples` counts those that belong to this "
                     "window. What leaked in has a part in the update as well."),
                Slip(mixed.accumulated * SIZE, "all-of-one-size", "Not all micro-batches have 4 examples: the data end "
                     "in the middle of one, and the picture draws it narrower."),
                Slip(mixed.accumulated, "micro-batches", "Those are micro-batches; their examples are asked for."),
            ],
        ),
        Question(
            "weight", asked.weight, "Find micro-batch 7 under `weights`, in the row of its update, or its bar in the "
            "picture.",
            [Slip(weight, "another-bar", f"That is what an example of micro-batch {micro.index + 1} weighs, for one.")
             for weight, micro in others.items()],
        ),
        _about("first", seen.updates[0]),
        _about("third", seen.updates[2]),
        Question(
            "condition", _condition(seen), "Say it aloud for i = 0, the first micro-batch: does the loop step there?",
            [Slip("(i + 1) % 4 == 0", "first-step-overlooked", "That one steps after micro-batch 4 for the first time. "
                  "After which one does the table step?")],
            choices=tuple(CONDITIONS),
        ),
    ]  # fmt: skip


def _about(name: str, update: Update) -> Question:
    """Return the question for the gradient of an update."""
    turned = "turned" in _direction(update)
    slips = [Slip("as it should be", "ratio-overlooked", "`ratio` and `cosine` are both 1 for a right gradient.")]
    if turned:
        slips.append(Slip("shorter", "cosine-overlooked", "`cosine` is not 1: it points elsewhere too."))
        slips.append(Slip("turned", "ratio-overlooked", "`ratio` is not 1: it does not go as far as it should."))
    else:
        said = "Which of the two numbers tells the direction? It is 1 here."
        slips += [Slip(choice, "ratio-for-direction", said) for choice in ("turned", "shorter and turned")]
    return Question(name, _direction(update), "Read `ratio` and `cosine`.", slips, choices=DIRECTIONS)


def _with(**values: str) -> str:
    """Return an answer with some values that are wrong."""
    return solved(ANSWER) + "".join(f"answer.update({name}={value})\n" for name, value in values.items())


WRONG_ANSWERS = (
    WrongAnswer("carried-not-lost", _with(lost="[6, 7]")),
    WrongAnswer("counted-from-0", _with(lost="[12, 13]")),
    WrongAnswer("pass-for-update", _with(mixed="2")),
    WrongAnswer("own-examples-only", _with(examples="4")),
    WrongAnswer("all-of-one-size", _with(examples="12")),
    WrongAnswer("another-bar", _with(weight="0.25")),
    WrongAnswer("ratio-for-direction", _with(first="'shorter and turned'")),
    WrongAnswer("cosine-overlooked", _with(third="'shorter'")),
    WrongAnswer("first-step-overlooked", _with(condition="'(i + 1) % 4 == 0'")),
)

PROBLEM = Problem(
    id="03d",
    title="Read a trace",
    kind="read",
    minutes=10,
    difficulty="medium",
    asks="answer",
    answer=ANSWER,
    hints=HINTS,
    judge=_judge,
    wrong_answers=WRONG_ANSWERS,
)

check, hint, solution = PROBLEM.check, PROBLEM.hint, PROBLEM.solution
