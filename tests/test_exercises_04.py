"""The exercises of lesson 04: what is measured is so, right answers of any form pass, and others are told well."""

from __future__ import annotations

import numpy
import pytest
import torch
from torch import nn

from accumkit.checks import exact_or_not, momentum_for_n, replace_norms
from accumkit.checks.attempts import attempted
from accumkit.checks.converted import batchnorms, network
from accumkit.checks.returned import returned
from accumkit.errors import AccumkitError
from accumkit.studies.running import corrected_momentum, effective_momentum

EXACT = {
    "no_norm": "exact", "batchnorm": "no", "batchnorm_eval": "exact", "batchnorm_untrained": "no",
    "groupnorm": "exact", "layernorm": "exact", "instancenorm": "exact", "dropout": "on average",
}  # fmt: skip
MOMENTUM = {"acts_as": 0.468559, "momentum": 1 - 0.9 ** (1 / 6), "mends": "evaluation"}


def said(outcome) -> str:
    return " ".join(repr(outcome).split())


# 04a
def test_the_eight_models_are_measured_and_not_near_a_limit():
    found = exact_or_not.measured()
    assert {name: f.right for name, f in found.items()} == EXACT
    for name, f in found.items():
        assert f.once < 1e-13 or f.once > 0.1, name
    assert found["dropout"].many < 0.4 * found["dropout"].once
    assert found["batchnorm"].many == found["batchnorm"].once


def test_measuring_leaves_random_numbers_alone():
    exact_or_not.measured.cache_clear()
    before = torch.get_rng_state()
    exact_or_not.measured()
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"no_norm": True, "batchnorm": False, "groupnorm": " Yes ", "layernorm": "EXACTLY"},
        {"no_norm": torch.tensor(True), "batchnorm": numpy.bool_(False), "dropout": "On Average"},
        {"dropout": "average", "batchnorm_untrained": "never"},
    ],
)
def test_exact_in_any_spelling(given):
    assert exact_or_not.check(EXACT | given).status == "right"


@pytest.mark.parametrize("value", [1, "exaktly", float("nan"), ["exact"], {}, object(), torch.ones(2)])
def test_exact_that_cannot_be_read(value):
    assert "`no_norm`: cannot be read" in said(exact_or_not.check(EXACT | {"no_norm": value}))


def test_answers_in_other_words_are_said_back():
    text = said(exact_or_not.check(EXACT | {"no_norm": True, "batchnorm": "never", "layernorm": " Exact "}))
    assert text.endswith("(Read: True as 'exact', 'never' as 'no'.)")
    text = said(exact_or_not.check(EXACT | {"dropout": False, "batchnorm": ...}))
    assert "6 of 8 are right. (Read: False as 'no'.)" in text
    assert "Read:" not in said(exact_or_not.check(EXACT)) + said(exact_or_not.check(EXACT | {"dropout": "no"}))


def test_exact_partly_filled():
    text = said(exact_or_not.check(EXACT | {"dropout": ...}))
    assert "7 of 8 are right" in text and "`dropout`: still open" in text
    assert "has no 'dropout'" in said(exact_or_not.check({k: v for k, v in EXACT.items() if k != "dropout"}))
    assert exact_or_not.check(dict.fromkeys(EXACT, ...)).status == "not attempted"
    assert "is a dict with 'no_norm'" in said(exact_or_not.check("exact"))


def test_every_wrong_value_of_the_eight_is_told():
    for name, right in EXACT.items():
        for choice in exact_or_not.CHOICES:
            text = said(exact_or_not.check(EXACT | {name: choice}))
            assert choice == right or ("7 of 8" in text and "Measured:" in text and "(" in text.split("Measured")[0])


def test_dropout_is_asked_about_and_not_told():
    for guess in ("exact", "no"):
        assert "average" not in said(exact_or_not.check(EXACT | {"dropout": guess}))


