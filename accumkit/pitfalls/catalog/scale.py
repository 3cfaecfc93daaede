"""Scale: every example of an update weighs the same, but not 1."""

from __future__ import annotations

from accumkit.pitfalls.catalog.lessons import BOUNDARY, WEIGHTS
from accumkit.pitfalls.pitfall import Pitfall
from accumkit.pitfalls.plan import needs_accumulation, needs_nesting, needs_several_steps, needs_tail

SUMMED = 'loss = F.cross_entropy(model(images), labels, reduction="sum")'
# Each micro-batch's mean is taken, and what divided the sums goes.
UNDIVIDED = (("for p in model.parameters():", ""), ("p.grad /= count", ""))

SCALE = (
    Pitfall(
        slug="missing-division",
        title="the division is missing",
        family="scale",
        patches={
            "mean": (
                (
                    "loss = F.cross_entropy(model(images), labels) / k",
                    "loss = F.cross_entropy(model(images), labels)",
                ),
            ),
            "plain": ((SUMMED, "loss = F.cross_entropy(model(images), labels)"), *UNDIVIDED),
        },
        symptom="Training is as nervous as with a learning rate N times as high, and worse with every larger N.",
        why="backward() adds to .grad. Each micro-batch's mean loss is added in full, so a window of k micro-batches "
        "makes a gradient k times as large as that of the big batch.",
        fix="Divide each mean by the number of micro-batches in its window; or sum the losses, count, and divide the "
        "gradients once by the window's count.",
        lesson=WEIGHTS,
        seen_by="objective",
        report="hirofumi0810/neural_sp#168",
        affects="gradient",
        hidden=needs_accumulation,
        implies=("mean-of-means",),  # on micro-batches of unequal size
    ),
    Pitfall(
        slug="double-division",
        title="divided twice",
        family="scale",
        patches={"plain": ((SUMMED, f"{SUMMED} / accumulation_steps"),)},
        symptom="The loss falls N times too slowly, and hardly at all for a large N.",
        why="The gradients are divided by the count of the window at its end. The habit of dividing the loss by N "
        "divides them once more.",
        fix="Divide once: leave out one of the two divisions.",
        lesson=WEIGHTS,
        seen_by="objective",
        report="modelscope/ms-swift#10117",
        affects="gradient",
        hidden=needs_several_steps,
    ),
    Pitfall(
        slug="tail-divisor",
        title="the short last window is divided by the full number",
        family="scale",
        patches={
            "mean": (
                (
                    "loss = F.cross_entropy(model(images), labels) / k",
                    "loss = F.cross_entropy(model(images), labels) / accumulation_steps",
                ),
            ),
            "plain": ((SUMMED, "loss = F.cross_entropy(model(images), labels) / accumulation_steps"), *UNDIVIDED),
        },
        symptom="The last update of every pass is too small; with little data, so is most of the training.",
        why="A pass rarely ends with a full window. The last one has k micro-batches, and dividing by N leaves only "
        "k/N of its gradient.",
        fix="Divide by the number of micro-batches that the window really has, or by its count.",
        lesson=WEIGHTS,
        seen_by="objective",
        report="Lightning-AI/pytorch-lightning#19987",
        affects="gradient",
        hidden=needs_tail,
        implies=("mean-of-means",),  # on micro-batches of unequal size
    ),
    Pitfall(
        slug="nested-accumulation",
        title="a loop that accumulates inside a tool that does so too",
        family="scale",
        patches={
            "tool": (
                ("loss.backward()", "(loss / accumulation_steps).backward()"),
                (
                    "tool.step(len(labels), last=i == len(loader))",
                    "if i % accumulation_steps == 0 or i == len(loader):\n"
                    "    tool.step(len(labels), last=i == len(loader))",
                ),
            )
        },
        symptom="There are N times fewer updates than planned, and short windows hardly count.",
        why="Both divide and both wait: the tool counts the loop's windows as its micro-batches, so an update comes "
        "only after N * N of them.",
        fix="Let one of them accumulate: call the tool after every micro-batch, or give it accumulation steps of 1.",
        lesson=BOUNDARY,
        seen_by="objective",
        report="huggingface/accelerate#3533",
        affects="update",
        hidden=needs_nesting,
        implies=("off-by-one",),  # a pass of N + 1 micro-batches is one window, as with a step that comes one too late
    ),
)
