"""Exercise 05a: write the loop with a scaler, and put its calls where they belong."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from accumkit import tasks
from accumkit.audit import Verdict
from accumkit.audit.status import SCALED
from accumkit.checks.amp_words import ORDER, advise, own, refusal_of
from accumkit.checks.audited import Setting, audited, in_micro_batches
from accumkit.checks.outcome import NOT_YET, RIGHT, Outcome, of_verdict
from accumkit.checks.problem import Problem, WrongAnswer, but
from accumkit.checks.returned import returned
from accumkit.errors import AccumkitError
from accumkit.objective import classification

ACCUMULATION_STEPS, MICRO_BATCHES, SIZE = 4, 12, 4
SCALE, MAX_NORM, LEARNING_RATE = 65536.0, 0.25, 0.1
SPOILED, TOO_LARGE = 5, 1e306  # the micro-batch that overflows, and what its pixels are multiplied by, in float64
SECONDS, NEAR = 5, 1e-4

PRAISE = (
    "each loss is divided and scaled, and once a window, after its last backward, come unscale, clip, step and update. "
    "In a pass in which a micro-batch overflowed, its step was skipped, and the scale was halved."
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


def _setting(spoiled: int | None = None) -> Setting:
    """Return what a function is run on; in float64, which autocast leaves alone, so that only the order counts."""
    images, labels = tasks.digits(MICRO_BATCHES * SIZE, torch.float64).tensors
    if spoiled is not None:
        images[spoiled * SIZE : (spoiled + 1) * SIZE] *= TOO_LARGE
    model = tasks.mlp(dtype=torch.float64, hidden=16)
    loader = in_micro_batches(TensorDataset(images, labels), [SIZE] * MICRO_BATCHES)
    arguments = {
        "model": model,
        "loader": loader,
        "optimizer": torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        "scaler": torch.amp.GradScaler("cpu", init_scale=SCALE),
        "accumulation_steps": ACCUMULATION_STEPS,
        "max_norm": MAX_NORM,
    }
    return Setting(model, classification(), loader, arguments, ACCUMULATION_STEPS)


def _judge(train: Callable) -> Outcome:
    if not callable(train):
        raise AccumkitError(f"a function train({', '.join(_setting().arguments)}) is needed")
    setting = _setting()
    verdict = audited(train, setting, SECONDS)
    if any(finding.pitfall == "clip-every-micro-batch" for finding in verdict.findings):  # the root of the others
        first = sorted(verdict.findings, key=lambda finding: finding.pitfall != "clip-every-micro-batch")
        verdict = replace(verdict, findings=tuple(first))
    refused = None if verdict.findings else _refused(verdict)
    if refused or not (verdict.ok or _limit_scaled_too(verdict, setting)):
        return refused or of_verdict(verdict, PRAISE, advise, WHY if verdict.status == SCALED else None)
    item = (own(verdict.trace, MAX_NORM) if verdict.ok else None) or _elsewhere(setting) or _overflowed(train)
    if item:
        return Outcome(NOT_YET, "every example weighs what it should, but there is one thing to mend.", (item,))
    return Outcome(RIGHT, PRAISE, trace=verdict.trace)


def _limit_scaled_too(verdict: Verdict, setting: Setting) -> bool:
    """Return whether scaled gradients were clipped to a scaled limit, which is as right as it is rare."""
    only = {finding.pitfall for finding in verdict.findings} == {"clip-before-unscale"}
    return only and _same(setting.model, _right(None, calls=2))


def _refused(verdict: Verdict) -> Outcome | None:
    """Say what it means where PyTorch's scaler refused a call."""
    refusal = refusal_of(verdict.reason, verdict.trace.events if verdict.trace else ())
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


def _elsewhere(setting: Setting) -> tuple[str, ...] | None:
    """Say it where the parameters do not end where they should."""
    if _same(setting.model, _right(None, calls=2)):
        return None
    return (
        "Other updates (other-update)",
        f"The gradients are right, and the parameters end elsewhere than with {ORDER} once a window. Is the norm of "
        "all parameters clipped, all at once, and nothing else done to `.grad`?",
    )


def _overflowed(train: Callable) -> tuple[str, ...] | None:
    """Run a pass in which one micro-batch overflows, and say what is wrong with it."""
    setting = _setting(SPOILED)
    head = "An overflow is not survived (overflow)"
    try:
        returned(train, setting.arguments, SECONDS)
    except AccumkitError as failed:
        return head, f"In a pass in which one micro-batch overflowed, {str(failed).split('; it cannot')[0]}."
    if not all(p.isfinite().all() for p in setting.model.parameters()):
        return head, "One micro-batch overflowed, and parameters are not finite now: let `scaler.step` decide to step."
    if setting.arguments["scaler"].get_scale() == SCALE:
        return (
            "The scaler that was given did not learn (other-scaler)",
            f"One micro-batch overflowed, and the scale of `scaler` should be halved; it is {SCALE:,.0f} as before. "
            "Use this scaler, and make none of your own.",
        )
    if not _same(setting.model, _right(SPOILED)):
        return head, (
            "One micro-batch overflowed. Then the windows before and after it should be stepped, and its own skipped, "
            "with its gradients cleared all the same; the parameters say otherwise."
        )
    return None


def _right(spoiled: int | None, calls: int = 1) -> Any:
    """Return the model after the right loop."""
    setting = _setting(spoiled)
    for _ in range(calls):
        _train(**setting.arguments)
    return setting.model


def _train(model, loader, optimizer, scaler, accumulation_steps, max_norm):
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


def _same(a: Any, b: Any) -> bool:
    """Return whether two models went the same way; a clip by hand may differ by the millionth that torch's adds."""
    first, second, start = (torch.cat([p.detach().flatten() for p in m.parameters()]) for m in (a, b, _setting().model))
    return bool((first - second).norm() <= NEAR * (second - start).norm())


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