# 04b
HEAD = "import copy\nimport accumkit as ak\nfrom accumkit.checks import replace_norms\n\n\n"
BY_NAME = """\
def convert(model):
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.BatchNorm2d):
            parent, _, own = name.rpartition(".")
            channels = module.num_features
            norm = nn.GroupNorm(channels // 4, channels, dtype=module.weight.dtype, device=module.weight.device)
            with torch.no_grad():
                norm.weight.copy_(module.weight)
                norm.bias.copy_(module.bias)
            setattr(model.get_submodule(parent), own, norm)
    return model
"""
PARENTS = """\
def convert(network):
    for parent in network.modules():
        for name, child in parent.named_children():
            if type(child) == nn.BatchNorm2d:
                norm = nn.GroupNorm(num_channels=child.num_features, num_groups=child.num_features // 4)
                norm.load_state_dict({"weight": child.weight, "bias": child.bias})
                parent.add_module(name, norm.to(child.weight))
    return network
"""
COPY = """\
class Norm(nn.GroupNorm):
    pass


def convert(model):
    model = copy.deepcopy(model).eval()
    stack = [model]
    while stack:
        module = stack.pop()
        for name, child in module._modules.items():
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                norm = Norm(child.num_features // 4, child.num_features).double()
                norm.weight.data, norm.bias.data = child.weight.data, child.bias.data
                module._modules[name] = norm
            else:
                stack.append(child)
    return model
"""
KIT = "def convert(model):\n    return ak.replace_batchnorm(model, groups=lambda channels: channels // 4)\n"
DOUBLED = PARENTS.replace(".to(child.weight)", "").replace("return network", "return network.double()")
RIGHT = {"by name": BY_NAME, "parents": PARENTS, "a copy": COPY, "the kit": KIT, "cast at the end": DOUBLED}


def convert(source):
    return attempted(replace_norms.PROBLEM, HEAD + source)


@pytest.mark.parametrize("name", RIGHT)
def test_other_right_ways_to_convert(name):
    outcome = convert(RIGHT[name])
    assert outcome.status == "right", outcome


def every(line, last="return model"):
    return f"def convert(model):\n    for m in list(model.modules()):\n        if isinstance(m, nn.BatchNorm2d):\n" \
           f"            {line}\n    {last}\n"  # fmt: skip


