"""Schedules: what should happen once an update and happens once a micro-batch."""

from __future__ import annotations

from accumkit.pitfalls.catalog.lessons import BOUNDARY as LESSON
from accumkit.pitfalls.pitfall import Pitfall
from accumkit.pitfalls.plan import needs_accumulation, needs_schedule

SCHEDULE = (
    Pitfall(
        slug="scheduler-every-micro-batch",
        title="the scheduler steps at every micro-batch",
        family="schedule",
        patches={"scheduled": (("scheduler.step()", "<scheduler.step()"),)},
        symptom="The learning rate falls N times too fast, and is 0 for the rest of the run.",
        why="A schedule planned in updates is run through in micro-batches.",
        fix="Step the scheduler once an update, right after optimizer.step().",
        lesson=LESSON,
        seen_by="events",
        report="huggingface/accelerate#963",
        affects="update",
        hidden=needs_accumulation,
    ),
    Pitfall(
        slug="ema-every-micro-batch",
        title="the average is updated at every micro-batch",
        family="schedule",
        patches={"averaged": (("average.update_parameters(model)", "<average.update_parameters(model)"),)},
        symptom="The average follows the model so closely that it averages little.",
        why="A moving average with a decay chosen for updates takes in the same parameters N times, which is a decay "
        "to the power of N.",
        fix="Update the average once an update, after optimizer.step().",
        lesson=LESSON,
        seen_by="events",
        report="SWivid/F5-TTS#631",
        affects="record",
        hidden=needs_accumulation,
    ),
    Pitfall(
        slug="horizon-in-micro-batches",
        title="the schedule is planned in micro-batches",
        family="schedule",
        patches={
            "scheduled": (
                ("updates = epochs * math.ceil(len(loader) / accumulation_steps)", "updates = epochs * len(loader)"),
            )
        },
        symptom="The learning rate does not come down: the run ends at a fraction of its schedule, or in its warm-up.",
        why="The schedule is stepped once an update, but its length was counted in micro-batches, N times as many.",
        fix="Plan it in updates: passes * ceil(micro-batches / N).",
        lesson=LESSON,
        seen_by="events",
        report="Lightning-AI/pytorch-lightning#1476",
        affects="update",
        hidden=needs_schedule,
    ),
)
