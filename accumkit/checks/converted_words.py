"""What exercise 04b says of a converted network: each thing that is not as asked, in words."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from accumkit.checks.converted import CHANNELS, batchnorms, dotted, replaced

EVAL = (
    "In evaluation mode BatchNorm does use fixed statistics, but only until the next `model.train()`, which most "
    "training loops call. Replace the layers."
)
HOLDER = "A layer is replaced in the module that holds it: `setattr(parent, name, norm)`."
PLACE = (
    f"{HOLDER} Giving a loop variable a new value changes nothing in the network. And each layer has to be found: all "
    "six are `nn.BatchNorm2d`."
)
NESTED = (
    "`model.named_children()` goes one level down. Go into each child too: let `convert` call itself, or go through "
    "`model.named_modules()` and find each layer's parent with `model.get_submodule`."
)


DO_NOT_DIVIDE = (
    "Groups that do not divide the channels (groups-do-not-divide)",
    "The layers have 8, 12 and 20 channels. No one number of groups gives all of them 4 in each.",
)
SIZES = (8.0, 12.0, 20.0)  # channels of the layers


def swapped(refused: str) -> tuple[str, ...] | None:
    """Return heading and sentence on a GroupNorm whose two numbers are swapped, from what PyTorch says of it.

    Examples
    --------
    >>> from accumkit.checks.converted_words import swapped
    >>> swapped("num_channels (2) must be divisible by num_groups (8)")[0]
    'The two numbers are swapped (swapped)'
    >>> swapped("num_channels (8) must be divisible by num_groups (32)")
    """
    found = re.search(r"num_channels \(([\d.]+)\) must be divisible by num_groups \(([\d.]+)\)", refused)
    if found is None or float(found[2]) not in SIZES or float(found[1]) in SIZES:
        return None
    said = (
        f"This norm was asked for {found[2]} groups of {found[1]} channels. `nn.GroupNorm` takes the number of groups "
        "first, then the number of channels, which is that of the layer it replaces."
    )
    return "The two numbers are swapped (swapped)", said


def to_mend(model: nn.Module, given: nn.Module, returns: str | None = None) -> list[tuple[str, ...]]:
    """Return heading and sentences on each thing that is not as asked; empty where all is.

    Parameters
    ----------
    model : nn.Module
        What the learner's function returned.
    given : nn.Module
        What it was called with, which it may have changed.
    returns : str, optional
        The line of a `return` in the function's own loop.
    """
    found = list(replaced(model))
    left = batchnorms(model)
    if left:
        return [_left(model, given, left, len(found), returns)]
    gone = [r.name for r in found if r.now is None]
    if gone:
        name = type(model).__name__
        said = f"It is {'an' if name[:1] in 'AEIOU' else 'a'} {name}, and nothing in it is called {_names(gone)}."
        more = "Return the network that was given, with each new layer where the old one was."
        more += f" The `return` at {returns} stands inside the loop; is that meant?" * bool(returns)
        return [("What is returned is not the network (names-lost)", said, more)]
    others = [r for r in found if r.groups is None]
    if others:
        kinds = ", ".join(sorted({type(r.now).__name__ for r in others}))
        said = f"In place of {_names([r.name for r in others])} stands {kinds}. Use `nn.GroupNorm`."
        return [("Another layer than GroupNorm (other-norm)", said)]
    broken = [r.groups for r in found if isinstance(r.groups, float)]
    if broken:
        said = (
            f"The first layer has {broken[0]} groups. `/` gives a number with a decimal point, and PyTorch takes whole "
            "numbers alone: divide with `//`."
        )
        return [("A number of groups that is not whole (not-whole)", said)]
    items = []
    if any(r.groups != r.channels // CHANNELS for r in found):
        items.append(_other_groups([(r.channels, r.groups) for r in found]))
    wrong = [name for name, p in model.named_parameters() if p.dtype != torch.float64]
    if wrong:
        said = (
            f"The network was in float64, and now {_names(wrong)} {'is' if len(wrong) == 1 else 'are'} not. A new "
            "layer is in float32. Give it the parameters of the old one, `norm.weight = child.weight`, or move it, "
            "`norm.to(child.weight)`."
        )
        items.append(("Parameters of another precision (dtype-lost)", said))
    moved = [name for name, p in model.named_parameters() if p.device.type != "cpu"]
    if moved:
        said = f"The network was on the CPU, and now {_names(moved)} {'is' if len(moved) == 1 else 'are'} not."
        return [*items, ("Parameters on another device (device-lost)", said)]
    lost = [r.name for r in found if not r.kept]
    if lost:
        said = (
            f"The BatchNorm layers had learned weights and biases. They are lost, or no longer trained, in "
            f"{_names(lost)}. Both are one value a channel, in BatchNorm and in GroupNorm, so they can be kept."
        )
        items.append(("Weights or biases got lost (weights-lost)", said))
    return items


def _left(
    model: nn.Module, given: nn.Module, left: dict[str, Any], all_of_them: int, returns: str | None
) -> tuple[str, ...]:
    """Say why there is BatchNorm in the network, as far as that shows."""
    if returns:
        said = (
            f"The `return` at {returns} stands inside the loop: the function ends when it comes there, and the layers "
            "that would come later are never seen. It belongs after the loop, as far to the left as the `for`."
        )
        return "The loop ends too early (returns-in-loop)", f"Left: {_names(left)}.", said
    names = dotted(model)
    if names:
        said = (
            f"The network got new children with a dot in their names, {_names(names)}, which its forward does not "
            "know; the old layers are still in use. `setattr` wants the parent and the last part of the name: "
            "`parent, _, own = name.rpartition('.')`, then `setattr(model.get_submodule(parent), own, norm)`."
        )
        return "The new layers are not where the old ones were (dotted-name)", said
    if any(isinstance(layer, nn.SyncBatchNorm) for layer in left.values()):
        said = (
            "SyncBatchNorm joins the statistics of several ranks at one moment. Micro-batches come one after another, "
            "and it cannot wait for the next ones."
        )
        return "BatchNorm that is still BatchNorm (sync-batchnorm)", said
    if len(left) < all_of_them:
        nested = all("." in name for name in left)
        said = NESTED if nested else "Look at how these differ from the ones you found."
        return f"Not all were found ({'only-top-level' if nested else 'some-left'})", f"Left: {_names(left)}.", said
    head = "No BatchNorm was replaced"
    if model is not given and len(batchnorms(given)) < all_of_them:
        said = (
            "The network that was given is converted, but the one that you return is another, a copy without GroupNorm."
        )
        return f"{head} in what you return (converted-the-other)", said
    if not any(layer.training for layer in left.values()):
        return f"{head} (only-eval)", EVAL
    if not any(layer.track_running_stats for layer in left.values()):
        said = "Without running statistics BatchNorm still takes mean and variance of the batch at hand."
        return f"{head} (untracked-statistics)", said
    if not any(p.requires_grad for layer in left.values() for p in layer.parameters()):
        said = (
            "`requires_grad=False` keeps weight and bias from learning. Mean and variance still come from the "
            "micro-batch at hand."
        )
        return f"{head} (frozen-weights-only)", said
    if any(layer.momentum != 0.1 for layer in left.values()):
        said = (
            "The momentum moves the running statistics, which evaluation mode uses. In training mode each micro-batch "
            "is still normalised by itself. Replace the layers."
        )
        return f"{head} (batchnorm-momentum)", said
    if model is not given:
        said = (
            "What you return is another network than the one that was given: a copy, or a new one. In neither is a "
            "layer replaced; let the function work on `model`, which it is given, or on a copy of that."
        )
        return f"{head} (another-network)", said, HOLDER
    return f"{head} (nothing-replaced)", PLACE


def _other_groups(groups: list[tuple[int, int]]) -> tuple[str, ...]:
    """Say which groups were made instead."""
    asked = f"Asked for: {CHANNELS} channels in each group, so 8 channels make 2 groups, 12 make 3, and 20 make 5."
    mixes = "The gradient is the big batch's with it, as with any number of groups, but it is another norm"
    if all(number == channels for channels, number in groups):
        said = f"Each channel is a group of its own: that is InstanceNorm in effect. {mixes}. {asked}"
        return "A group for each channel (instancenorm-in-effect)", said
    if all(number == 1 for _, number in groups):
        said = f"All channels are one group: that is LayerNorm in effect, over channels and pixels. {mixes}. {asked}"
        return "One group for all channels (layernorm-in-effect)", said
    if all(number == CHANNELS for _, number in groups):
        said = f"The first number that `nn.GroupNorm` takes is how many groups there are, not how large one is. {asked}"
        return "4 groups instead of groups of 4 (groups-for-channels)", said
    pairs = ", ".join(f"{number} for {channels} channels" for channels, number in sorted(set(groups)))
    return "Other groups (other-groups)", f"Your groups: {pairs}. {asked}"


def _names(names: Any) -> str:
    """Return some names as text, the first few of them."""
    names = [f"`{name}`" for name in names]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more
