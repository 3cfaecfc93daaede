"""Exercise 04b: replace every BatchNorm of a nested network by GroupNorm."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from accumkit.checks.converted import batchnorms, network, tried
from accumkit.checks.converted_words import DO_NOT_DIVIDE, swapped, to_mend
from accumkit.checks.outcome import NOT_YET, RIGHT, Outcome
from accumkit.checks.problem import Problem, WrongAnswer, but
from accumkit.checks.returned import returned, returns_in_loop
from accumkit.checks.values import shown
from accumkit.errors import AccumkitError

SECONDS = 5

ANSWER = '''\
def convert(model):
    """Replace every BatchNorm2d by a GroupNorm with 4 channels in each group; return the model."""
    ### BEGIN SOLUTION
    for name, child in model.named_children():
        if isinstance(child, nn.BatchNorm2d):
            norm = nn.GroupNorm(child.num_features // 4, child.num_features)
            norm.weight, norm.bias = child.weight, child.bias
            setattr(model, name, norm)
        else:
            convert(child)
    return model
    ### END SOLUTION
'''

HINTS = (
    "A layer is replaced in the module that holds it: `setattr(parent, name, new)`. `model.named_children()` gives "
    "name and module of what a module holds itself, one level down.",
    "To reach every level, let the function call itself for each child that is not a BatchNorm. "
    "`nn.GroupNorm(num_groups, num_channels)` wants the number of groups, not the size of one.",
    "The frame is this; two lines are missing, and each stands in its place.\n\n"
    """
    for name, child in model.named_children():
        if isinstance(child, nn.BatchNorm2d):
            norm = nn.GroupNorm(..., child.num_features)
            ...                          # weight and bias are those of child
            setattr(model, name, norm)
        else:
            convert(child)
    return model
    """,
)


def _judge(convert: Callable) -> Outcome:
    given = network()
    try:
        model = returned(convert, {"model": given}, SECONDS)
    except AccumkitError as failed:
        if "divisible by num_groups" not in str(failed) and "do not divide" not in str(failed):
            raise
        seen = f"Seen: {str(failed).split('; it cannot')[0]}."
        return _not_yet([swapped(str(failed)) or DO_NOT_DIVIDE], seen)
    if model is None:
        return _nothing_returned(given)
    if not isinstance(model, nn.Module):
        raise AccumkitError(f"the function returned {shown(model)}; let it return the converted network")
    items = to_mend(model, given, returns_in_loop(convert))
    try:
        run = returned(tried, {"model": model}, SECONDS)
    except AccumkitError as failed:
        if items:
            return _not_yet(items)
        said = f"{str(failed).replace('the function', 'It', 1).split('; it cannot')[0]}."
        return _not_yet([("The converted network does not run (does-not-run)", said)])
    if items:
        return _not_yet(items, _measured(run.apart))
    if not run.as_meant:
        head = "Something else changed too (other-layers-changed)"
        said = (
            "All norms are as asked, but the network's scores are not those of the network that was given, with "
            f"GroupNorm in it. They have the shape {run.shape}. Keep all other layers, and their order."
        )
        return _not_yet([(head, said)], _measured(run.apart))
    return Outcome(
        RIGHT,
        "all six BatchNorm layers are GroupNorm now, at every depth, with 4 channels in each group and the weights "
        "they had. In training mode the accumulated gradient is the big batch's, up to rounding.",
    )


def _nothing_returned(given: nn.Module) -> Outcome:
    done = not batchnorms(given)
    said = "the network was converted" if done else "the network that was given still has BatchNorm"
    head = "Nothing is returned (not-returned)"
    return _not_yet([(head, "The last line of the function should be `return model`.")], f"Apart from that, {said}.")


def _measured(apart: float) -> str:
    if apart < 1e-9:
        return "Measured in training mode: the accumulated gradient is the big batch's, up to rounding."
    return f"Measured in training mode: the accumulated gradient is off by {apart:.2f} of the big batch's length."


def _not_yet(items: list[tuple[str, ...]], measured: str = "") -> Outcome:
    lead = "there is one thing to mend." if len(items) == 1 else f"there are {len(items)} things to mend."
    first, *others = items
    return Outcome(NOT_YET, lead, ((*first, *[measured] * bool(measured)), *others))


_GROUPS = "child.num_features // 4, child.num_features"
_KEPT = "            norm.weight, norm.bias = child.weight, child.bias\n"
_COPIED = """\
            norm.weight.data.copy_(child.weight)
            norm.bias.data.copy_(child.bias)
"""
# Going through all modules by name, with the whole name for a child's: common, and without any effect.
DOTTED = """\
def convert(model):
    for name, child in list(model.named_modules()):
        if isinstance(child, nn.BatchNorm2d):
            norm = nn.GroupNorm(child.num_features // 4, child.num_features)
            norm.weight, norm.bias = child.weight, child.bias
            setattr(model, name, norm)
    return model
"""
REBOUND = """\
def convert(model):
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer = nn.GroupNorm(layer.num_features // 4, layer.num_features)
    return model
"""
EACH = """\
def convert(model):
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            {what}
    return model
"""

WRONG_ANSWERS = (
    WrongAnswer("only-eval", EACH.format(what="layer.eval()")),
    WrongAnswer("batchnorm-momentum", EACH.format(what="layer.momentum = 1 - (1 - layer.momentum) ** (1 / 4)")),
    WrongAnswer("only-top-level", but(ANSWER, "        else:\n            convert(child)\n", "")),
    WrongAnswer("nothing-replaced", REBOUND),
    WrongAnswer("dotted-name", DOTTED),
    # what people who train on several GPUs try first
    WrongAnswer("sync-batchnorm", "def convert(model):\n    return nn.SyncBatchNorm.convert_sync_batchnorm(model)\n"),
    WrongAnswer("groups-for-channels", but(ANSWER, _GROUPS, "4, child.num_features")),
    WrongAnswer("groups-do-not-divide", but(ANSWER, _GROUPS, "32, child.num_features")),
    WrongAnswer("instancenorm-in-effect", but(ANSWER, _GROUPS, "child.num_features, child.num_features")),
    WrongAnswer("layernorm-in-effect", but(ANSWER, _GROUPS, "1, child.num_features")),
    WrongAnswer("weights-lost", but(but(ANSWER, _KEPT, ""), _GROUPS, f"{_GROUPS}, dtype=child.weight.dtype")),
    WrongAnswer("dtype-lost", but(ANSWER, _KEPT, _COPIED)),
    WrongAnswer("swapped", but(ANSWER, _GROUPS, "child.num_features, child.num_features // 4")),
    WrongAnswer("not-whole", but(ANSWER, _GROUPS, "child.num_features / 4, child.num_features")),
    # one indentation too many, as a report of a loop that trained on one batch has it
    WrongAnswer("returns-in-loop", but(ANSWER, "    return model\n", "        return model\n")),
    WrongAnswer("not-returned", but(ANSWER, "    return model\n", "")),
)

PROBLEM = Problem(
    id="04b",
    title="Replace every BatchNorm",
    kind="write",
    minutes=15,
    difficulty="medium",
    asks="convert",
    answer=ANSWER,
    hints=HINTS,
    judge=_judge,
    wrong_answers=WRONG_ANSWERS,
    imports="import torch\nfrom torch import nn\n",
)

check, hint, solution = PROBLEM.check, PROBLEM.hint, PROBLEM.solution
