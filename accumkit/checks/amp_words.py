"""What exercise 05a says of a loop with a scaler: the audit's findings and torch's refusals in its own words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from accumkit.audit import Finding
from accumkit.trace.record import Event, Trace, Update

ORDER = "`unscale_`, clip, `step`, `update`"
ONCE = f"call {ORDER} once a window, in this order, after its last backward"

WINDOWS = "count from 1, `enumerate(loader, 1)`, and end a window at `i % accumulation_steps == 0`"
ADVICE = {
    "clip-before-unscale": "call `scaler.unscale_(optimizer)` first, after the last backward of the window, then clip",
    "clip-every-micro-batch": f"clip once a window, not after each backward: {ORDER}, in this order",
    "scale-changed-in-window": f"keep one scale for the whole window, and unscale only at its end: {ONCE}",
    "missing-scaler-update": "use the scaler that is given, in all windows, and call `scaler.update()` once after each "
    "`scaler.step(optimizer)`",
    "missing-division": "divide each mean loss by the micro-batches of the window, `loss / accumulation_steps`, before "
    "`scaler.scale`",
    "double-division": "divide once: each mean loss by `accumulation_steps`",
    "step-every-micro-batch": f"step only where a window ends; {WINDOWS}",
    "zero-every-micro-batch": "clear the gradients once a window, after the update",
    "stale-gradients": "call `optimizer.zero_grad()` once a window, after the update",
    "off-by-one": WINDOWS,
    "tail-dropped": f"the last micro-batches of the pass are a whole window too; {WINDOWS}",
    "tail-leaked": f"the last micro-batches of the pass are a whole window too; {WINDOWS}",
}


def advise(finding: Finding) -> str:
    """Return what to change for a finding, in words that fit the exercise."""
    return ADVICE.get(finding.pitfall, finding.fix)


@dataclass(frozen=True)
class Refusal:
    """What torch's scaler refuses, and why a loop comes to it."""

    words: str  # of torch
    fault: str
    title: str
    change: str


REFUSALS = (
    Refusal(
        "step() has already been called since the last update()",
        "missing-scaler-update",
        "The scaler is not updated",
        "call `scaler.update()` once after each `scaler.step(optimizer)`: there the scaler gets its next scale",
    ),
    Refusal(
        "unscale_() has already been called on this optimizer",
        "unscale-every-micro-batch",
        "Unscaled more than once in a window",
        "gradients are unscaled once they are complete: a later micro-batch would add scaled ones to unscaled ones. So "
        f"{ONCE}",
    ),
    Refusal(
        "unscale_() is being called after step()",
        "unscale-after-step",
        "Unscaled after the step",
        f"the step has used the gradients already; {ONCE}",
    ),
    Refusal(
        "No inf checks were recorded prior to update",
        "update-every-micro-batch",
        "An update of the scaler without a step",
        "`scaler.update()` tells the scaler what its `unscale_` and `step` saw; without them there is nothing to tell. "
        f"So {ONCE}",
    ),
    Refusal(
        "No inf checks were recorded for this optimizer",
        "nothing-to-unscale",
        "The scaler found no gradient",
        "`unscale_` and `step` look at `.grad`, so they come after the last backward and before `zero_grad`; "
        f"{ONCE}, then clear the gradients",
    ),
    Refusal(
        "Attempted unscale_ but _scale is None",
        "loss-not-scaled",
        "The loss was never scaled",
        "call backward on what `scaler.scale` returns: `scaler.scale(loss / accumulation_steps).backward()`",
    ),
    Refusal(
        "Attempted step but _scale is None",
        "loss-not-scaled",
        "The loss was never scaled",
        "call backward on what `scaler.scale` returns: `scaler.scale(loss / accumulation_steps).backward()`",
    ),
    Refusal(
        "Attempting to unscale FP16 gradients",
        "float16-parameters",
        "A model kept in float16",
        "leave the parameters as they are; only the forward is in 16 bits, under `torch.autocast`",
    ),
)


def refusal_of(said: str, events: Sequence[Event]) -> Refusal | None:
    """Return what a text that quotes torch is about, and the events before it."""
    found = next((refusal for refusal in REFUSALS if refusal.words in said), None)
    if found is None or found.fault != "unscale-after-step":
        return found
    since = [event.kind for event in events]
    while "step" in since or "skipped step" in since:  # only what came after the last step
        since = since[1:]
    # torch says the same when the step was that of an earlier window, and no update came between
    return replace(REFUSALS[0], words=found.words) if "backward" in since else found


def own(trace: Trace, max_norm: float) -> tuple[str, ...] | None:
    """Return heading and sentences on the steps of a loop whose gradients are right; None where nothing is wrong."""
    updates = trace.updates
    at = f", at {updates[0].location}" if updates[0].location else ""
    if all(micro.scale is None for micro in trace.micro_batches):
        return (
            "The scaler is not used (loss-not-scaled)",
            "No loss was scaled, so small gradients vanish in float16. To change: "
            f"`scaler.scale(loss / accumulation_steps).backward()`, and at the end of a window {ORDER}.",
        )
    if any(update.scaler is None for update in updates):
        return (
            "The scaler is not asked (step-past-the-scaler)",
            f"`optimizer.step()` steps also where a gradient is infinite, and spoils the parameters for good. To "
            f"change{at}: `scaler.step(optimizer)`, which skips such a step.",
        )
    if any(_unclipped(update, max_norm) for update in updates):
        if trace.count_of("clip"):
            said = f"A clip that comes after the step clips nothing: the step is made{at}. The order is {ORDER}."
            return "Clipped after the step (clip-after-step)", said
        said = f"No gradient was clipped before its step{at}. Clip to `max_norm`, once a window; the order is {ORDER}."
        return "Nothing is clipped (not-clipped)", said
    limits = {update.max_norm for update in updates if update.max_norm is not None}
    if limits - {max_norm}:
        said = f"Clipped to {', '.join(f'{limit:g}' for limit in limits)}; given was `max_norm`, {max_norm:g}{at}."
        return "Another limit (other-limit)", said
    return None


def _unclipped(update: Update, max_norm: float) -> bool:
    return update.clip_factor is None and update.grad_norm is not None and update.grad_norm > max_norm
