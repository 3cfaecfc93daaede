"""What exercise 05a says of a loop with a scaler: the audit's findings and torch's refusals in its own words."""

from __future__ import annotations

from dataclasses import dataclass, replace

from accumkit.audit import Finding
from accumkit.trace.record import Trace, Update

# Each text says where one call belongs, beside one other: the order of all of them is what the exercise asks for.
WINDOWS = "count from 1, `enumerate(loader, 1)`, and end a window at `i % accumulation_steps == 0`"
ADVICE = {
    "clip-before-unscale": "call `scaler.unscale_(optimizer)` first, after the last backward of the window, then clip",
    "clip-every-micro-batch": "clip once a window and not after each backward: at its end, where `.grad` is complete",
    "scale-changed-in-window": "keep one scale for the whole window: what changes the scale, or takes it out, belongs "
    "to the window's end and not to a micro-batch",
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
        "gradients are unscaled once they are complete, at the end of the window: a later micro-batch would add scaled "
        "ones to unscaled ones",
    ),
    Refusal(
        "unscale_() is being called after step()",
        "unscale-after-step",
        "Unscaled after the step",
        "the step has used the gradients already, so the scale must be out of them before it",
    ),
    Refusal(
        "No inf checks were recorded prior to update",
        "update-every-micro-batch",
        "An update of the scaler without a step",
        "`scaler.update()` tells the scaler what its step saw, and without a new step there is nothing to tell. So it "
        "belongs to the end of a window, once",
    ),
    Refusal(
        "No inf checks were recorded for this optimizer",
        "nothing-to-unscale",
        "The scaler found no gradient",
        "`unscale_` and `step` look at `.grad`, so they come after the last backward and before `zero_grad`",
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


UPDATED_FIRST = Refusal(
    "",
    "update-before-step",
    "The scaler is updated before the step",
    "let `scaler.update()` follow `scaler.step(optimizer)`: it closes the window, and a step after it belongs to the "
    "next one for the scaler",
)


def refusal_of(said: str, trace: Trace | None) -> Refusal | None:
    """Return what a text that quotes torch is about, and the events before it."""
    found = next((refusal for refusal in REFUSALS if refusal.words in said), None)
    if found is None or trace is None:
        return found
    kinds = [event.kind for event in trace.events]
    steps = [i for i, kind in enumerate(kinds) if kind in ("step", "skipped step")]
    since = kinds[steps[-1] + 1 :] if steps else kinds  # what came after the last step
    whole = since.count("backward") == trace.accumulation_steps
    if found.fault == "update-every-micro-batch" and whole:  # at a window's end, and not stepped yet
        return replace(UPDATED_FIRST, words=found.words)
    if found.fault == "unscale-after-step" and "backward" in since:
        # torch says the same when the step was that of an earlier window, and no update came between
        found = replace(REFUSALS[0], words=found.words)
    if found.fault == "missing-scaler-update":
        before = kinds[: steps[-1]] if steps else []
        window = before[len(before) - before[::-1].index("backward") :] if "backward" in before else before
        if "scaler update" in window:
            return replace(UPDATED_FIRST, words=found.words)
    return found


def own(trace: Trace, max_norm: float) -> tuple[str, ...] | None:
    """Return heading and sentences on the steps of a loop whose gradients are right; None where nothing is wrong."""
    updates = trace.updates
    at = f", at {updates[0].location}" if updates[0].location else ""
    if all(micro.scale is None for micro in trace.micro_batches):
        return (
            "The scaler is not used (loss-not-scaled)",
            "No loss was scaled, so small gradients vanish in float16. To change: call backward on what "
            "`scaler.scale` returns, and let the scaler make the step.",
        )
    if any(update.scaler is None for update in updates):
        return (
            "The scaler is not asked (step-past-the-scaler)",
            f"`optimizer.step()` steps also where a gradient is infinite, and spoils the parameters for good. To "
            f"change{at}: `scaler.step(optimizer)`, which skips such a step.",
        )
    if any(_unclipped(update, max_norm) for update in updates):
        if trace.count_of("clip"):
            said = f"A clip that comes after the step clips nothing: the step is made{at}. Clip before it."
            return "Clipped after the step (clip-after-step)", said
        said = f"No gradient was clipped before its step{at}. Clip to `max_norm`, once a window."
        return "Nothing is clipped (not-clipped)", said
    limits = {update.max_norm for update in updates if update.max_norm is not None}
    if limits - {max_norm}:
        said = f"Clipped to {', '.join(f'{limit:g}' for limit in limits)}; given was `max_norm`, {max_norm:g}{at}."
        return "Another limit (other-limit)", said
    return None


def _unclipped(update: Update, max_norm: float) -> bool:
    return update.clip_factor is None and update.grad_norm is not None and update.grad_norm > max_norm
