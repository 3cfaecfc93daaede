"""Exercise 05a: write the loop with a scaler, and put its calls where they belong."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from accumkit.audit import Verdict
from accumkit.audit.status import SCALED
from accumkit.checks.amp_runs import (
    MAX_NORM,
    as_right,
    backward_under_autocast,
    elsewhere,
    overflowed,
    setting,
    with_other_numbers,
)
from accumkit.checks.amp_words import advise, own, refusal_of
from accumkit.checks.audited import Setting, audited
from accumkit.checks.outcome import NOT_YET, RIGHT, Outcome, of_verdict
from accumkit.checks.problem import Problem, WrongAnswer, but
from accumkit.checks.window_ends import where_windows_end
from accumkit.errors import AccumkitError

SECONDS = 5

PRAISE = (
    "each loss is divided and scaled, and once a window, after its last backward, come unscale, clip, step and update. "
    "In a pass in which a micro-batch overflowed, its step was skipped, and the scale was halved."
)

BACKWARD = (
    "One thing more: your `backward()` runs under `torch.autocast` too. Nothing went wrong here, but PyTorch advises "
    "against it: let the `with` hold the model's forward and the loss alone."
)

WHY = (
    "all examples weigh the same, but too much or too little, by one factor throughout. Each loss should be the mean "
    "of its micro-batch, divided by `accumulation_steps`, and then scaled, each of these once."
)

ANSWER = '''\
def train(model, loader, optimizer, scaler, accumulation_steps, max_norm):
    """Go through the loader once, in float16: one update for each window of micro-batches."""
    ### BEGIN SOLUTION
    for i, (images, labels) in enumerate(loader, 1):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(images), labels)
        scaler.scale(loss / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    ### END SOLUTION
'''

HINTS = (
    "Write the loop without a scaler first: divide each mean loss, call backward, and step where a window ends. Then "
    "ask of each of the scaler's calls whether it belongs to a micro-batch or to an update.",
    "`scaler.scale(loss / accumulation_steps).backward()` belongs to each micro-batch. All else belongs to the end of "
    "the window. A limit for the norm is meant for the true gradient, so when must the scale be taken out?",
    "The frame is this; three lines are missing, and each stands in its place.\n\n"
    """
    for i, (images, labels) in enumerate(loader, 1):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(images), labels)
        scaler.scale(loss / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            ...                          # take the scale out of .grad
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            ...                          # step, unless a gradient is not finite
            ...                          # let the scale adapt
            optimizer.zero_grad()
    """,
)


def _judge(train: Callable) -> Outcome:
    run = setting()
    if not callable(train):
        raise AccumkitError(f"a function train({', '.join(run.arguments)}) is needed")
    verdict = audited(train, run, SECONDS)
    if any(finding.pitfall == "clip-every-micro-batch" for finding in verdict.findings):  # the root of the others
        first = sorted(verdict.findings, key=lambda finding: finding.pitfall != "clip-every-micro-batch")
        verdict = replace(verdict, findings=tuple(first))
    if not (verdict.ok or _limit_scaled_too(verdict, run)):
        return _told(verdict, train)
    item = (own(verdict.trace, MAX_NORM) if verdict.ok else None) or elsewhere(run)
    item = item or with_other_numbers(train, SECONDS) or overflowed(train, SECONDS)
    if item:
        return Outcome(NOT_YET, "every example weighs what it should, but there is one thing to mend.", (item,))
    praise = f"{PRAISE} {BACKWARD}" if backward_under_autocast(train, SECONDS) else PRAISE
    return Outcome(RIGHT, praise, trace=verdict.trace)


def _told(verdict: Verdict, train: Callable) -> Outcome:
    """Say what the audit found, or PyTorch refused."""
    if not verdict.findings and (refused := _refused(verdict)):
        return refused
    ran = bool(verdict.findings) or "cannot be judged" not in verdict.reason
    if ran and (ends := where_windows_end(verdict, train)):
        return ends
    return of_verdict(verdict, PRAISE, advise, WHY if verdict.status == SCALED else None)


def _limit_scaled_too(verdict: Verdict, run: Setting) -> bool:
    """Return whether scaled gradients were clipped to a scaled limit, which is as right as it is rare."""
    only = {finding.pitfall for finding in verdict.findings} == {"clip-before-unscale"}
    return only and as_right(run, calls=2)


def _refused(verdict: Verdict) -> Outcome | None:
    """Say what it means where PyTorch's scaler refused a call."""
    refusal = refusal_of(verdict.reason, verdict.trace)
    if refusal is None:
        return None
    line = re.search(r" at ([^;]+); it cannot be judged", verdict.reason)
    at = f", at {line[1]}" if line else ""
    said = f"PyTorch refused a call{at}: `{refusal.words}`."
    return Outcome(
        NOT_YET,
        "PyTorch stopped the function.",
        ((f"{refusal.title} ({refusal.fault})", said, f"To change: {refusal.change}."),),
    )


_AUTOCAST = '        with torch.autocast("cpu", dtype=torch.float16):\n'
_CLIP = "            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n"
_UNSCALE = "            scaler.unscale_(optimizer)\n"
_STEP = "            scaler.step(optimizer)\n"
_UPDATE = "            scaler.update()\n"
_IF = "        if i % accumulation_steps == 0:\n"
_EACH = {line: line.removeprefix("    ") for line in (_CLIP, _UNSCALE, _UPDATE)}  # outside of the condition

WRONG_ANSWERS = (
    # the order that most reports of flat losses come down to
    WrongAnswer("clip-before-unscale", but(ANSWER, _UNSCALE + _CLIP, _CLIP + _UNSCALE)),
    WrongAnswer("clip-every-micro-batch", but(but(ANSWER, _CLIP, ""), _IF, _EACH[_CLIP] + _IF)),
    # unscaled and updated after each micro-batch, which PyTorch lets pass, and which its documents warn of
    WrongAnswer(
        "scale-changed-in-window",
        but(but(but(ANSWER, _UPDATE, ""), _UNSCALE, ""), _IF, _EACH[_UNSCALE] + _IF) + _EACH[_UPDATE],
    ),
    WrongAnswer("missing-scaler-update", but(ANSWER, _UPDATE, "")),
    WrongAnswer("unscale-every-micro-batch", but(but(ANSWER, _UNSCALE, ""), _IF, _EACH[_UNSCALE] + _IF)),
    WrongAnswer("update-every-micro-batch", but(but(ANSWER, _UPDATE, ""), _IF, _EACH[_UPDATE] + _IF)),
    WrongAnswer("missing-division", but(ANSWER, "loss / accumulation_steps", "loss")),
    WrongAnswer("step-past-the-scaler", but(ANSWER, "scaler.step(optimizer)", "optimizer.step()")),
    WrongAnswer("clip-after-step", but(ANSWER, _CLIP + _STEP, _STEP + _CLIP)),
    # the right calls, the last two in the wrong order
    WrongAnswer("update-before-step", but(ANSWER, _STEP + _UPDATE, _UPDATE + _STEP)),
    WrongAnswer("no-autocast", but(ANSWER, f"{_AUTOCAST}            loss", "        loss")),
    WrongAnswer("other-autocast-dtype", but(ANSWER, ", dtype=torch.float16", "")),
    WrongAnswer("first-window-long", but(but(ANSWER, "loader, 1)", "loader)"), "if i %", "if i > 0 and i %")),
    WrongAnswer("not-clipped", but(ANSWER, _CLIP, "")),
    WrongAnswer("unscale-after-step", but(ANSWER, _UNSCALE + _CLIP + _STEP, _CLIP + _STEP + _UNSCALE)),
    WrongAnswer(
        "loss-not-scaled", but(ANSWER, "scaler.scale(loss / accumulation_steps)", "(loss / accumulation_steps)")
    ),
    WrongAnswer("stale-gradients", but(ANSWER, "            optimizer.zero_grad()\n", "")),
)

PROBLEM = Problem(
    id="05a",
    title="Write the loop with a scaler",
    kind="write",
    minutes=15,
    difficulty="medium",
    asks="train",
    answer=ANSWER,
    hints=HINTS,
    judge=_judge,
    wrong_answers=WRONG_ANSWERS,
    imports="import torch\nimport torch.nn.functional as F\n",
)

check, hint, solution = PROBLEM.check, PROBLEM.hint, PROBLEM.solution
