"""Exercise 02a: mend a loop that takes the mean of means."""

from __future__ import annotations

from collections.abc import Callable

from accumkit.checks.outcome import Outcome
from accumkit.checks.problem import Problem, WrongAnswer, but
from accumkit.checks.stubs import cut_solution, solved
from accumkit.checks.window_words import outcome_of

ACCUMULATION_STEPS = 4
SECONDS = 5  # both calls together take a tenth of one

PRAISE = "each window is divided once, by the examples that it really has: large and small micro-batches, and the tail."

ANSWER = """\
def train(model, loader, optimizer, accumulation_steps):
    ### BEGIN SOLUTION
    count = 0
    ### INSTEAD OF
    ### END SOLUTION
    for i, (images, labels) in enumerate(loader, 1):
        ### BEGIN SOLUTION
        loss = F.cross_entropy(model(images), labels, reduction="sum")
        count += len(labels)
        ### INSTEAD OF
        # loss = F.cross_entropy(model(images), labels) / accumulation_steps
        ### END SOLUTION
        loss.backward()
        if i % accumulation_steps == 0 or i == len(loader):
            ### BEGIN SOLUTION
            for p in model.parameters():
                p.grad /= count
            count = 0
            ### INSTEAD OF
            ### END SOLUTION
            optimizer.step()
            optimizer.zero_grad()
"""

HINTS = (
    "The right divisor is the number of examples in the whole window. In this loop it is known only when the window is "
    "over. So either collect the window first, or divide later: a gradient is divided like the loss it comes from.",
    'Three steps: sum the losses (`reduction="sum"`), count the examples as they come, and divide every `p.grad` by '
    "that count once, just before `optimizer.step()`. Begin to count anew with each window.",
    "The frame is this; what each comment says is missing.\n\n"
    """
    # the count begins at 0
    for i, (images, labels) in enumerate(loader, 1):
        loss = F.cross_entropy(model(images), labels, reduction="sum")
        # these examples are counted
        loss.backward()
        if i % accumulation_steps == 0 or i == len(loader):
            for p in model.parameters():
                # its gradient is divided by the count
            # the count begins at 0 again
            optimizer.step()
            optimizer.zero_grad()
    """,
)


def _judge(train: Callable) -> Outcome:
    return outcome_of(train, PRAISE, ACCUMULATION_STEPS, SECONDS)


GIVEN, MENDED = cut_solution(ANSWER), solved(ANSWER)
_MEAN = "F.cross_entropy(model(images), labels)"
_SUM = 'F.cross_entropy(model(images), labels, reduction="sum")'
_BY_N = f"{_MEAN} / accumulation_steps"
_DIVIDED = "            for p in model.parameters():\n                p.grad /= count\n"
_SUMMED = but(MENDED, _DIVIDED, "")

# The window's own number of micro-batches mends the tail, and nothing else.
OWN_NUMBER = """\
def train(model, loader, optimizer, accumulation_steps):
    for i, (images, labels) in enumerate(loader):
        before = i // accumulation_steps * accumulation_steps
        k = min(accumulation_steps, len(loader) - before)
        loss = F.cross_entropy(model(images), labels) / k
        loss.backward()
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
"""

WRONG_ANSWERS = (
    WrongAnswer("mean-of-means", OWN_NUMBER),
    WrongAnswer("missing-division", but(GIVEN, _BY_N, _MEAN)),
    WrongAnswer("fixed-divisor", but(GIVEN, _BY_N, f"{_SUM} / accumulation_steps")),
    WrongAnswer("double-division", but(MENDED, _SUM, f"{_SUM} / accumulation_steps")),
    WrongAnswer("never-divided", _SUMMED),
    WrongAnswer("uneven-divisor", but(_SUMMED, "loss.backward()", "(loss / count).backward()")),
    WrongAnswer("count-not-reset", but(MENDED, "            count = 0\n", "")),
    WrongAnswer("micro-batches-counted", but(MENDED, "count += len(labels)", "count += 1")),
)

PROBLEM = Problem(
    id="02a",
    title="Mend the mean of means",
    kind="mend",
    minutes=10,
    difficulty="medium",
    asks="train",
    answer=ANSWER,
    hints=HINTS,
    judge=_judge,
    wrong_answers=WRONG_ANSWERS,
    imports="import torch.nn.functional as F\n",
)

check, hint, solution = PROBLEM.check, PROBLEM.hint, PROBLEM.solution
