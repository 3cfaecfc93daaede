"""Clipping and mixed precision: what must happen once an update, in this order: unscale, clip, step, update."""

from __future__ import annotations

from accumkit.pitfalls.catalog.lessons import AMP
from accumkit.pitfalls.pitfall import Pitfall
from accumkit.pitfalls.plan import needs_accumulation, needs_middle, needs_second_update, needs_second_window, never

MIXED_PRECISION = (
    Pitfall(
        slug="clip-every-micro-batch",
        title="clipped after every micro-batch",
        family="clipping and AMP",
        patches={
            "clipped": (
                ("loss.backward()", "loss.backward()\nclip_grad_norm_(model.parameters(), 0.1)"),
                ("clip_grad_norm_(model.parameters(), 0.1)", ""),
            )
        },
        symptom="Later micro-batches pull harder than earlier ones, which were clipped again and again.",
        why="Each clip shrinks all that the window has so far. The first micro-batch of N is clipped N times, the last "
        "one once.",
        fix="Clip once an update, after the last backward of the window.",
        lesson=AMP,
        seen_by="events",
        report="huggingface/transformers#1580",
        affects="gradient",
        hidden=needs_accumulation,
    ),
    Pitfall(
        slug="clip-before-unscale",
        title="clipped while the gradients are still scaled",
        family="clipping and AMP",
        patches={"amp": (("scaler.unscale_(optimizer)", ""),)},
        symptom="The loss stands still, though nothing is skipped and nothing is NaN.",
        why="The gradients are still multiplied by the scaler's scale, so all of them are far above the limit. Clipped "
        "to it and then divided by the scale, next to nothing is left.",
        fix="Call scaler.unscale_(optimizer) before clipping, once a window.",
        lesson=AMP,
        seen_by="events",
        report="Lightning-AI/pytorch-lightning#9599",
        affects="update",
        hidden=never,
    ),
    Pitfall(
        slug="scale-changed-in-window",
        title="the scale changes inside a window",
        family="clipping and AMP",
        patches={
            "amp": (
                (
                    "count = 0  # for the next window",
                    "count = 0  # for the next window\n"
                    "<if i % 3 == 0:\n"
                    "<    scaler.update(max(scaler.get_scale() / 2, 64.0))  # nothing may overflow",
                ),
            )
        },
        symptom="Micro-batches before the change weigh more, or less, than those after it.",
        why="Gradients of one window are added up with different scales, and divided by the last one.",
        fix="Keep one scale for the whole window: call scaler.update() once an update, after the step.",
        lesson=AMP,
        seen_by="objective",
        report="pytorch/pytorch#36601",
        affects="gradient",
        hidden=needs_middle,
    ),
    Pitfall(
        slug="missing-scaler-update",
        title="the scaler never learns from its steps",
        family="clipping and AMP",
        patches={
            "overflowing": (
                (
                    "scaler.update()",
                    "scaler = torch.amp.GradScaler(device, init_scale=2.0**30, backoff_factor=2.0**-20)",
                ),
            )
        },
        symptom="Every step is skipped, and nothing is trained.",
        why="scaler.update() lowers the scale after an overflow. Without it torch refuses the next step; with a fresh "
        "scaler instead, each begins with the same scale, overflows again, and skips again.",
        fix="Keep one scaler for the whole run, and call its update() once after each step.",
        lesson=AMP,
        seen_by="events",
        report="Azure/MS-AMP#45",
        affects="update",
        hidden=needs_second_update,
        epochs=2,
    ),
    Pitfall(
        slug="skipped-update",
        title="the schedule moves on although the step was skipped",
        family="clipping and AMP",
        patches={
            "amp-scheduled": (
                ("if scaler.get_scale() >= scale:  # a scaler that skipped the step lowers its scale", ""),
                ("scheduler.step()", "<scheduler.step()"),
            )
        },
        symptom="The schedule ends before the updates do.",
        why="A scaler skips the step of a gradient that is not finite. A scheduler, an average or a counter that moves "
        "on all the same no longer counts updates.",
        fix="Move on only where the step was made: the scale did not fall.",
        lesson=AMP,
        seen_by="events",
        report="Lightning-AI/pytorch-lightning#18828",
        affects="update",
        hidden=needs_second_window,
    ),
)
