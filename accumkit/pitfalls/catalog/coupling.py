"""Coupling: examples that act on each other, so that a big batch is more than the sum of its micro-batches."""

from __future__ import annotations

from accumkit.pitfalls.catalog.lessons import NORMS
from accumkit.pitfalls.pitfall import Pitfall
from accumkit.pitfalls.plan import needs_accumulation

COUPLING = (
    Pitfall(
        slug="batchnorm-statistics",
        title="BatchNorm sees one micro-batch at a time",
        family="coupling",
        patches={"normalised": (("nn.GroupNorm(2, 8),", "nn.BatchNorm2d(8, momentum=None),"),)},
        symptom="Results depend on the micro-batch size, however large the window.",
        why="BatchNorm normalises with the mean and the variance of the micro-batch at hand. Accumulation adds up "
        "gradients; it cannot join statistics.",
        fix="Use a norm that looks at one example at a time (GroupNorm, LayerNorm), or freeze BatchNorm's statistics.",
        lesson=NORMS,
        seen_by="objective",
        report="giotto-ai/giotto-deep#75",
        affects="gradient",
        hidden=needs_accumulation,
    ),
    Pitfall(
        slug="batchnorm-momentum",
        title="running statistics move at every micro-batch",
        family="coupling",
        patches={"normalised": (("nn.GroupNorm(2, 8),", "nn.BatchNorm2d(8),"),)},
        symptom="The running mean and variance jump about, and evaluations with them.",
        why="Each forward moves the running statistics, so with N micro-batches an update they forget N times as fast "
        "as their momentum was meant to.",
        fix="Set the momentum to 1 - (1 - m) ** (1 / N), or use a norm without running statistics.",
        lesson=NORMS,
        seen_by="events",
        report="run-ai/runai#14",
        affects="record",
        hidden=needs_accumulation,
        implies=("batchnorm-statistics",),  # a norm with running statistics normalises with those of the batch
    ),
    Pitfall(
        slug="coupled-examples",
        title="examples act on each other within a micro-batch",
        family="coupling",
        patches={
            "contrastive": (
                (
                    "scores = model(images)[:, captions]  # of each image with each caption",
                    "scores = model(images)[:, labels]",
                ),
                (
                    "own = torch.arange(first, first + len(labels), device=labels.device)",
                    "own = torch.arange(len(labels), device=labels.device)",
                ),
            )
        },
        symptom="A larger N does not help: the task is only as hard as one micro-batch makes it.",
        why="Each image is to be told from the captions of the others. Within one micro-batch there are few of them, "
        "and with micro-batches of 1 there is nothing to tell it from.",
        fix="Compare with the whole window, whose other side must be at hand before the first backward (cached "
        "embeddings where it is computed too).",
        lesson=NORMS,
        seen_by="objective",
        report="UKPLab/sentence-transformers#1822",
        affects="gradient",
        hidden=needs_accumulation,
    ),
    Pitfall(
        slug="dropout-masks",
        title="micro-batches share their dropout masks",
        family="coupling",
        patches={
            "dropped-out": (
                ("torch.manual_seed(0)", ""),
                (
                    'loss = F.cross_entropy(model(images), labels, reduction="sum")',
                    'torch.manual_seed(0)\nloss = F.cross_entropy(model(images), labels, reduction="sum")',
                ),
            )
        },
        symptom="Training is noisier than its window size promises; a larger N averages less out.",
        why="In a big batch every example has masks of its own. Seeded again at each micro-batch, the first example of "
        "each has the same masks, and so the second, so their noise adds up instead of cancelling out.",
        fix="Seed once, before training. Masks then differ from the big batch's in value, not in distribution.",
        lesson=NORMS,
        seen_by="events",
        report="huggingface/transformers#31412",
        affects="gradient",
        hidden=needs_accumulation,
    ),
)
