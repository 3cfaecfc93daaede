"""Exercise 01c: choose settings for a wanted effective batch size, within a memory, without a tail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from accumkit import tasks
from accumkit.audit.findings import listed, several
from accumkit.checks.outcome import NOT_YET, RIGHT, Outcome
from accumkit.checks.problem import Problem, WrongAnswer, but
from accumkit.checks.questions import Question, judged
from accumkit.checks.stubs import solved
from accumkit.loops import train_epoch
from accumkit.objective import classification
from accumkit.trace.record import Trace
from accumkit.trace.watch import watch

EXAMPLES, FITS, LEAST, MOST = 180, 16, 40, 50
SIZE, STEPS = "micro_batch_size", "accumulation_steps"

ANSWER = """\
### BEGIN SOLUTION
answer = dict(
    micro_batch_size=15,  # examples in a micro-batch: a number
    accumulation_steps=3,  # micro-batches in a window, N: a number
)
### INSTEAD OF
# answer = dict(
#     micro_batch_size=...,  # examples in a micro-batch: a number
#     accumulation_steps=...,  # micro-batches in a window, N: a number
# )
### END SOLUTION
"""

HINTS = (
    "The number of examples in an update is the product of the two. Look for that number first: it is from 40 to 50, "
    "and 180 examples can be cut into such pieces without a remainder.",
    "It is 45, four times in 180. Now write 45 as a product of two whole numbers. There are several ways; which of "
    "them have a micro-batch that fits?",
    "45 is 45 * 1, 15 * 3, 9 * 5, 5 * 9, 3 * 15 or 1 * 45: micro-batch size times N. Of those whose micro-batch fits, "
    "take the one with the largest.",
)


def _judge(answer: Any) -> Outcome:
    whole, opened = _whole(answer)
    if opened:
        return opened
    size, steps = whole[SIZE], whole[STEPS]
    trace = _run(min(size, EXAMPLES), min(steps, EXAMPLES))
    updates = [update.examples for update in trace.updates]
    backwards = len(trace.micro_batches)
    made = several(backwards, "micro-batch")
    ran = f"{size} a micro-batch, N = {steps}: {_updates(updates)}, with {made} in the pass."
    items = [item for item in (_fits(size, steps), _wanted(size, steps, updates), _tail(updates)) if item]
    if not items and backwards > (fewest := _fewest()):
        said = f"But the pass has {made}, and {fewest} would do."
        items = [("More micro-batches than needed (small-micro-batches)",
                  f"The updates are as they should be, and everything fits. {said} Let a micro-batch be as large as it "
                  "can be.")]  # fmt: skip
    if not items:
        return Outcome(RIGHT, f"{ran} Each update has the same number of examples, and no tail is left.", trace=trace)
    return Outcome(NOT_YET, ran, tuple(items), trace=trace)


def _whole(answer: Any) -> tuple[dict[str, int], Outcome | None]:
    """Return the two settings, or what is to be said where they are no whole numbers of at least 1."""
    values = {}
    for name in (SIZE, STEPS):
        given = answer.get(name) if isinstance(answer, dict) else None
        try:
            value = int(Question(name, 1, "").read(given))
        except Exception:  # told below, by the question itself
            value = 0
        values[name] = value
    why = "A whole number of at least 1 is asked for."
    outcome = judged(answer, [Question(name, max(value, 1), why) for name, value in values.items()], "")
    if outcome.status == RIGHT:
        return values, None
    return values, replace(outcome, lead="two whole numbers are asked for.")


def _run(size: int, steps: int) -> Trace:
    """Return what a right loop does with these settings."""
    model, objective = tasks.mlp(dtype=torch.float64, hidden=4), classification()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = tasks.loader(tasks.digits(EXAMPLES, dtype=torch.float64), size)
    with watch(model, objective, accumulation_steps=steps) as trace:
        train_epoch(model, loader, optimizer, objective, accumulation_steps=steps)
    return trace


def _fits(size: int, steps: int) -> tuple[str, ...] | None:
    if size <= FITS:
        return None
    product = f" {size} in {steps} micro-batches is {size * steps} an update." * (steps > 1)
    return (
        "A micro-batch does not fit (out-of-memory)",
        f"It would hold {size} examples at a time, and {FITS} fit. It is the window that may be larger than the "
        f"memory: it is made of several micro-batches, one after the other.{product}",
    )


def _wanted(size: int, steps: int, updates: list[int]) -> tuple[str, ...] | None:
    full = max(updates)
    if LEAST <= full <= MOST:
        return None
    said = f"The largest update has {full} examples, and {LEAST} to {MOST} are wanted."
    if steps == 1:
        return "Nothing is accumulated (step-every-micro-batch)", f"{said} With N = 1 every micro-batch is an update."
    if len(updates) == 1 and size * steps >= EXAMPLES:
        return ("The whole pass is one update (one-update)",
                f"{said} N is how many micro-batches make one update, not how many there are in the pass.")  # fmt: skip
    word = "too large (update-too-large)" if full > MOST else "too small (update-too-small)"
    return f"The updates are {word}", f"{said} An update has micro-batch size times N of them: {size} * {steps}."


def _tail(updates: list[int]) -> tuple[str, ...] | None:
    if len(set(updates)) == 1:
        return None
    which = "The last updates" if len(updates) > 4 else "The updates"
    return (
        "The last update is smaller (tail)",
        f"{which} have {listed(list(map(str, updates[-4:])))} examples. A right loop weighs "
        f"them rightly, but here all updates should be alike: {EXAMPLES} must be a multiple of {max(updates)}, and it "
        "is not.",
    )


def _updates(updates: list[int]) -> str:
    """Return how many updates of which sizes there are, in words."""
    first, last = updates[0], updates[-1]
    if len(updates) == 1:
        return f"1 update of {first} examples"
    if first == last:
        return f"{len(updates)} updates of {first} examples"
    return f"{len(updates)} updates of {first} examples, the last of {last}"


def _fewest() -> int:
    """Return the fewest micro-batches that the wanted updates can be made of."""
    fitting = [size for full in range(LEAST, MOST + 1) if EXAMPLES % full == 0
               for size in range(1, FITS + 1) if full % size == 0]  # fmt: skip
    return EXAMPLES // max(fitting)


def _wrong(fault: str, size: int, steps: int) -> WrongAnswer:
    source = but(solved(ANSWER), f"{SIZE}=15", f"{SIZE}={size}")
    return WrongAnswer(fault, but(source, f"{STEPS}=3", f"{STEPS}={steps}"))


WRONG_ANSWERS = (
    _wrong("out-of-memory", 45, 1),  # the effective batch size taken for the micro-batch size
    _wrong("tail", FITS, 3),  # as much as fits, and 48 an update
    _wrong("step-every-micro-batch", 15, 1),
    _wrong("one-update", 15, 12),  # N taken for the number of micro-batches in the pass
    _wrong("update-too-large", 15, 4),  # N taken for the number of updates
    _wrong("update-too-small", 3, 4),
    _wrong("small-micro-batches", 9, 5),
)

PROBLEM = Problem(
    id="01c",
    title="Choose the settings",
    kind="choose",
    minutes=8,
    difficulty="easy",
    asks="answer",
    answer=ANSWER,
    hints=HINTS,
    judge=_judge,
    wrong_answers=WRONG_ANSWERS,
)

check, hint, solution = PROBLEM.check, PROBLEM.hint, PROBLEM.solution
