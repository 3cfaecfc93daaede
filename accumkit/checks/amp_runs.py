"""What exercise 05a runs a learner's loop on besides the watched passes: other numbers, and an overflow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from accumkit import tasks
from accumkit.checks.audited import Setting, in_micro_batches
from accumkit.checks.autocast_seen import forwards_of, not_under
from accumkit.checks.returned import returned
from accumkit.errors import AccumkitError
from accumkit.objective import classification

ACCUMULATION_STEPS, MICRO_BATCHES, SIZE = 4, 12, 4
SCALE, MAX_NORM, LEARNING_RATE = 65536.0, 0.25, 0.1
OTHER_STEPS, OTHER_NORM = 3, 0.5  # of a pass of its own: no number may stand in the loop itself
SPOILED, TOO_LARGE = 5, 1e306  # the micro-batch that overflows, and what its pixels are multiplied by, in float64
NEAR = 1e-4


def setting(spoiled: int | None = None, steps: int = ACCUMULATION_STEPS, max_norm: float = MAX_NORM) -> Setting:
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
        "accumulation_steps": steps,
        "max_norm": max_norm,
    }
    return Setting(model, classification(), loader, arguments, steps)


def elsewhere(run: Setting) -> tuple[str, ...] | None:
    """Say it where the parameters do not end, after two passes, where they should."""
    if as_right(run, calls=2):
        return None
    return (
        "Other updates (other-update)",
        "The gradients are right, and the parameters end elsewhere than in the right loop. Is the norm of all "
        "parameters clipped, all at once, and nothing else done to `.grad`?",
    )


def with_other_numbers(train: Callable, seconds: float) -> tuple[str, ...] | None:
    """Run a pass with another N and another limit, see what autocast was on, and say what is wrong."""
    run = setting(steps=OTHER_STEPS, max_norm=OTHER_NORM)
    said = f"In a pass with `accumulation_steps={OTHER_STEPS}` and `max_norm={OTHER_NORM:g}`"
    head = "Other numbers are not heeded (other-numbers)"
    try:
        with forwards_of(run.model) as seen:
            returned(train, run.arguments, seconds)
    except AccumkitError as failed:
        return not_under(torch.float16, seen) or (head, f"{said}, {str(failed).split('; it cannot')[0]}.")
    if (item := not_under(torch.float16, seen)) is not None or as_right(run):
        return item
    return head, f"{said} the updates were others than asked for. Use the names of the arguments, and no number."


def backward_under_autocast(train: Callable, seconds: float) -> bool:
    """Return whether a right loop calls backward where autocast is on, which changes nothing in this setting."""
    run = setting()
    with forwards_of(run.model) as seen, contextlib.suppress(AccumkitError):
        returned(train, run.arguments, seconds)
    return seen.backward_under_it


def overflowed(train: Callable, seconds: float) -> tuple[str, ...] | None:
    """Run a pass in which one micro-batch overflows, and say what is wrong with it."""
    run = setting(SPOILED)
    head = "An overflow is not survived (overflow)"
    try:
        returned(train, run.arguments, seconds)
    except AccumkitError as failed:
        return head, f"In a pass in which one micro-batch overflowed, {str(failed).split('; it cannot')[0]}."
    if not all(p.isfinite().all() for p in run.model.parameters()):
        return head, "One micro-batch overflowed, and parameters are not finite now: let `scaler.step` decide to step."
    scale = run.arguments["scaler"].get_scale()
    other = (
        "The scaler that was given did not learn (other-scaler)",
        f"One micro-batch overflowed, and the scale of `scaler` should be halved, to {SCALE / 2:,.0f}; it is "
        f"{scale:,.0f}. Use this scaler, make none of your own, and let `update()` choose the scale.",
    )
    if scale == SCALE:
        return other
    if not as_right(run, SPOILED):
        return head, (
            "One micro-batch overflowed. Then the windows before and after it should be stepped, and its own skipped, "
            "with its gradients cleared all the same; the parameters say otherwise."
        )
    return None if scale == SCALE / 2 else other


def as_right(run: Setting, spoiled: int | None = None, calls: int = 1) -> bool:
    """Return whether a model went where the right loop goes; a clip by hand may differ by the millionth of torch's."""
    numbers = run.arguments["accumulation_steps"], run.arguments["max_norm"]
    right, fresh = setting(spoiled, *numbers), setting().model
    for _ in range(calls):
        train(**right.arguments)
    first, second, start = (torch.cat([p.detach().flatten() for p in m.parameters()])
                            for m in (run.model, right.model, fresh))  # fmt: skip
    return bool((first - second).norm() <= NEAR * (second - start).norm())


def train(model, loader, optimizer, scaler, accumulation_steps, max_norm):
    """Go through the loader once: the right loop, which others are held against."""
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
