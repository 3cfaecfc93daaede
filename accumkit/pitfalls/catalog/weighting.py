"""Weighting: examples of one update weigh unequally, or the divisor counts something else."""

from __future__ import annotations

from accumkit.pitfalls.catalog.lessons import WEIGHTS
from accumkit.pitfalls.catalog.scale import SUMMED
from accumkit.pitfalls.pitfall import Pitfall
from accumkit.pitfalls.plan import needs_accumulation, needs_unequal

WEIGHTING = (
    Pitfall(
        slug="mean-of-means",
        title="a mean of means over micro-batches of unequal size",
        family="weighting",
        patches={
            "plain": (
                (SUMMED, "loss = F.cross_entropy(model(images), labels)"),
                ("count += len(labels)", "count += 1"),
            )
        },
        symptom="Examples of small micro-batches pull harder; results change with how the data are cut.",
        why="Each micro-batch's mean counts the same, whether it holds many examples or few.",
        fix="Sum the losses and divide by the examples of the whole window.",
        lesson=WEIGHTS,
        seen_by="objective",
        report="mlfoundations/open_clip#1211",
        affects="gradient",
        hidden=needs_unequal,
        unequal=True,
    ),
    Pitfall(
        slug="token-weighting",
        title="tokens weigh unequally",
        family="weighting",
        patches={
            "tokens": (
                (
                    'loss = F.cross_entropy(scores, targets, reduction="sum")',
                    "loss = F.cross_entropy(scores, targets)",
                ),
                ("count += valid", "count += 1"),
            )
        },
        symptom="The loss differs between N and one big batch of the same lines; tokens of short lines pull harder.",
        why="Each micro-batch's mean over its own tokens counts the same, though micro-batches hold different numbers "
        "of tokens that have a target.",
        fix="Sum the losses and divide by the tokens of the whole window that have a target.",
        lesson=WEIGHTS,
        seen_by="objective",
        report="huggingface/transformers#34191",
        affects="gradient",
        hidden=needs_unequal,
    ),
    Pitfall(
        slug="class-weighting",
        title="classes do not weigh what their weights say",
        family="weighting",
        patches={
            "weighted": (
                (
                    'loss = F.cross_entropy(model(images), labels, weight, reduction="sum")',
                    "loss = F.cross_entropy(model(images), labels, weight)",
                ),
                ("count += weight[labels].sum()", "count += 1"),
            )
        },
        symptom="Rare classes count for less, or more, than they were given; it depends on who shares a micro-batch.",
        why="A weighted mean divides by the class weights of its own micro-batch, so the same class weighs differently "
        "from one micro-batch to the next.",
        fix="Sum the losses and divide by the class weights of the whole window.",
        lesson=WEIGHTS,
        seen_by="objective",
        report="pytorch/pytorch#72047",
        affects="gradient",
        hidden=needs_unequal,
    ),
    Pitfall(
        slug="repeated-auxiliary-loss",
        title="a term that belongs once to an update counts once a micro-batch",
        family="weighting",
        patches={
            "penalised": (
                ("loss.backward()", "loss.backward()\npenalty(model).backward()"),
                ("penalty(model).backward()", ""),
            )
        },
        symptom="Weights shrink too fast, and faster with every larger N.",
        why="A penalty on the weights has nothing to do with the data: it belongs once to each update. Added at every "
        "micro-batch, it counts as often as the window has micro-batches.",
        fix="Add it once a window, outside the loop over its micro-batches; or divide it by their number.",
        lesson=WEIGHTS,
        seen_by="objective",
        report="NVIDIA/Megatron-LM#3672",
        affects="gradient",
        hidden=needs_accumulation,
    ),
    Pitfall(
        slug="skipped-micro-batch",
        title="a micro-batch is left out, and counted all the same",
        family="weighting",
        patches={"skipping": (("count += len(labels)", "<count += len(labels)"),)},
        symptom="Updates with broken data in them are too small.",
        why="A micro-batch with broken data adds nothing to the gradient, but its examples are in the divisor, so all "
        "the others of its window weigh less.",
        fix="Count where the backward is, and only there.",
        lesson=WEIGHTS,
        seen_by="objective",
        report="PrimeIntellect-ai/prime-rl#1961",
        affects="gradient",
        hidden=needs_accumulation,
    ),
    Pitfall(
        slug="empty-micro-batch",
        title="the mean of a micro-batch without one target is not a number",
        family="weighting",
        patches={
            "masked": (
                (
                    "loss = -(chosen * mask).sum()",
                    "mean = -(chosen * mask).sum() / mask.sum()\nloss = mean * mask.sum()",
                ),
            )
        },
        symptom="Suddenly every parameter is NaN.",
        why="A micro-batch whose targets are all masked has a sum of 0 and a mean of 0/0. Weighted by its count of 0 "
        "that is still NaN, and so is its gradient: one such micro-batch spoils the whole window. (The mean of torch's "
        "own cross entropy is NaN too, but leaves a gradient of 0.)",
        fix="Sum the losses, and divide once by the count of the window: the sum over no targets is 0.",
        lesson=WEIGHTS,
        seen_by="objective",
        report="allenai/OLMo-core#657",
        affects="gradient",
        hidden=needs_accumulation,
    ),
)
