"""Exercise 03a: mend a loop whose boundary is wrong in three ways at once."""

from __future__ import annotations

import inspect
import math
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
from torch.optim.lr_scheduler import LinearLR

from accumkit import tasks
from accumkit.audit import Finding, Verdict
from accumkit.checks.another_n import also, fixed_steps
from accumkit.checks.audited import CALLS, Setting, audited, in_micro_batches
from accumkit.checks.check_loop import unequal
from accumkit.checks.outcome import NOT_YET, RIGHT, Outcome, of_verdict
from accumkit.checks.problem import Problem, WrongAnswer, but
from accumkit.checks.schedule_words import empty, faster, schedule
from accumkit.checks.stubs import BEGIN, END, INSTEAD
from accumkit.checks.values import shown
from accumkit.checks.window_ends import where_windows_end
from accumkit.errors import AccumkitError
from accumkit.objective import classification

ACCUMULATION_STEPS, OTHER_STEPS = 4, 3
SECONDS = 5  # both calls together take a tenth of one
ARGUMENTS = ("model", "loader", "optimizer", "scheduler", "accumulation_steps")
SHORT, EVEN = unequal(ACCUMULATION_STEPS), unequal(ACCUMULATION_STEPS)[: 2 * ACCUMULATION_STEPS]

PRAISE = (
    "a window ends when it is full, and when the data end. Every update has its own examples and no others, and the "
    "schedule is run through as it was planned, one step an update: measured with a short last window and without one, "
    "and with another N."
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
ANSWER = f"{BEGIN}\n{MENDED}\n\n{INSTEAD}\n{textwrap.indent(GIVEN, '# ')}{END}\n"

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
MISSED = (
    "a window also ends where the data do, full or not; you do ask for that, with `len(loader)`, and it is not so at "
    "the last micro-batch: counted from 0, `i` ends at `len(loader) - 1`; counted from 1, at `len(loader)`"
)
WINDOWS = {
    "first-window-short": "the condition holds one micro-batch too early: say it aloud for the first window, with the "
    "number that `i` has at its last micro-batch",
    "first-window-long": "the condition holds one micro-batch too late: say it aloud for the first window, with the "
    "number that `i` has at its last micro-batch",
}


def _judge(train: Callable) -> Outcome:
    if not callable(train):
        raise AccumkitError(f"the answer is a function train({', '.join(ARGUMENTS)}); given: {shown(train)}")
    outcome = _checked(train, SHORT)
    if outcome.status != RIGHT:
        return outcome
    for sizes, steps, all_right in (
        (EVEN, ACCUMULATION_STEPS, "with a short last window all is right, but not where the data end with a full one "
         f"({len(EVEN)} micro-batches)."),
        (unequal(OTHER_STEPS), OTHER_STEPS, f"with accumulation_steps={ACCUMULATION_STEPS} all is right, but not with "
         f"{OTHER_STEPS}."),
    ):  # fmt: skip
        other = _checked(train, sizes, steps)
        if other.status != RIGHT:
            return also(all_right, other)
    return outcome


def _checked(train: Callable, sizes: list[int], steps: int = ACCUMULATION_STEPS) -> Outcome:
    """Return what is to be said of two passes over micro-batches of these sizes."""
    model = tasks.mlp(dtype=torch.float64, hidden=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = in_micro_batches(tasks.digits(sum(sizes), torch.float64), sizes)
    windows = math.ceil(len(sizes) / steps)
    scheduler = LinearLR(optimizer, 1.0, 0.0, total_iters=CALLS * windows)  # planned in updates
    arguments = dict(zip(ARGUMENTS, (model, loader, optimizer, scheduler, steps), strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's word on a scheduler that comes first: the check has its own
        verdict = audited(train, Setting(model, classification(), loader, arguments, steps), SECONDS)
    if not verdict.ok:
        return _wrong(verdict, train, len(sizes), steps)
    said = empty(verdict.trace, CALLS * windows) or schedule(verdict.trace, scheduler.last_epoch)
    if said:
        return Outcome(NOT_YET, "there is one thing to mend.", (said,), trace=verdict.trace)
    return Outcome(RIGHT, PRAISE, trace=verdict.trace)


def _wrong(verdict: Verdict, train: Callable, size: int, steps: int) -> Outcome:
    """Return what is to be said of a loop whose updates are not right, or that did not run through."""
    trace = verdict.trace
    if (fixed := fixed_steps(trace, size, steps, ACCUMULATION_STEPS)) is not None:
        return fixed
    if trace and not verdict.findings and size % steps == 0:
        said = _broken(verdict, size) or empty(trace, CALLS * size // steps)
        if said:
            return Outcome(NOT_YET, "there is one thing to mend.", (said,), trace=trace)
    words = replace(verdict, findings=tuple(map(faster, verdict.findings)))
    asks = "len(loader)" in "".join(_source(train).split())

    def advise(finding: Finding) -> str:
        if asks and finding.pitfall in ("tail-dropped", "tail-leaked"):
            return MISSED
        return ADVICE.get(finding.pitfall, finding.fix)

    return where_windows_end(words, train, WINDOWS) or of_verdict(words, PRAISE, advise)


def _broken(verdict: Verdict, size: int) -> tuple[str, ...] | None:
    """Return what to say of a loop that broke down after a pass whose last window was full."""
    raised = [reason for reason in verdict.reasons if reason.startswith("The function raised")]
    if not raised or len(verdict.trace.micro_batches) != size:
        return None
    change = (
        "To change: when the last window was full, nothing is left after it, no gradient to divide and no example. "
        "Divide and step at the end of the data only if something is left."
    )
    return "A step without a window (empty-update)", raised[0], change


def _source(train: Callable) -> str:
    try:
        return inspect.getsource(train)
    except Exception:  # there is none to be had, or an object of a reader's own raises
        return ""


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
    WrongAnswer("fixed-accumulation-steps", but(MENDED, "i % accumulation_steps", "i % 4")),
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
