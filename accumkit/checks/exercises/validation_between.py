"""Exercise 03e: validate when it is due, and not before the window is over."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accumkit import tasks
from accumkit.audit.findings import listed, several
from accumkit.checks.audited import CALLS, Setting, audited, in_micro_batches
from accumkit.checks.check_loop import SIZES
from accumkit.checks.outcome import NOT_YET, RIGHT, Outcome, of_verdict
from accumkit.checks.problem import Problem, WrongAnswer, but
from accumkit.checks.values import shown
from accumkit.errors import AccumkitError
from accumkit.objective import classification
from accumkit.trace.record import Trace
from accumkit.trace.where import where

STEPS, EVERY = 4, 6
MICRO_BATCHES = 2 * len(SIZES)  # five full windows, and one of two
ENDS = [*range(STEPS, MICRO_BATCHES, STEPS), MICRO_BATCHES]  # micro-batches after which an update is made
DUE = [*range(EVERY, MICRO_BATCHES + 1, EVERY)]
SECONDS = 5  # both calls together take a fifth of one
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
    "Validation is due after micro-batches 6, 12, 18, and a window ends after 4, 8, 12, 16, 20 and 22. Write under "
    "each due one the end where it can be done without harm. What has the loop to remember in between?",
    "Remember that it is due, in a name of its own, and look at that only where a window ends, after the step. There "
    "it is validated, and the next one has a later due. `validate` leaves the model in evaluation mode: who brings it "
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
    steps: int = 0  # of the optimizer so far
    after: list[int] = field(default_factory=list)  # steps made when it was called
    lines: list[str | None] = field(default_factory=list)

    def __call__(self, model: nn.Module) -> float:
        """Return the mean loss on held-out examples."""
        self.after.append(self.steps)
        self.lines.append(where(sys._getframe(1)))
        model.eval()
        model.zero_grad()
        with torch.no_grad():
            return float(F.cross_entropy(model(self.images), self.labels))

    def stepped(self, *args: object) -> None:
        """Count a step of the optimizer."""
        self.steps += 1


def _judge(train: Callable) -> Outcome:
    if not callable(train):
        raise AccumkitError(f"the answer is a function train({', '.join(ARGUMENTS)}); given: {shown(train)}")
    sizes = [SIZES[i % len(SIZES)] for i in range(MICRO_BATCHES)]
    data = tasks.digits(sum(sizes) + 20, torch.float64)
    validate = Validation(*data[sum(sizes) :])
    model = tasks.mlp(dtype=torch.float64, hidden=16)
    model.insert(3, nn.Dropout(0.25))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer.register_step_post_hook(validate.stepped)
    loader = in_micro_batches(data, sizes)
    arguments = dict(zip(ARGUMENTS, (model, loader, validate, optimizer, STEPS, EVERY), strict=True))
    setting = Setting(model, classification(), loader, arguments, STEPS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # dropout's masks, and so what is measured, are the same each time
        verdict = audited(train, setting, SECONDS)
    if not verdict.ok:
        return of_verdict(verdict, PRAISE, lambda finding: ADVICE.get(finding.pitfall, finding.fix))
    said = _places(validate, verdict.trace) or _mode(validate, verdict.trace)
    if said:
        return Outcome(NOT_YET, "there is one thing to mend.", (said,), trace=verdict.trace)
    return Outcome(RIGHT, PRAISE, trace=verdict.trace)


def _places(validate: Validation, trace: Trace) -> tuple[str, ...] | None:
    """Return what to say of validations that came elsewhere than they should."""
    updates = len(ENDS)
    first = _first(lambda end, last: any(last < due <= end for due in DUE))
    expected = first + [updates + n for n in first]
    if validate.after == expected:
        return None
    each = [[n - call * updates for n in validate.after if 0 < n - call * updates <= updates] for call in range(CALLS)]
    due = f"It was due after {_micro_batches(DUE)}, so at the window ends {listed([str(ENDS[n - 1]) for n in first])}"
    at = f", at {line}" if (line := next(iter(validate.lines), None)) else f", at {trace.updates[0].location}"
    change = f"To change{at}: at every window end, ask whether it has become due since the window end before."
    if not validate.after:
        return "No validation (not-validated)", f"Measured: `validate` was never called. {due}.", change
    if each[0] != each[1] or len(each[0]) + len(each[1]) < len(validate.after):
        found = f"{several(len(validate.after), 'call')} of `validate`, where {len(expected)} were due"
        return "Validations that were not due (validated-elsewhere)", f"Measured: {found}. {due}.", change
    came = f"Measured: it was validated after {_micro_batches(ENDS[n - 1] for n in each[0])}. {due}."
    for fault, places, why in (
        ("validated-every-window", _first(lambda end, last: True), "Every window end has one, due or not."),
        ("only-where-both-meet", _first(lambda end, last: end in DUE), "Only where a window happens to end at the very "
         "micro-batch is it made; the others are left out."),
        ("counted-in-updates", [*range(EVERY, updates + 1, EVERY)], "`validate_every` counts micro-batches, and the "
         "loop counts updates."),
    ):  # fmt: skip
        if each[0] == places:
            return f"Validations come at the wrong places ({fault})", came, why, change
    return "Validations come at the wrong places (validated-elsewhere)", came, change


def _first(due: Callable[[int, int], bool]) -> list[int]:  # updates of which due(their end, the end before) holds
    return [n for n, (last, end) in enumerate(zip([0, *ENDS], ENDS, strict=False), 1) if due(end, last)]


def _micro_batches(numbers: Iterable[int]) -> str:
    said = list(map(str, numbers))
    return f"micro-batch{'es' * (len(said) > 1)} {listed(said)}"


def _mode(validate: Validation, trace: Trace) -> tuple[str, ...] | None:
    """Return what to say of training without dropout."""
    ran = len(trace.micro_batches)
    quiet = ran - sum(update.drew for update in trace.updates)
    if not quiet:
        return None
    return (
        "Trained in evaluation mode (train-mode-forgotten)",
        f"Measured: in {quiet} of {several(ran, 'micro-batch')} dropout was off: the model was still in evaluation "
        "mode, as `validate` leaves it. Batch normalisation would have used its running statistics, too.",
        f"To change, at {validate.lines[-1]}: put the model back into training mode before its next micro-batch.",
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
    WrongAnswer("validated-elsewhere", but(FLAG, _DONE, "")),  # due for ever after
    WrongAnswer("not-validated", but(FLAG, _IF_DUE, "")),
    WrongAnswer("tail-leaked", but(FLAG, " or i == len(loader)", "")),
)

PROBLEM = Problem(
    id="03e",
    title="Validate between windows",
    kind="write",
    minutes=20,
    difficulty="hard",
    asks="train",
    answer=ANSWER,
    hints=HINTS,
    judge=_judge,
    wrong_answers=WRONG_ANSWERS,
    imports=IMPORTS,
)

check, hint, solution = PROBLEM.check, PROBLEM.hint, PROBLEM.solution
