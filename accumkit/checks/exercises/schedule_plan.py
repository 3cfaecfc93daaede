"""Exercise 03b: how many updates a run has, and how long a schedule is that is stepped at each of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import TensorDataset

from accumkit import tasks
from accumkit.audit.findings import number
from accumkit.checks.outcome import NOT_YET, Outcome
from accumkit.checks.problem import Problem, WrongAnswer
from accumkit.checks.questions import Question, Slip, judged
from accumkit.checks.stubs import solved
from accumkit.checks.values import is_number, plain, shown
from accumkit.loops import train_epoch
from accumkit.objective import classification

EXAMPLES, SIZE, STEPS, PASSES = 82, 4, 4, 3  # the last micro-batch has 2, the last window one micro-batch
MICRO_BATCHES = math.ceil(EXAMPLES / SIZE)
FULL = 0.1  # the learning rate at the top
LONGEST = 10_000  # steps of a plan that is tried out
ENDS = ("reaches zero", "still rising", "still falling", "rises again")

ANSWER = """\
### BEGIN SOLUTION
answer = dict(
    updates_a_pass=6,  # a whole number
    updates=18,  # of the whole run: a whole number
    warm_up=6,  # total_iters of LinearLR: a whole number
    fall=12,  # T_max of CosineAnnealingLR: a whole number
    counted_in_micro_batches="still rising",  # how the run ends: one of the four
    rounded_down="rises again",  # how the run ends: one of the four
)
### INSTEAD OF
# answer = dict(
#     updates_a_pass=...,  # a whole number
#     updates=...,  # of the whole run: a whole number
#     warm_up=...,  # total_iters of LinearLR: a whole number
#     fall=...,  # T_max of CosineAnnealingLR: a whole number
#     counted_in_micro_batches=...,  # how the run ends: one of the four
#     rounded_down=...,  # how the run ends: one of the four
# )
### END SOLUTION
"""

HINTS = (
    "A pass has 21 micro-batches, and N is 4. Deal them out into windows: how many are full, and is what is left an "
    "update too? Then the next pass begins, with a window of its own.",
    "An update is made where a window ends, so a pass has ceil(micro-batches / N) of them. Round up pass by pass, not "
    "once for the run. Whoever steps a scheduler once an update has to give it all of its lengths in updates.",
    "The first four hang together like this; and `q.rates` shows what a plan does, update by update.\n\n"
    """
    updates_a_pass = ...                  # micro-batches of one pass / N, rounded up
    updates = 3 * updates_a_pass          # each pass begins a new window
    warm_up + fall == updates             # and the warm-up takes one pass of the three
    q.rates(21, 42)                       # the last number: the rate when the run is over
    """,
)

PRAISE = (
    "six updates a pass, eighteen in the run, and a schedule that counts them: the rate is full where the second pass "
    "begins, and zero where the run is over. Counted in micro-batches it never gets to the top; counted too short, a "
    "cosine does not stop at zero, it turns."
)


@functools.cache
def _trained() -> tuple[int, int]:
    """Train for real, on data that is there at once, and return the updates of the first pass and of the run."""
    model = torch.nn.Linear(1, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=FULL)
    loader = tasks.loader(TensorDataset(torch.ones(EXAMPLES, 1), torch.ones(EXAMPLES).long()), SIZE)
    logs = [train_epoch(model, loader, optimizer, classification(), accumulation_steps=STEPS) for _ in range(PASSES)]
    return len(logs[0].updates), sum(len(log.updates) for log in logs)


def rates(warm_up: int, fall: int) -> list[float]:
    """Return the learning rate at every update of the run, and what it is afterwards, for a plan of two lengths.

    Parameters
    ----------
    warm_up : int
        Steps of the rise from a tenth to the full rate, 0.1.
    fall : int
        Steps of the fall from there to zero.

    Examples
    --------
    >>> from accumkit.checks import schedule_plan as q
    >>> q.rates(21, 42)[:3]
    [0.01, 0.0143, 0.0186]
    """
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=FULL)
    rise = LinearLR(optimizer, 0.1, 1.0, total_iters=warm_up)
    scheduler = SequentialLR(optimizer, [rise, CosineAnnealingLR(optimizer, T_max=fall)], milestones=[warm_up])
    seen = []
    for _ in range(_trained()[1]):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return [round(rate, 4) for rate in [*seen, optimizer.param_groups[0]["lr"]]]


def _end(seen: list[float]) -> str:
    """Return how a run ends whose rates these are."""
    if max(seen) < FULL:
        return "still rising"
    if seen[-1] > seen[-2]:
        return "rises again"
    return "reaches zero" if seen[-1] == 0 else "still falling"


def _judge(attempt: Any) -> Outcome:
    a_pass, updates = _trained()
    given = _numbers(attempt)
    outcome = judged(attempt, _questions(a_pass, updates, given), PRAISE)
    tried = _tried(given, a_pass, updates - a_pass) if outcome.status == NOT_YET else None
    return replace(outcome, items=(*outcome.items, tried)) if tried else outcome


def _numbers(attempt: Any) -> dict[str, float]:
    """Return those values of an answer that are numbers, by their names."""
    values = {name: plain(value) for name, value in attempt.items()} if isinstance(attempt, dict) else {}
    return {name: value for name, value in values.items() if is_number(value)}


def _tried(given: Mapping[str, Any], warm_up: int, fall: int) -> tuple[str, str] | None:
    """Return what a learner's plan does, where it can be tried and is not the right one."""
    planned = [given.get(name, 0) for name in ("warm_up", "fall")]
    if not all(value == int(value) and 1 <= value <= LONGEST for value in planned):
        return None
    lengths = [int(value) for value in planned]
    if lengths == [warm_up, fall]:
        return None
    seen = rates(*lengths)
    top = next((i for i, rate in enumerate(seen[:-1], 1) if rate >= FULL), None)
    reached = f"is first at its full {FULL} at update {top}" if top else f"never gets to its full {FULL}"
    return f"What your plan does: warm_up = {lengths[0]}, fall = {lengths[1]}", (
        f"Tried out, with one scheduler step at each of the run's updates, the rate {reached}; when the run is over it "
        f"is {number(seen[-1])}. It should be full at the first update of the second pass, and 0 when the run is over."
    )


