"""Exercise 03e: validate when it is due, and not before the window is over."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accumkit import tasks
from accumkit.audit.findings import several
from accumkit.checks.another_n import also, fixed_steps
from accumkit.checks.audited import Setting, audited, in_micro_batches
from accumkit.checks.check_loop import SIZES
from accumkit.checks.outcome import NOT_YET, RIGHT, Outcome, of_verdict
from accumkit.checks.problem import Problem, WrongAnswer, but
from accumkit.checks.validated import Calls, Plan, places
from accumkit.checks.values import shown
from accumkit.checks.window_ends import where_windows_end
from accumkit.errors import AccumkitError
from accumkit.objective import classification
from accumkit.trace.record import Trace
from accumkit.trace.where import where

# A plan, and another one so that no number of the first can stand for a name: their last windows are short.
PLAN, OTHER = Plan(micro_batches=26, steps=4, every=6), Plan(micro_batches=20, steps=3, every=7)
SECONDS = 5  # the calls of a plan together take a fifth of one
ARGUMENTS = ("model", "loader", "validate", "optimizer", "accumulation_steps", "validate_every")

ANSWER = """\
def train(model, loader, validate, optimizer, accumulation_steps, validate_every):
    # Go through the loader once; validate at the first window end at or after it is due.
    ### BEGIN SOLUTION
    due, done = validate_every, 0
    for window in ak.windows(loader, accumulation_steps, objective):
        for batch in window:
            (objective.total(model, batch) / window.count).backward()
        optimizer.step()
        optimizer.zero_grad()
        done += len(window)
        if done >= due:
            due += validate_every
            validate(model)
            model.train()
    ### END SOLUTION
"""

IMPORTS = """\
import torch
import torch.nn.functional as F

import accumkit as ak

objective = ak.classification()
"""

HINTS = (
    "Validation is due after micro-batches 6, 12, 18, and a window ends after 4, 8, 12, 16, 20 and 24. Write under "
    "each due one the end where it can be done without harm. What has the loop to remember in between?",
    "Remember that it is due, in a name of its own, and look at that only where a window ends, after the step. There "
    "validate, and note when the next validation is due. `validate` leaves the model in evaluation mode: who brings it "
    "back?",
    "The frame is this; three lines are missing, and each stands in its place.\n\n"
    """
    due, done = validate_every, 0
    for window in ak.windows(loader, accumulation_steps, objective):
        for batch in window:
            (objective.total(model, batch) / window.count).backward()
        optimizer.step()
        optimizer.zero_grad()
        done += len(window)
        if done >= due:
            ...                           # the next one is due later
            ...                           # validate
            ...                           # and go on training
    """,
)

PRAISE = (
    "due in the middle of a window, done at its end: every update has its whole window, every validation comes between "
    "two of them, and the model trains on as it did before. A checkpoint or an early stop finds its place the same way."
)

ADVICE = {
    "validation-erases": "validate only where a window has ended and its step is made; until then, remember that it "
    "is due",
    "tail-dropped": "a window also ends where the data do: make an update of what is left",
    "tail-leaked": "a window also ends where the data do: make an update of what is left",
    "zero-every-micro-batch": "clear the gradients once a window, right after the step",
    "stale-gradients": "clear the gradients once a window, right after the step, validated or not",
}


@dataclass
class Validation:
    """Somebody else's validation: it clears the gradients to begin clean, and leaves the model in evaluation mode."""

    images: Tensor
    labels: Tensor
    calls: Calls

    def __call__(self, model: nn.Module) -> float:
        """Return the mean loss on held-out examples."""
        self.calls.note(where(sys._getframe(1)))
        model.eval()
        model.zero_grad()
        with torch.no_grad():
            return float(F.cross_entropy(model(self.images), self.labels))


def _judge(train: Callable) -> Outcome:
    if not callable(train):
        raise AccumkitError(f"the answer is a function train({', '.join(ARGUMENTS)}); given: {shown(train)}")
    outcome = _checked(train, PLAN)
    if outcome.status != RIGHT:
        return outcome
    other = _checked(train, OTHER)
    if other.status == RIGHT:
        return outcome
    return also(
        f"with accumulation_steps={PLAN.steps} and validate_every={PLAN.every} all is right, but not with "
        f"{OTHER.steps} and {OTHER.every}, on {OTHER.micro_batches} micro-batches.",
        other,
    )


