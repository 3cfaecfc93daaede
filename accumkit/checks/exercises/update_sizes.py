"""Exercise 01b: say from three numbers how many updates there are, and what is in each."""

from __future__ import annotations

import functools
from typing import Any

from accumkit import pitfalls
from accumkit.checks.outcome import Outcome
from accumkit.checks.problem import Problem, WrongAnswer
from accumkit.checks.questions import Question, Slip, judged
from accumkit.checks.stubs import solved
from accumkit.trace.record import Trace

SETTINGS = {"examples": 74, "micro_batch_size": 6, "accumulation_steps": 5}

PRAISE = (
    "that is what the right loop did when it was run just now. The tail is a window like the others, only smaller: its "
    "examples are fewer, and the divisor with them."
)

ANSWER = """\
### BEGIN SOLUTION
answer = dict(
    micro_batches=13,  # in one pass: a number
    updates=3,  # in one pass: a number
    examples=[30, 30, 14],  # in each update, from the first to the last: a list of numbers
    divisor=14,  # of the last micro-batch's summed loss: a number
    share=2 / 14,  # of the last micro-batch in its update: a number from 0 to 1
)
### INSTEAD OF
# answer = dict(
#     micro_batches=...,  # in one pass: a number
#     updates=...,  # in one pass: a number
#     examples=...,  # in each update, from the first to the last: a list of numbers
#     divisor=...,  # of the last micro-batch's summed loss: a number
#     share=...,  # of the last micro-batch in its update: a number from 0 to 1
# )
### END SOLUTION
"""

HINTS = (
    "Cut the 74 examples into micro-batches first, and give the last one what is left. Then cut the micro-batches into "
    "windows of 5; the last window too may get fewer.",
    "Twelve micro-batches of 6 are 72 examples. Write down all sizes in a row, put a stroke after every fifth, and "
    "add up between the strokes.",
    "The sizes are these, a window in each line. A loss is divided by the sum of its line; a share is a size "
    "divided by the sum of its line.\n\n"
    """
    6 6 6 6 6
    6 6 6 6 6
    6 6 2
    """,
)


@functools.cache
def _ran(slug: str | None = None) -> Trace:
    """Return what a loop with this fault does, or the right loop."""
    simulation = pitfalls.simulate(slug or "tail-dropped", **SETTINGS)
    return simulation.trace if slug else simulation.right_trace


def _sizes(trace: Trace) -> list[int]:
    return [update.examples for update in trace.updates]