def _questions(a_pass: int, updates: int, given: Mapping[str, Any]) -> list[Question]:
    """Return the questions; ``given`` are a learner's own values, from which the last length follows."""
    down = MICRO_BATCHES // STEPS
    fall = updates - a_pass
    in_micro_batches = PASSES * MICRO_BATCHES
    unrounded = "An update is made or not: there is no part of one. What becomes of the part that you have left over?"
    unrounded_passes = (MICRO_BATCHES / STEPS, EXAMPLES / SIZE / STEPS)
    lost = "Rounded down, the last window of a pass makes no update. It is short, but it steps."
    micro, passes = (f"Those are {what}. The scheduler takes one step for each update, so its lengths are in updates."
                     for what in ("micro-batches", "passes"))  # fmt: skip
    return [
        Question(
            "updates_a_pass", a_pass, "Deal the micro-batches of one pass out into windows of N, and count these.",
            [
                Slip(down, "tail-dropped", lost),
                Slip(MICRO_BATCHES, "step-every-micro-batch", "That many backwards; N of them make one update."),
                *(Slip(broken, "not-rounded", unrounded) for broken in unrounded_passes),
            ],
        ),
        Question(
            "updates", updates, "Take the updates of one pass, and remember that each pass begins a new window.",
            [
                Slip(PASSES * down, "tail-dropped-each-pass", lost),
                Slip(math.ceil(in_micro_batches / STEPS), "windows-across-passes", "That rounds once, at the end of "
                     "the run, as if a window went on into the next pass. Each pass ends with an update of its own."),
                Slip(in_micro_batches / STEPS, "not-rounded", unrounded),
                Slip(in_micro_batches, "n-forgotten", "Those are the micro-batches of the run; N of them make an "
                     "update."),
                Slip(a_pass, "one-pass-only", f"That is one pass; the run has {PASSES}."),
            ],
        ),
        Question(
            "warm_up", a_pass, "How many steps does the scheduler take in the first pass?",
            [
                Slip(MICRO_BATCHES, "horizon-in-micro-batches", micro),
                Slip(1, "horizon-in-passes", passes),
                Slip(down, "one-short", "total_iters counts steps of the scheduler, and the first pass has one for "
                     "each of its updates.") if given.get("updates_a_pass") == a_pass else
                Slip(down, "warm-up-rounded-down", "Rounded down, the rate is full one update before the second pass "
                     "begins."),
                *(Slip(broken, "not-rounded", unrounded) for broken in unrounded_passes),
            ],
        ),
        Question(
            "fall", fall, "How many steps of the scheduler are left after the warm-up?",
            [
                *_follows(given, a_pass, updates),
                Slip(in_micro_batches - MICRO_BATCHES, "fall-in-micro-batches", micro),
                Slip(in_micro_batches, "fall-in-micro-batches", micro),
                Slip(updates, "warm-up-not-counted", "That is the whole run, and the fall begins when the warm-up is "
                     "over: the run ends before the rate is at zero."),
                Slip((PASSES - 1) * down, "fall-rounded-down", f"Those are two passes of {down} updates. {lost}"),
                Slip(PASSES - 1, "fall-in-passes", passes),
                *(Slip((PASSES - 1) * broken, "not-rounded", unrounded) for broken in unrounded_passes),
            ],
        ),
        Question(
            "counted_in_micro_batches", _end(rates(MICRO_BATCHES, in_micro_batches - MICRO_BATCHES)),
            "The run makes far fewer steps than were planned. How far does it come in the plan?",
            [
                Slip("reaches zero", "as-planned", "It would, if the scheduler were stepped at every micro-batch. It "
                     "is stepped at every update, and there are fewer of these than the warm-up alone has steps."),
                Slip("still falling", "halfway-down", "The rise comes first. Is the run longer than the planned rise?"),
            ],
            choices=ENDS,
        ),
        Question(
            "rounded_down", _end(rates(down, (PASSES - 1) * down)),
            "The run makes more steps than were planned. Where does a cosine go after its lowest point?",
            [
                Slip("reaches zero", "stays-at-zero", "It does reach zero, and then there are still updates to come. "
                     "A cosine does not stop at its lowest point."),
            ],
            choices=ENDS,
        ),
    ]  # fmt: skip


