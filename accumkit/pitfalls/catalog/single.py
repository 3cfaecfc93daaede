"""Families of one: precision, data and memory."""

from __future__ import annotations

from accumkit.pitfalls.catalog.lessons import AMP, BOUNDARY
from accumkit.pitfalls.pitfall import Pitfall
from accumkit.pitfalls.plan import needs_long_sum, needs_second_window, never

SINGLE = (
    Pitfall(
        slug="low-precision-sum",
        title="gradients are added up in low precision",
        family="precision",
        patches={"low-precision": (("return model", "return model.bfloat16()"),)},
        symptom="The larger N, the less the last micro-batches count; training stalls that ran well in float32.",
        why="A .grad has the precision of its parameter. bfloat16 keeps about three digits, so a small gradient added "
        "to a large sum is rounded away.",
        fix="Keep the parameters, and so the sums, in float32, and compute in low precision under autocast.",
        lesson=AMP,
        seen_by="objective",
        report="deepspeedai/DeepSpeed#2768",
        affects="gradient",
        hidden=needs_long_sum,
    ),
    Pitfall(
        slug="data-reused",
        title="every window has the same data",
        family="data",
        patches={
            "collected": (
                (
                    "window = list(islice(batches, accumulation_steps))",
                    "window = list(islice(loader, accumulation_steps))",
                ),
            )
        },
        symptom="The training loss falls fast, and the validation loss does not.",
        why="Taking N micro-batches from the loader itself starts it anew each time, so every window has the first N "
        "micro-batches, and the rest of the data never come.",
        fix="Make one iterator a pass, `batches = iter(loader)`, and take every window from it.",
        lesson=BOUNDARY,
        seen_by="objective",
        report="michaelnny/InstructLLaMA#6",
        affects="update",
        hidden=needs_second_window,
        implies=("tail-dropped",),  # where a pass has less than two full windows, that is all one can tell
    ),
    Pitfall(
        slug="graph-kept",
        title="the graph of every micro-batch is kept",
        family="memory",
        patches={
            "logged": (
                ("loss.backward()", "loss.backward(retain_graph=True)"),
                ("total += loss.item()", "total += loss"),
            )
        },
        symptom="Memory grows with every micro-batch until there is none left; accumulation saves nothing.",
        why="A loss that is added up as a tensor holds on to its graph, and retain_graph keeps all activations in it. "
        "What accumulation is meant to save is kept for the whole run.",
        fix="Add up numbers, loss.item() or loss.detach(), and leave out retain_graph.",
        lesson=None,
        seen_by="events",
        report="pytorch/pytorch#17568",
        affects="cost",
        hidden=never,
    ),
)
