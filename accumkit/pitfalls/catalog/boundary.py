"""Boundaries: where a window ends, and what is cleared, left behind or stepped there."""

from __future__ import annotations

from accumkit.pitfalls.catalog.lessons import BOUNDARY as LESSON
from accumkit.pitfalls.pitfall import Pitfall
from accumkit.pitfalls.plan import (
    needs_accumulation,
    needs_leak,
    needs_middle,
    needs_second_update,
    needs_shift,
    needs_tail,
)

ENDS = "if i % accumulation_steps == 0 or i == len(loader):"
FULL = "if i % accumulation_steps == 0:"

BOUNDARY = (
    Pitfall(
        slug="tail-dropped",
        title="micro-batches that train nothing",
        family="boundary",
        patches={"plain": (("count = 0", "count = 0\noptimizer.zero_grad()"), (ENDS, FULL))},
        symptom="Some data never train the model; with fewer than N micro-batches a pass, nothing does.",
        why="The step comes only at every Nth micro-batch. What is left when the data end is cleared before the next "
        "pass.",
        fix="Step at the end of the data too; or declare that the tail is dropped, if that is meant.",
        lesson=LESSON,
        seen_by="events",
        report="tomhosking/torchseq#8",
        affects="update",
        hidden=needs_tail,
    ),
    Pitfall(
        slug="tail-leaked",
        title="a short last window leaks into the next pass",
        family="boundary",
        patches={"plain": ((ENDS, FULL),)},
        symptom="The first update of every pass but the first is too large, and made partly of old data.",
        why="The step comes only at every Nth micro-batch, and nothing clears what is left when the data end: it is "
        "added to the next pass's first window.",
        fix="Step at the end of the data too, or clear the gradients there.",
        lesson=LESSON,
        seen_by="events",
        report="WalkingMeatAxolotl/AnimaLoraStudio#305",
        affects="gradient",
        hidden=needs_leak,
        epochs=2,
    ),
    Pitfall(
        slug="off-by-one",
        title="the boundary comes at the wrong count",
        family="boundary",
        patches={
            "plain": (
                (
                    "for i, (images, labels) in enumerate(loader, 1):",
                    "for i, (images, labels) in enumerate(loader):",
                ),
                (ENDS, "if i % accumulation_steps == 0 or i + 1 == len(loader):"),
            )
        },
        symptom="There is one update too many, the first of them from a single micro-batch.",
        why="enumerate counts from 0, and 0 % N is 0: the first micro-batch ends a window by itself, and all the "
        "others are shifted.",
        fix="Count from 1, or ask for (i + 1) % N == 0.",
        lesson=LESSON,
        seen_by="events",
        report="rasbt/LLMs-from-scratch#299",
        affects="update",
        hidden=needs_shift,
    ),
    Pitfall(
        slug="step-every-micro-batch",
        title="a step after every micro-batch",
        family="boundary",
        patches={"plain": ((ENDS, "if accumulation_steps or i == len(loader):"),)},
        symptom="N changes nothing: updates are as many and as noisy as without accumulation.",
        why="The condition asks whether N is other than 0, which it always is, instead of whether a window ends.",
        fix="Step only where a window ends: i % N == 0, or the end of the data.",
        lesson=LESSON,
        seen_by="events",
        report="paiml/entrenar#123",
        affects="update",
        hidden=needs_accumulation,
    ),
    Pitfall(
        slug="zero-every-micro-batch",
        title="gradients cleared inside the window",
        family="boundary",
        patches={"plain": (("loss.backward()", "optimizer.zero_grad()\nloss.backward()"),)},
        symptom="Updates are as noisy as those of one micro-batch, and N times too small.",
        why="zero_grad stands where it does in a loop without accumulation, before every backward, so each micro-batch "
        "erases those before it. Only the last of the window counts.",
        fix="Clear the gradients once a window, right after the step.",
        lesson=LESSON,
        seen_by="events",
        report="huggingface/accelerate#1299",
        affects="gradient",
        hidden=needs_accumulation,
    ),
    Pitfall(
        slug="stale-gradients",
        title="gradients of an earlier update are still there",
        family="boundary",
        patches={"collected": (("optimizer.zero_grad()", ""),), "plain": (("optimizer.zero_grad()", ""),)},
        symptom="Updates grow from one to the next, and training overshoots.",
        why="Nothing clears the gradients after a step, so each update is made of all data seen so far.",
        fix="Clear the gradients once a window, right after the step.",
        lesson=LESSON,
        seen_by="events",
        report="pytorch/pytorch#47175",
        affects="gradient",
        hidden=needs_second_update,
    ),
    Pitfall(
        slug="validation-erases",
        title="an evaluation clears a half-done window",
        family="boundary",
        patches={"validating": (("model.eval()", "model.eval()\nmodel.zero_grad()"),)},
        symptom="Updates around an evaluation are too small, and some data never count.",
        why="The evaluation runs in the middle of a window and clears the gradients, to begin clean: what the window "
        "had so far is lost.",
        fix="Evaluate between windows, or leave the gradients alone: an evaluation under no_grad makes none.",
        lesson=LESSON,
        seen_by="events",
        report="Lightning-AI/pytorch-lightning#18713",
        affects="gradient",
        hidden=needs_middle,
    ),
)