def _questions() -> list[Question]:
    """Return what is asked, with values of the right loop and of wrong ones, all of them run."""
    right, dropped, shifted, each = map(_ran, (None, "tail-dropped", "off-by-one", "step-every-micro-batch"))
    total, size, steps = SETTINGS.values()
    sizes, made = _sizes(right), [micro.examples for micro in right.micro_batches]
    last, window = made[-1], right.updates[-1].micro_batches
    full, short = sizes[0], "The last window has fewer micro-batches than a full one"
    return [
        Question("micro_batches", len(made), "Divide the examples among micro-batches; what is left over makes one "
                 "more, a smaller one.", [
            Slip(total // size, "short-micro-batch-dropped", f"{total // size} micro-batches of {size} hold "
                 f"{total // size * size} examples. What of the others? The loader gives them too, in a smaller one."),
            Slip(total / size, "short-micro-batch-dropped", "A micro-batch is there or it is not. The last one is "
                 "smaller than the others, and counts as one all the same."),
            Slip(total / steps, "divided-by-n", f"That divides the examples by N. How many examples a micro-batch has "
                 f"is the other number, {size}."),
            Slip(total // steps, "divided-by-n", f"That divides the examples by N. How many examples a micro-batch has "
                 f"is the other number, {size}."),
        ]),
        Question("updates", len(sizes), f"An update is made of {steps} micro-batches; what is left at the end of the "
                 "pass makes one more.", [
            Slip(len(dropped.updates), "tail-dropped", f"That many windows are full. The micro-batches after them, "
                 f"fewer than {steps}, would never train the model; a right loop steps for them too."),
            Slip(len(each.updates), "step-every-micro-batch", "That is an update for every micro-batch. Their "
                 f"gradients are added up, and one step is made for {steps} of them."),
            Slip(len(shifted.updates), "off-by-one", "Is there a window of the first micro-batch alone? A loop that "
                 "counts from 0 and asks for `i % N == 0` makes one; a right one does not."),
            Slip(total // steps, "divided-by-n", f"That divides the examples by N. N counts micro-batches, not "
                 f"examples: a window holds {steps} micro-batches of {size}."),
            Slip(steps, "n-is-no-number-of-updates", f"N = {steps} is how many micro-batches make one update, not how "
                 "many updates there are."),
        ]),
        Question("examples", sizes, f"Add up the examples of each window. All of them together must be {total}.", [
            Slip(_sizes(dropped), "tail-dropped", f"That makes {sum(_sizes(dropped))} of {total} examples: the others "
                 "are in no update. What is left at the end of the pass makes a smaller one."),
            Slip([full] * len(sizes), "tail-counted-full", f"That makes {full * len(sizes)} examples, and there are "
                 f"{total}. The last window is shorter than the others."),
            Slip([*sizes[:-1], size * len(window)], "short-micro-batch-counted-full", f"That makes "
                 f"{sum(sizes[:-1]) + size * len(window)} examples, and there are {total}. The very last micro-batch "
                 "has fewer than the others."),
            Slip([*sizes[:-1], sizes[-1] - last], "short-micro-batch-dropped", f"That makes {total - last} examples, "
                 f"and there are {total}. The smaller last micro-batch belongs to the last window."),
            Slip(_sizes(shifted), "off-by-one", "That is what a loop does which counts from 0 and asks for "
                 "`i % N == 0`: its first window ends after one micro-batch, and all others are shifted."),
            Slip(_sizes(each), "step-every-micro-batch", "Those are the micro-batches, one update for each. "
                 f"{steps} of them make one update."),
            Slip([update.accumulated for update in right.updates], "micro-batches-not-examples", "Those are the "
                 "micro-batches in each update. How many examples do they hold together?"),
        ], length_told=False),
        Question("divisor", sizes[-1], "Every summed loss is divided by one number: how many examples its window "
                 "really has.", [
            Slip(steps, "divided-by-n", f"N = {steps} is a number of micro-batches. A sum of losses is divided by the "
                 "examples of its window."),
            Slip(full, "tail-divisor", f"That is how many examples a full window has. {short}."),
            Slip(last, "own-count", "That is the count of the micro-batch alone, which makes its mean. It shares the "
                 "update with the others of its window: divide by what they have together."),
            Slip(len(window), "mean-of-means", f"{short}, and a sum of losses is divided by examples, not by "
                 "micro-batches."),
            Slip(size * len(window), "short-micro-batch-counted-full", f"{short}, and the very last of these has fewer "
                 f"than {size} examples."),
            Slip(sizes[-1] - last, "short-micro-batch-dropped", "The smaller last micro-batch is in the window too, "
                 "and so are its examples."),
            Slip(total, "whole-pass", f"All {total} examples are in the pass, not in the window. Each update has a "
                 "divisor of its own."),
        ]),
        Question("share", window[-1].share, "A share is the count of the micro-batch, divided by the count of its "
                 "window.", [
            Slip(_last_share("tail-divisor"), "tail-divisor", f"That is 1/{steps}, the share of a full micro-batch in "
                 f"a full window; a mean that is divided by N gets it everywhere. {short}, and the last micro-batch "
                 "has fewer examples than the others."),
            Slip(last / full, "tail-divisor", f"That divides by the {full} examples of a full window. {short}."),
            Slip(1 / len(window), "mean-of-means", "That would give each micro-batch of the window the same share, "
                 "whatever it holds. This one holds fewer examples than the others."),
            Slip(last / total, "whole-pass", "That is its part of the whole pass. What is its part of its own "
                 "update?"),
            Slip(1.0, "weight-not-share", "In a right loop 1 is what one example weighs. The share is the part that "
                 "the micro-batch has in its update, and the others have parts too."),
            Slip(last, "own-count", "That is its count. Divide it by the count of its window."),
            Slip(100 * window[-1].share, "percent", "That is a percentage. A share is a part of 1: divide it by 100."),
        ], near=0.025),
    ]  # fmt: skip


def _last_share(slug: str) -> float:
    return _ran(slug).micro_batches[-1].share


def _judge(answer: Any) -> Outcome:
    outcome = judged(answer, _questions(), PRAISE, trace=_ran())
    return outcome if outcome.status == "right" else Outcome(outcome.status, outcome.lead, outcome.items)


def _wrong(fault: str, values: str) -> WrongAnswer:
    return WrongAnswer(fault, f"{solved(ANSWER)}answer.update({values})\n")


WRONG_ANSWERS = (
    _wrong("tail-dropped", "micro_batches=13, updates=2, examples=[30, 30], divisor=30, share=0.2"),
    _wrong("tail-counted-full", "micro_batches=13, updates=3, examples=[30, 30, 30], divisor=30, share=2 / 30"),
    _wrong("step-every-micro-batch", "micro_batches=13, updates=13, examples=12 * [6] + [2], divisor=2, share=1"),
    _wrong("off-by-one", "micro_batches=13, updates=4, examples=[6, 30, 30, 8], divisor=8, share=0.25"),
    _wrong("short-micro-batch-dropped", "micro_batches=12, updates=3, examples=[30, 30, 12], divisor=12, share=0.5"),
    _wrong("divided-by-n", "micro_batches=14.8, updates=14, examples=[30, 30, 14], divisor=5, share=0.2"),
    _wrong("mean-of-means", "micro_batches=13, updates=3, examples=[30, 30, 14], divisor=3, share=1 / 3"),
    _wrong("own-count", "micro_batches=13, updates=3, examples=[30, 30, 14], divisor=2, share=2 / 14"),
)

PROBLEM = Problem(
    id="01b",
    title="Count the updates",
    kind="predict",
    minutes=5,
    difficulty="easy",
    asks="answer",
    answer=ANSWER,
    hints=HINTS,
    judge=_judge,
    wrong_answers=WRONG_ANSWERS,
)

check, hint, solution = PROBLEM.check, PROBLEM.hint, PROBLEM.solution
