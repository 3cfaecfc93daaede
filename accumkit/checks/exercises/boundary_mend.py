"""Exercise 03a: mend a loop whose boundary is wrong in three ways at once."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Callable

import torch
from torch.optim.lr_scheduler import LinearLR

from accumkit import tasks
from accumkit.audit.findings import several
from accumkit.checks.audited import CALLS, Setting, audited, in_micro_batches
from accumkit.checks.check_loop import unequal
from accumkit.checks.outcome import NOT_YET, RIGHT, Outcome, of_verdict
from accumkit.checks.problem import Problem, WrongAnswer, but
from accumkit.checks.stubs import BEGIN, END, INSTEAD
from accumkit.checks.values import shown
from accumkit.errors import AccumkitError
from accumkit.objective import classification
from accumkit.trace.record import Trace

ACCUMULATION_STEPS = 4
SECONDS = 5  # both calls together take a tenth of one
ARGUMENTS = ("model", "loader", "optimizer", "scheduler", "accumulation_steps")
SHORT, EVEN = unequal(ACCUMULATION_STEPS), unequal(ACCUMULATION_STEPS)[: 2 * ACCUMULATION_STEPS]

PRAISE = (
    "a window ends when it is full, and when the data end. Every update has its own examples and no others, and the "
    "schedule is run through as it was planned, one step an update: measured with a short last window and without one."
)

MENDED = """\
def train(model, loader, optimizer, scheduler, accumulation_steps):
    count = 0  # examples in the window so far
    for i, (images, labels) in enumerate(loader, 1):
        F.cross_entropy(model(images), labels, reduction="sum").backward()
        count += len(labels)
        if i % accumulation_steps == 0 or i == len(loader):
            for p in model.parameters():
                p.grad /= count
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            count = 0
"""
_LAST = " or i == len(loader)"
_INSIDE = "            scheduler.step()\n"
GIVEN = but(but(but(MENDED, _LAST, ""), _INSIDE, ""), "enumerate(loader, 1)", "enumerate(loader)")
GIVEN += "        scheduler.step()\n"
ANSWER = f"{BEGIN}\n{MENDED}{INSTEAD}\n{textwrap.indent(GIVEN, '# ')}{END}\n"

HINTS = (
    "Three things are wrong, and each sits in one line. Go through a pass of ten micro-batches with N = 4 on paper: "
    "what is `i` at the first micro-batch, what is it at the last, and how often has `scheduler.step()` run by then?",
    "`enumerate(loader)` counts from 0, and 0 % N is 0. A window ends in two cases, and the condition knows one of "
    "them: the other is that the data are over, `len(loader)`. And a schedule planned in updates takes a step where an "
    "update is made.",
    "The frame is this; what comes in place of the dots belongs to every update.\n\n"
    """
    for i, (images, labels) in enumerate(loader, 1):
        F.cross_entropy(model(images), labels, reduction="sum").backward()
        count += len(labels)
        if i % accumulation_steps == 0 or i == len(loader):
            ...                           # divide, step, clear, the schedule, count anew
    """,
)

ADVICE = {
    "off-by-one": "say the condition aloud for the first micro-batch: which number does it have, and what is left of "
    "that number % accumulation_steps",
    "tail-dropped": "a window also ends where the data do, full or not: the condition needs a second case",
    "tail-leaked": "a window also ends where the data do, full or not: the condition needs a second case",
    "scheduler-every-micro-batch": "the schedule was planned in updates: move `scheduler.step()` to where an update "
    "is made",
    "stale-gradients": "after every step the gradients have to go, also after the step that ends the pass",
    "zero-every-micro-batch": "clear the gradients once a window, right after the step",
    "step-every-micro-batch": "step only where a window ends: when it is full, and when the data end",
}


def _judge(train: Callable) -> Outcome:
    if not callable(train):
        raise AccumkitError(f"the answer is a function train({', '.join(ARGUMENTS)}); given: {shown(train)}")
    outcome = _checked(train, SHORT)
    if outcome.status != RIGHT:
        return outcome
    even = _checked(train, EVEN)
    if even.status == RIGHT:
        return outcome
    lead = f"with a short last window all is right. Where the data end with a full one ({len(EVEN)} micro-batches), "
    return Outcome(NOT_YET, lead + even.lead, even.items, trace=even.trace)


def _checked(train: Callable, sizes: list[int]) -> Outcome:
    """Return what is to be said of two passes over micro-batches of these sizes."""
    model = tasks.mlp(dtype=torch.float64, hidden=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = in_micro_batches(tasks.digits(sum(sizes), torch.float64), sizes)
    windows = math.ceil(len(sizes) / ACCUMULATION_STEPS)
    scheduler = LinearLR(optimizer, 1.0, 0.0, total_iters=CALLS * windows)  # planned in updates
    arguments = dict(zip(ARGUMENTS, (model, loader, optimizer, scheduler, ACCUMULATION_STEPS), strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's word on a scheduler that comes first: the check has its own
        verdict = audited(train, Setting(model, classification(), loader, arguments, ACCUMULATION_STEPS), SECONDS)
    if not verdict.ok:
        return of_verdict(verdict, PRAISE, lambda finding: ADVICE.get(finding.pitfall, finding.fix))
    said = _empty(verdict.trace, CALLS * windows) or _schedule(verdict.trace, scheduler.last_epoch)
    if said:
        return Outcome(NOT_YET, "there is one thing to mend.", (said,), trace=verdict.trace)
    return Outcome(RIGHT, PRAISE, trace=verdict.trace)


def _empty(trace: Trace, due: int) -> tuple[str, ...] | None:
    """Return what to say of steps that no micro-batch stands behind."""
    made = trace.count_of("step")
    if made <= due:
        return None
    return (
        "A step without a window (empty-update)",
        f"Measured: {several(made, 'optimizer step')} for {several(due, 'window')}: after a pass whose last window was "
        "full, one more step is made of nothing. SGD stands still at it, Adam and momentum move, and the schedule goes "
        "on.",
        f"To change{_at(trace, 'step')}: at the end of the data, step only if something is left.",
    )


def _schedule(trace: Trace, given: int) -> tuple[str, ...] | None:
    """Return what to say where the given scheduler, which took ``given`` steps, did not take one after each update."""
    before, taken = [], 0
    for event in trace.events:
        taken += event.kind == "scheduler step"
        if event.kind == "step":
            before.append(taken)
    updates = len(before)
    at = _at(trace, "scheduler step" if taken else "step")
    if before == list(range(updates)) and taken == updates:
        if given == taken:
            return None
        told = f"Measured: {given} of {several(taken, 'scheduler step')} are of the scheduler that was given."
        return (
            "Another schedule (not-the-given-scheduler)",
            told,
            f"To change{at}: step the one that is given, no other.",
        )
    found = f"Measured: {several(taken, 'scheduler step')} for {several(updates, 'update')}"
    advice = f"To change{at}: `scheduler.step()` belongs to every update, where the optimizer's step is."
    if taken == 0:
        return "The schedule stands still (scheduler-not-stepped)", f"{found}: the learning rate never falls.", advice
    if taken == CALLS:
        return "A scheduler step a pass (scheduler-every-pass)", f"{found}, one at the end of each pass.", advice
    if taken == updates and before == list(range(1, updates + 1)):
        told = f"{found}, each before the optimizer's: the first update has the second rate of the plan already."
        return (
            "The schedule is a step ahead (scheduler-before-step)",
            told,
            f"To change{at}: first the optimizer's step.",
        )
    if taken < updates:
        told = f"{found}: the update at the end of a pass goes without. The rate is too high from then on."
        return "An update without its scheduler step (scheduler-misses-tail)", told, advice
    return "The schedule is not one step an update (scheduler-miscounted)", f"{found}.", advice


def _at(trace: Trace, kind: str) -> str:
    """Return at which line the last event of a kind came."""
    line = next((event.location for event in reversed(trace.events) if event.kind == kind), None)
    return f", at {line}" if line else ""


_LEFT = """\
    if count:
        for p in model.parameters():
            p.grad /= count
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
"""
_ALWAYS = """\
    for p in model.parameters():
        if p.grad is not None:
            p.grad /= count
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
"""
_STEP = "            optimizer.step()\n"
_FROM_ZERO = but(but(MENDED, "enumerate(loader, 1)", "enumerate(loader)"), "i == len", "i + 1 == len")
_NO_TAIL = but(MENDED, _LAST, "")
AFTER = _NO_TAIL + _LEFT  # right too: the way of those who would not touch the condition

WRONG_ANSWERS = (
    # a loop of a book: a boundary at the first micro-batch
    WrongAnswer("off-by-one", _FROM_ZERO),
    WrongAnswer("tail-leaked", _NO_TAIL),
    WrongAnswer("tail-dropped", but(_NO_TAIL, "    count = 0  #", "    optimizer.zero_grad()\n    count = 0  #")),
    # a trainer's example: the line stands one level too far to the left
    WrongAnswer("scheduler-every-micro-batch", but(MENDED, _INSIDE, "") + "        scheduler.step()\n"),
    WrongAnswer("scheduler-every-pass", but(MENDED, _INSIDE, "") + "    scheduler.step()\n"),
    WrongAnswer("scheduler-misses-tail", _NO_TAIL + but(_LEFT, "        scheduler.step()\n", "")),
    WrongAnswer("scheduler-before-step", but(but(MENDED, _INSIDE, ""), _STEP, _INSIDE + _STEP)),
    WrongAnswer("scheduler-not-stepped", but(MENDED, _INSIDE, "")),
    WrongAnswer("stale-gradients", _NO_TAIL + but(_LEFT, "        optimizer.zero_grad()\n", "")),
    WrongAnswer("empty-update", _NO_TAIL + _ALWAYS),
)

PROBLEM = Problem(
    id="03a",
    title="Mend the boundary",
    kind="mend",
    minutes=12,
    difficulty="medium",
    asks="train",
    answer=ANSWER,
    hints=HINTS,
    judge=_judge,
    wrong_answers=WRONG_ANSWERS,
    imports="import torch\nimport torch.nn.functional as F\n",
)

check, hint, solution = PROBLEM.check, PROBLEM.hint, PROBLEM.solution