def _follows(given: Mapping[str, float], a_pass: int, updates: int) -> list[Slip]:
    """Return the values of ``fall`` that follow from a learner's other values, or from the warm-up that was given."""
    warm_up, counted = given.get("warm_up", a_pass), given.get("updates", updates)
    slips = []
    if warm_up != a_pass and 0 < warm_up < updates:
        slips.append(Slip(updates - warm_up, "goes-with-warm-up", f"With your warm_up of {shown(warm_up)} that makes "
                          "up the run, as it should. Mend warm_up, and this goes with it."))  # fmt: skip
    if counted != updates:
        slips.append(Slip(counted - warm_up, "goes-with-updates", f"That is your {shown(counted)} updates less your "
                          f"warm_up of {shown(warm_up)}, as it should be. Mend what is wrong above, and this goes with "
                          "it."))  # fmt: skip
    slips.append(Slip(updates - warm_up - 1, "zero-too-early", "Then the last update has a rate of 0, and changes "
                      "nothing. The rate is to be 0 after it."))  # fmt: skip
    return slips


def _with(**values: str) -> str:
    """Return an answer with some values that are wrong."""
    return solved(ANSWER) + "".join(f"answer.update({name}={value})\n" for name, value in values.items())


WRONG_ANSWERS = (
    WrongAnswer("tail-dropped", _with(updates_a_pass="21 // 4")),
    WrongAnswer("not-rounded", _with(updates_a_pass="21 / 4")),
    WrongAnswer("windows-across-passes", _with(updates="16")),
    WrongAnswer("n-forgotten", _with(updates="3 * 21")),
    # a trainer's warm-up of 16,000 steps that became 1,000
    WrongAnswer("horizon-in-micro-batches", _with(warm_up="21", fall="42")),
    WrongAnswer("horizon-in-passes", _with(warm_up="1", fall="2")),
    WrongAnswer("warm-up-not-counted", _with(fall="18")),
    WrongAnswer("zero-too-early", _with(fall="11")),
    WrongAnswer("as-planned", _with(counted_in_micro_batches="'reaches zero'")),
    WrongAnswer("stays-at-zero", _with(rounded_down="'reaches zero'")),
)

PROBLEM = Problem(
    id="03b",
    title="Plan the schedule in updates",
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