WRONG = {
    "a copy of before": (
        BY_NAME.replace("    for name,", "    old = copy.deepcopy(model)\n    for name,").replace("n model", "n old"),
        ["(converted-the-other)", "The network that was given is converted"],
    ),
    "returns in the loop": (
        "def convert(model):\n    for name, child in model.named_children():\n        return convert(child)\n"
        "    return model\n",
        ["(names-lost)", "It is a Conv2d", "stands inside the loop; is that meant?"],
    ),
    "returns the model in the loop": (
        replace_norms.PROBLEM.solution_source.replace("\n    return model", "\n        return model"),
        ["(returns-in-loop)", "Left: `stem.1`", "stands inside the loop", "The `return` at learner.py:"],
    ),
    "returns after the first layer": (
        PARENTS.replace("(norm.to(child.weight))", "x").replace(
            "norm.to(child.weight))\n", "norm.to(child.weight))\n                return network\n"),
        ["(returns-in-loop)", "are never seen"],
    ),
    "another network": ("def convert(model):\n    return replace_norms.network()\n",
                        ["(another-network)", "another network than the one that was given", "off by 0.38"]),
    "a copy as it was": ("def convert(model):\n    return copy.deepcopy(model)\n", ["(another-network)"]),
    "swapped": (
        BY_NAME.replace("channels // 4, channels", "channels, channels // 4"),
        ["(swapped)", "8 groups of 2 channels", "number of groups first"],
    ),
    "swapped, 4 written down": (BY_NAME.replace("channels // 4, channels", "channels, 4"), ["(swapped)"]),
    "32 groups": (BY_NAME.replace("channels // 4,", "32,"), ["(groups-do-not-divide)", "8, 12 and 20 channels"]),
    "not whole": (BY_NAME.replace("channels // 4", "channels / 4"), ["(not-whole)", "has 2.0 groups", "with `//`"]),
    "rebuilt": (
        KIT.replace("return", "model =") + "    return nn.Sequential(*model.children())\n",
        ["(names-lost)", "It is a Sequential"],
    ),
    "nothing of it": ("def convert(model):\n    return nn.Identity()\n", ["(names-lost)", "It is an Identity, and"]),
    "instance norm": (
        BY_NAME.replace("GroupNorm(channels // 4, channels", "InstanceNorm2d(channels, affine=True"),
        ["(other-norm)", "InstanceNorm2d", "is the big batch's"],
    ),
    "frozen": (
        "def convert(model):\n    model(torch.randn(8, 1, 8, 8).double())\n"
        "    return ak.replace_batchnorm(model, frozen=True)\n",
        ["(other-norm)", "FrozenBatchNorm", "is the big batch's"],
    ),
    "identity": (PARENTS.replace("norm.to(child.weight)", "nn.Identity()"), ["(other-norm)", "Identity"]),
    "float32": (BY_NAME.replace("return model", "return model.float()"), ["(dtype-lost)"]),
    "meta": (BY_NAME.replace("return model", "return model.to('meta')"), ["(device-lost)"]),
    "no activation": (
        BY_NAME.replace("return model", "model.wider[0][2] = nn.Identity()\n    return model"),
        ["(other-layers-changed)"],
    ),
    "weight alone": (BY_NAME.replace("norm.bias.copy_(module.bias)", "pass"), ["(weights-lost)"]),
    "not trained": (BY_NAME.replace("norm.bias.copy_(", "norm.bias.requires_grad_(False).copy_("), ["(weights-lost)"]),
    "groups of 2": (BY_NAME.replace("channels // 4", "channels // 2"), ["(other-groups)", "10 for 20 channels"]),
    "some left": (
        BY_NAME.replace("nn.BatchNorm2d):", "nn.BatchNorm2d) and module.num_features < 20:"),
        ["(some-left)", "`wider.1.1`, `norm`"],
    ),
    "kit's default": ("def convert(model):\n    return ak.replace_batchnorm(model)\n", ["(groups-do-not-divide)"]),
    "no statistics": (
        every("m.track_running_stats, m.running_mean, m.running_var = False, None, None"),
        ["(untracked-statistics)", "off by 0.38"],
    ),
    "evaluation mode": (every("m.eval()"), ["(only-eval)", "off by 0.38"]),
    "momentum 0": (every("m.momentum = 0.0"), ["(batchnorm-momentum)", "off by 0.38"]),
    "weights fixed": (every("m.requires_grad_(False)"), ["(frozen-weights-only)", "off by 0.38"]),
    "a word": ("def convert(model):\n    return 'done'\n", ["the function returned 'done'"]),
    "nothing": ("def convert(model):\n    model.eval()\n", ["(not-returned)", "Apart from that, the network that was"]),
    "two arguments": ("def convert(model, groups):\n    return model\n", ["takes (model, groups)", "this argument"]),
    "raises": ("def convert(model):\n    1 / 0\n", ["ZeroDivisionError", "learner.py:"]),
    "recursion": ("def convert(model):\n    return convert(model)\n", ["RecursionError"]),
    "breaks later": (
        KIT.replace("    return", "    model.head = nn.Linear(7, 10).double()\n    return"),
        ["(does-not-run)", "RuntimeError"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_other_wrong_ways_to_convert(name):
    source, parts = WRONG[name]
    outcome = convert(source)
    assert outcome.status == "not yet"
    assert [part for part in parts if part not in said(outcome)] == [], outcome
    assert "does its loop end?." not in repr(outcome) and ".." not in repr(outcome).replace("...", "")


def test_a_conversion_that_does_not_end(monkeypatch):
    monkeypatch.setattr(replace_norms, "SECONDS", 1)
    assert "was still running after 1 second" in said(convert("def convert(model):\n    while True: pass\n"))


def test_the_network_has_batchnorm_at_every_depth_and_is_new_each_time():
    names = {name: layer.num_features for name, layer in batchnorms(network()).items()}
    assert {name.count(".") for name in names} == {0, 1, 2} and set(names.values()) == {8, 12, 20}
    assert torch.equal(network().norm.weight, network().norm.weight) and network().norm is not network().norm
    assert all(p.dtype == torch.float64 for p in network().parameters())


def test_torch_is_as_it_was_after_a_conversion():
    before, state = nn.BatchNorm2d, torch.get_rng_state()
    convert("def convert(model):\n    nn.BatchNorm2d = nn.GroupNorm\n    torch.manual_seed(7)\n    return model\n")
    assert nn.BatchNorm2d is before and torch.equal(state, torch.get_rng_state())


def test_returned_by_position_or_by_name_and_refused_with_its_reason():
    assert returned(lambda *, a, b: a - b, {"a": 5, "b": 3}, 5) == 2
    assert returned(lambda x, y: x - y, {"a": 5, "b": 3}, 5) == 2
    with pytest.raises(AccumkitError, match="give it these arguments"):
        returned(lambda x: x, {"a": 5, "b": 3}, 5)
    with pytest.raises(AccumkitError, match=r"a function of \(a\) is needed; given: 5"):
        returned(5, {"a": 1}, 5)


# 04c
def test_momenta_are_those_of_a_batchnorm_that_ran():
    m, n = momentum_for_n.MOMENTUM, momentum_for_n.STEPS
    assert momentum_for_n.moved(m, n) == pytest.approx(effective_momentum(m, n), rel=1e-12)
    assert momentum_for_n.moved(corrected_momentum(m, n), n) == pytest.approx(momentum_for_n.moved(m, 1), rel=1e-12)
    assert pytest.approx(MOMENTUM["acts_as"], rel=1e-5) == momentum_for_n.moved(m, n)


@pytest.mark.parametrize(
    "given",
    [
        {"momentum": 0.0174, "acts_as": 0.469},
        {"momentum": 0.01741, "acts_as": 0.4686},
        {"momentum": torch.tensor(0.017407), "acts_as": numpy.float32(0.46856)},
        {"mends": " Evaluation mode"},
        {"mends": "eval"},
    ],
)
def test_momenta_in_any_form(given):
    assert momentum_for_n.check(MOMENTUM | given).status == "right"


@pytest.mark.parametrize(
    ("given", "parts", "not_said"),
    [
        ({"momentum": 0.1 / 6}, ["(divided-by-n)", "0.0959 of the way", "moves it by 0.1", "near"], ["0.0174"]),
        ({"momentum": 0.05}, ["0.2649 of the way"], ["0.0174", "(6", "1 -"]),
        ({"momentum": 0.9}, ["(the-other-convention)", "the part that stays"], ["0.0174"]),
        ({"momentum": 0.9 ** (1 / 6)}, ["(the-part-that-stays)"], ["0.0174"]),
        ({"momentum": 0.1 ** (1 / 6)}, ["(root-of-m)"], ["0.0174"]),
        ({"momentum": 1 - 0.1 ** (1 / 6)}, ["(root-of-m)"], ["0.0174"]),
        ({"momentum": 5}, ["from 0 to 1"], ["0.0174"]),
        ({"momentum": 1 - 0.9**1 / 6}, ["(missing-brackets)", "`** (1 / 6)`", "nearly all of the way"], ["0.0174"]),
        ({"momentum": 1 - (1 - 0.1) * 1 / 6}, ["(missing-brackets)"], ["0.0174"]),
        ({"momentum": 1.74}, ["(percent)", "divide by 100"], ["0.0174"]),
        ({"momentum": 10}, ["(percent)"], ["0.0174"]),
        ({"momentum": 1.67}, ["(percent)"], ["0.0174", "0.0167"]),
        ({"acts_as": 46.9}, ["(percent)", "divide by 100"], ["0.469"]),
        ({"acts_as": 60}, ["(percent)"], ["0.469"]),
        ({"acts_as": -1}, ["from 0 to 1"], ["0.469"]),
        ({"momentum": float("nan")}, ["nan is given, and a number"], ["0.0174"]),
        ({"momentum": "1 - 0.9 ** (1 / 6)"}, ["without quotes"], ["0.0174"]),
        ({"acts_as": 0.1}, ["(one-forward)"], ["0.47", "0.469"]),
        ({"acts_as": 0.6}, ["(multiplied)"], ["0.47", "0.469"]),
        ({"acts_as": 0.3}, ["do not move the running mean by that part"], ["0.47", "0.469"]),
        ({"acts_as": 0.0174}, ["(the-other-way)"], ["0.47", "0.469"]),
        ({"mends": "neither"}, ["(mends-nothing)"], ["evaluation"]),
        ({"mends": "bothe"}, ["'both'"], []),
        ({"mends": True}, ["one of 'evaluation'"], []),
    ],
)
def test_momenta_that_are_not_right(given, parts, not_said):
    text = said(momentum_for_n.check(MOMENTUM | given))
    assert text.startswith("Not yet: 2 of 3 are right.")
    assert [part for part in parts if part not in text] == [], text
    assert [part for part in not_said if part in text] == [], text