def _checked(train: Callable, plan: Plan) -> Outcome:
    """Return what is to be said of two passes with these numbers."""
    sizes = [SIZES[i % len(SIZES)] for i in range(plan.micro_batches)]
    data = tasks.digits(sum(sizes) + 20, torch.float64)
    model = tasks.mlp(dtype=torch.float64, hidden=16)
    model.insert(3, nn.Dropout(0.25))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    calls = Calls.of(model, optimizer)
    loader = in_micro_batches(data, sizes)
    validate = Validation(*data[sum(sizes) :], calls)
    arguments = dict(zip(ARGUMENTS, (model, loader, validate, optimizer, plan.steps, plan.every), strict=True))
    setting = Setting(model, classification(), loader, arguments, plan.steps)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # dropout's masks, and so what is measured, are the same each time
        verdict = audited(train, setting, SECONDS)
    if not verdict.ok:
        fixed = fixed_steps(verdict.trace, plan.micro_batches, plan.steps, PLAN.steps)
        advised = of_verdict(verdict, PRAISE, lambda finding: ADVICE.get(finding.pitfall, finding.fix))
        return fixed or where_windows_end(verdict, train) or advised
    said = places(calls, plan, verdict.trace.updates[0].location) or _mode(calls, verdict.trace)
    if said:
        return Outcome(NOT_YET, "there is one thing to mend.", (said,), trace=verdict.trace)
    return Outcome(RIGHT, PRAISE, trace=verdict.trace)


def _mode(calls: Calls, trace: Trace) -> tuple[str, ...] | None:
    """Return what to say of training without dropout."""
    ran = len(trace.micro_batches)
    quiet = ran - sum(update.drew for update in trace.updates)
    if not quiet:
        return None
    return (
        "Trained in evaluation mode (train-mode-forgotten)",
        f"Measured: in {quiet} of {several(ran, 'micro-batch')} dropout was off: the model was still in evaluation "
        "mode, as `validate` leaves it. Batch normalisation would have used its running statistics, too.",
        f"To change, at {calls.lines[-1]}: put the model back into training mode before its next micro-batch.",
    )


# The loop of the lesson, with a flag: as right as the other.
FLAG = """\
def train(model, loader, validate, optimizer, accumulation_steps, validate_every):
    count, due = 0, False
    for i, (images, labels) in enumerate(loader, 1):
        F.cross_entropy(model(images), labels, reduction="sum").backward()
        count += len(labels)
        due = due or i % validate_every == 0
        if i % accumulation_steps == 0 or i == len(loader):
            for p in model.parameters():
                p.grad /= count
            optimizer.step()
            optimizer.zero_grad()
            count = 0
            if due:
                validate(model)
                model.train()
                due = False
"""
_CALL = "                validate(model)\n                model.train()\n"
_DONE = "                due = False\n"
_IF_DUE = "            if due:\n" + _CALL + _DONE
_FLAGGED = "        due = due or i % validate_every == 0\n"
_NO_FLAG = but(FLAG, _FLAGGED, "")
_AT_ONCE = "        if i % validate_every == 0:\n            validate(model)\n            model.train()\n"
_EACH = "            validate(model)\n            model.train()\n"
_COUNTED = "            due += 1\n            if due % validate_every == 0:\n" + _CALL

WRONG_ANSWERS = (
    # a trainer's validation in the middle of a window
    WrongAnswer("validation-erases", but(FLAG, _IF_DUE, _AT_ONCE)),
    WrongAnswer("train-mode-forgotten", but(FLAG, "                model.train()\n", "")),
    WrongAnswer("only-where-both-meet", but(but(_NO_FLAG, "if due:", "if i % validate_every == 0:"), _DONE, "")),
    WrongAnswer("validated-every-window", but(_NO_FLAG, _IF_DUE, _EACH)),
    WrongAnswer("counted-in-updates", but(but(_NO_FLAG, _IF_DUE, _COUNTED), "0, False", "0, 0")),
    WrongAnswer("due-for-ever", but(FLAG, _DONE, "")),
    WrongAnswer("validated-once-a-pass", but(_NO_FLAG, _IF_DUE, "") + "    validate(model)\n    model.train()\n"),
    WrongAnswer("counted-from-the-last", but(but(FLAG, _FLAGGED, "        due += 1\n"), "if due:", "if due >= 6:")),
    WrongAnswer("validated-elsewhere", but(but(_NO_FLAG, "if due:", "if i in (8, 12, 20, 24):"), _DONE, "")),
    WrongAnswer("not-validated", but(FLAG, _IF_DUE, "")),
    WrongAnswer("tail-leaked", but(FLAG, " or i == len(loader)", "")),
)

PROBLEM = Problem(
    id="03e",
    title="Validate between windows",
    kind="write",
    minutes=15,
    difficulty="hard",
    asks="train",
    answer=ANSWER,
    hints=HINTS,
    judge=_judge,
    wrong_answers=WRONG_ANSWERS,
    imports=IMPORTS,
)

check, hint, solution = PROBLEM.check, PROBLEM.hint, PROBLEM.solution
