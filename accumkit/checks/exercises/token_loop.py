"""Exercise 02c: write a loop over lines of text in which every token weighs the same."""

from __future__ import annotations

from collections.abc import Callable

from accumkit.checks.outcome import Outcome
from accumkit.checks.problem import Problem, WrongAnswer, but
from accumkit.checks.stubs import solved

ACCUMULATION_STEPS = 4
SECONDS = 5  # both calls together take a tenth of one

PRAISE = "in every update, every token that has a target weighs 1: in long lines and short ones, with padding or none."

ANSWER = '''\
def train(model, loader, optimizer, accumulation_steps):
    """Go through the loader once: one update for each window of micro-batches."""
    ### BEGIN SOLUTION
    micro_batches = iter(loader)
    while window := list(islice(micro_batches, accumulation_steps)):
        count = sum((labels[:, 1:] != -100).sum() for tokens, labels in window)
        optimizer.zero_grad()
        for tokens, labels in window:
            scores, targets = model(tokens)[:, :-1], labels[:, 1:]
            loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum")
            (loss / count).backward()
        optimizer.step()
    ### END SOLUTION
'''

HINTS = (
    "The frame is that of exercise 01a: collect a window, count, then a backward for each micro-batch. What is new is "
    "the count: what would a mean over the whole window divide by? Not lines, and not all places.",
    "Targets are `labels[:, 1:]`, and those that are -100 have no loss: torch leaves them out of a sum, so leave them "
    "out of the count. `(labels[:, 1:] != -100).sum()` counts those of one micro-batch.",
    "The frame is this; three lines are missing.\n\n"
    """
    micro_batches = iter(loader)
    while window := list(islice(micro_batches, accumulation_steps)):
        count = ...                       # targets that are not -100, in the whole window
        ...                               # forget the gradients of the window before
        for tokens, labels in window:
            scores, targets = model(tokens)[:, :-1], labels[:, 1:]
            loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum")
            (loss / count).backward()     # adds to .grad
        ...                               # one update
    """,
)


def _judge(train: Callable) -> Outcome:
    from accumkit.checks.token_words import outcome_of

    return outcome_of(train, PRAISE, ACCUMULATION_STEPS, SECONDS)


SOLVED = solved(ANSWER)
_COUNT = "sum((labels[:, 1:] != -100).sum() for tokens, labels in window)"
_SUM = 'F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum")'
_MEAN = "F.cross_entropy(scores.flatten(0, 1), targets.flatten())"
_PAIRS = "model(tokens)[:, :-1], labels[:, 1:]"
_RUNNING = but(
    but(SOLVED, _COUNT, "0"),
    "            loss =",
    "            count += (targets != -100).sum()\n            loss =",
)
_LINES = but(
    but(SOLVED, 'scores.flatten(0, 1), targets.flatten(), reduction="sum"', 'scores.mT, targets, reduction="none"'),
    "            (loss / count)",
    "            loss = (loss.sum(1) / (targets != -100).sum(1)).sum()\n            (loss / count)",
)

WRONG_ANSWERS = (
    WrongAnswer("token-weighting", but(but(SOLVED, _SUM, _MEAN), "(loss / count)", "(loss / len(window))")),
    WrongAnswer("tail-divisor", but(but(SOLVED, _SUM, _MEAN), "(loss / count)", "(loss / accumulation_steps)")),
    WrongAnswer("missing-division", but(SOLVED, "(loss / count)", "(loss / (targets != -100).sum())")),
    WrongAnswer("padding-counted", but(SOLVED, _COUNT, "sum(tokens.numel() for tokens, labels in window)")),
    WrongAnswer("unshifted-count", but(SOLVED, "(labels[:, 1:] != -100)", "(labels != -100)")),
    WrongAnswer("lines-counted", but(SOLVED, _COUNT, "sum(len(labels) for tokens, labels in window)")),
    WrongAnswer("unshifted-loss", but(SOLVED, _PAIRS, "model(tokens), labels")),
    WrongAnswer("line-means", but(_LINES, _COUNT, "sum(len(labels) for tokens, labels in window)")),
    WrongAnswer("uneven-divisor", _RUNNING),
)

PROBLEM = Problem(
    id="02c",
    title="Tokens that weigh alike",
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
