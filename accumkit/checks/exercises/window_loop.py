"""Exercise 01a: write the loop that makes many micro-batches into one update."""

from __future__ import annotations

from collections.abc import Callable

from accumkit.checks.outcome import Outcome
from accumkit.checks.problem import Problem, WrongAnswer, but
from accumkit.checks.window_words import outcome_of

ACCUMULATION_STEPS = 4
SECONDS = 5  # both calls together take a tenth of one

PRAISE = (
    "in every update, every example weighs what it should: full windows, the short last one, "
    "and micro-batches of different sizes."
)

ANSWER = '''\
def train(model, loader, optimizer, accumulation_steps):
    """Go through the loader once: one update for each window of micro-batches."""
    ### BEGIN SOLUTION
    micro_batches = iter(loader)
    while window := list(islice(micro_batches, accumulation_steps)):
        count = sum(len(labels) for images, labels in window)
        optimizer.zero_grad()
        for images, labels in window:
            loss = F.cross_entropy(model(images), labels, reduction="sum")
            (loss / count).backward()
        optimizer.step()
    ### END SOLUTION
'''

HINTS = (
    "Think of one window at a time. Before its first backward you need one number: how many examples the whole "
    "window holds. So collect the window's micro-batches in a list first; the last window may be shorter.",
    'Use losses that are summed, not averaged: F.cross_entropy(..., reduction="sum"). A sum over a micro-batch, '
    "divided by the count of the window, is that micro-batch's part of the window's mean, whatever its size.",
    "The frame is this; three lines are missing, and each stands in its place.\n\n"
    """
    micro_batches = iter(loader)
    while window := list(islice(micro_batches, accumulation_steps)):
        count = ...                       # examples in the whole window
        ...                               # forget the gradients of the window before
        for images, labels in window:
            loss = F.cross_entropy(model(images), labels, reduction="sum")
            (loss / count).backward()     # adds to .grad
        ...                               # one update
    """,
)


def _judge(train: Callable) -> Outcome:
    return outcome_of(train, PRAISE, ACCUMULATION_STEPS, SECONDS)


# The loop that many people write first. On data of any size it is wrong twice over.
USUAL = """\
def train(model, loader, optimizer, accumulation_steps):
    optimizer.zero_grad()
    for i, (images, labels) in enumerate(loader):
        loss = F.cross_entropy(model(images), labels) / accumulation_steps
        loss.backward()
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
"""


# Right in every weight, and yet no accumulation: all forwards of a window are in memory at once.
ONE_BACKWARD = """\
def train(model, loader, optimizer, accumulation_steps):
    micro_batches = iter(loader)
    while window := list(islice(micro_batches, accumulation_steps)):
        optimizer.zero_grad()
        losses = [F.cross_entropy(model(images), labels, reduction="sum") for images, labels in window]
        (sum(losses) / sum(len(labels) for images, labels in window)).backward()
        optimizer.step()
"""

_SCALED = "(loss / count)"
_STEP = "        optimizer.step()\n"
_ITERATOR = "    micro_batches = iter(loader)\n"
_WHILE = "while window := list(islice(micro_batches, accumulation_steps)):\n"
_FOR = """\
for _ in range(0, len(loader), accumulation_steps):
        window = list(islice(loader, accumulation_steps))
"""
_LAST = " or i + 1 == len(loader)"

WRONG_ANSWERS = (
    WrongAnswer("missing-division", but(ANSWER, _SCALED, "(loss / len(labels))")),
    WrongAnswer("double-division", but(ANSWER, _SCALED, "(loss / count / len(window))")),
    WrongAnswer("mean-of-means", but(ANSWER, _SCALED, "(loss / len(labels) / len(window))")),
    WrongAnswer("tail-divisor", USUAL),
    WrongAnswer("tail-dropped", but(USUAL, _LAST, "")),
    WrongAnswer("tail-leaked", but(but(USUAL, _LAST, ""), "    optimizer.zero_grad()\n    for", "    for")),
    WrongAnswer("off-by-one", but(USUAL, "(i + 1) %", "i %")),
    WrongAnswer("step-every-micro-batch", but(ANSWER, _STEP, "    " + _STEP)),
    WrongAnswer(
        "zero-every-micro-batch",
        but(ANSWER, "            loss =", "            optimizer.zero_grad()\n            loss ="),
    ),
    WrongAnswer("stale-gradients", but(ANSWER, "        optimizer.zero_grad()\n", "")),
    WrongAnswer("data-reused", but(but(ANSWER, _ITERATOR, ""), _WHILE, _FOR)),
    WrongAnswer("graph-kept", ONE_BACKWARD),
    # a step that is not indented: the data of a whole pass in one update
    WrongAnswer("one-update-a-pass", but(ANSWER, _STEP, "    optimizer.step()\n")),
    WrongAnswer("n-written-down", but(ANSWER, "islice(micro_batches, accumulation_steps)", "islice(micro_batches, 4)")),
)

PROBLEM = Problem(
    id="01a",
    title="Write the window loop",
    kind="write",
    minutes=15,
    difficulty="medium",
    asks="train",
    answer=ANSWER,
    hints=HINTS,
    judge=_judge,
    wrong_answers=WRONG_ANSWERS,
    imports="from itertools import islice\n\nimport torch\nimport torch.nn.functional as F\n",
)

check, hint, solution = PROBLEM.check, PROBLEM.hint, PROBLEM.solution
