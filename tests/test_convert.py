"""BatchNorm replaced: in every place a model can have it, with the gradient of the big batch as the result."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import accumkit as ak
from accumkit import AccumkitError
from accumkit.convert import FrozenBatchNorm


class Block(nn.Module):
    """A residual block, as in a ResNet."""

    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.short = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.short(x))


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Sequential(Block(8, 8, 1), Block(8, 16, 2)),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    ).double()  # fmt: skip


def gradient(model, x, y, size):
    model.zero_grad()
    for a, b in zip(x.split(size), y.split(size), strict=True):
        (F.cross_entropy(model(a), b, reduction="sum") / len(y)).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def apart(model, x, y, size):
    big = gradient(model, x, y, len(y))
    return float((gradient(model, x, y, size) - big).norm() / big.norm())


def test_a_resnet_becomes_one_whose_accumulated_gradient_is_the_big_batchs():
    x, y = ak.tasks.digits(24, torch.float64)[:]
    model = resnet()
    assert apart(resnet(), x, y, 4) > 1e-2
    converted = ak.replace_batchnorm(model, groups=4)
    assert converted is model
    kinds = [type(m) for m in model.modules()]
    assert kinds.count(nn.GroupNorm) == 7
    assert nn.BatchNorm2d not in kinds
    for size in (1, 3, 4, 8, 24):
        assert apart(model, x, y, size) <= 1e-12


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.BatchNorm1d, (6, 8)),
        (nn.BatchNorm1d, (6, 8, 5)),
        (nn.BatchNorm2d, (6, 8, 3, 2)),
        (nn.BatchNorm3d, (6, 8, 3, 2, 2)),
        (nn.SyncBatchNorm, (6, 8, 3)),
    ],
)
def test_every_dimension(norm, shape):
    torch.manual_seed(1)
    layer = ak.replace_batchnorm(norm(8, eps=1e-3).double(), groups=4)  # a model that is itself the layer
    assert isinstance(layer, nn.GroupNorm)
    assert (layer.num_groups, layer.num_channels, layer.eps) == (4, 8, 1e-3)
    x = torch.randn(shape, dtype=torch.float64)
    assert torch.allclose(layer(x)[2:3], layer(x[2:3]))  # each example by itself
    assert layer(x).shape == x.shape


def test_weights_stay_the_same_parameters_and_an_optimizer_keeps_them():
    model = resnet()
    before = {id(p) for p in model.parameters()}
    with torch.no_grad():
        model[1].weight.uniform_(1, 2)
        model[1].bias.uniform_(-1, 1)
    weight, bias = model[1].weight, model[1].bias
    ak.replace_batchnorm(model, groups=2)
    assert model[1].weight is weight
    assert model[1].bias is bias
    assert {id(p) for p in model.parameters()} == before
    plain = ak.replace_batchnorm(nn.Sequential(nn.BatchNorm2d(4, affine=False)), groups=2)[0]
    assert not plain.affine
    assert plain.weight is None
    assert not dict(model.named_buffers())  # no running statistics are left


def test_one_layer_in_two_places_stays_one():
    shared = nn.BatchNorm1d(8)
    model = ak.replace_batchnorm(nn.Sequential(nn.Linear(8, 8), shared, nn.Linear(8, 8), shared), groups=4)
    assert model[1] is model[3]
    assert isinstance(model[1], nn.GroupNorm)


def test_modes_are_kept_and_other_norms_left():
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4), nn.InstanceNorm2d(4), nn.LayerNorm(3)).eval()
    ak.replace_batchnorm(model, groups=2)
    assert not model[1].training
    assert isinstance(model[2], nn.InstanceNorm2d)
    assert isinstance(model[3], nn.LayerNorm)


def test_groups_by_function():
    model = ak.replace_batchnorm(resnet(), groups=lambda channels: math.gcd(16, channels))
    assert [m.num_groups for m in model.modules() if isinstance(m, nn.GroupNorm)] == [8, 8, 8, 8, 16, 16, 16]


@pytest.mark.parametrize(
    ("make", "how", "said"),
    [
        (
            resnet,
            {"groups": 3},
            r"3 groups do not divide .* \('1' has 8, '3.0.bn1' has 8, .* and 3 more\).*: 1, 2, 4, 8",
        ),
        (resnet, {}, r"32 groups do not divide the channels .* these divide them all: 1, 2, 4, 8\. .*math.gcd"),
        (resnet, {"groups": 0}, "groups=0: give a whole number of at least 1"),
        (resnet, {"groups": True}, "groups=True: give a whole number"),
        (resnet, {"groups": lambda channels: channels / 2}, r"4.0 and 8.0 groups do not divide"),
        (lambda: nn.Linear(2, 2), {}, "this Linear has no BatchNorm layer"),
        (lambda: nn.Sequential(nn.LazyBatchNorm1d()), {"groups": 2}, "layer '0' is lazy .* run one batch through"),
        (resnet, {"groups": 2, "frozen": True}, "a frozen BatchNorm has no groups"),
        (resnet, {"frozen": True}, "layer '1' are still the initial ones, .* before freezing it"),
        (
            lambda: nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)),
            {"frozen": True},
            "layer '0' keeps no running statistics",
        ),
    ],
)
def test_what_cannot_be_replaced_is_said_and_the_model_left_as_it_was(make, how, said):
    model = make()
    before = [type(m) for m in model.modules()]
    with pytest.raises(AccumkitError, match=said):
        ak.replace_batchnorm(model, **how)
    assert [type(m) for m in model.modules()] == before


def test_what_is_lost_is_said():
    trained = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.BatchNorm1d(8))
    trained(torch.randn(4, 8))
    with pytest.warns(
        UserWarning, match=r"2 of 2 BatchNorm layers have running statistics .* \('1' the first of them\)"
    ):
        ak.replace_batchnorm(trained, groups=4)
    with pytest.warns(UserWarning, match="layer '0' gets groups of a single channel"):
        ak.replace_batchnorm(nn.Sequential(nn.BatchNorm1d(8)), groups=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ak.replace_batchnorm(nn.Sequential(nn.BatchNorm2d(8)), groups=8)  # over its pixels: InstanceNorm


def test_frozen_keeps_its_statistics_in_training_and_its_gradient_is_the_big_batchs():
    x, y = ak.tasks.digits(24, torch.float64)[:]
    model = resnet()
    for _ in range(3):
        model(x)
    expected = model.eval()(x)
    saved = model.state_dict()
    names = list(saved)
    frozen = ak.replace_batchnorm(model, frozen=True).train()
    assert sum(isinstance(m, FrozenBatchNorm) for m in frozen.modules()) == 7
    assert "eps=1e-05" in repr(frozen[1])
    assert torch.equal(frozen(x), expected)
    assert apart(frozen, x, y, 1) <= 1e-12
    assert list(frozen.state_dict()) == names
    assert all(torch.equal(value, saved[name]) for name, value in frozen.state_dict().items())
    assert frozen[1].weight.grad is not None  # weight and bias still train


def test_the_audit_sees_the_difference():
    def verdict(model):
        loader = ak.tasks.loader(ak.tasks.digits(24, torch.float64), 4)
        with ak.watch(model, ak.classification(), accumulation_steps=3) as trace:
            ak.train_epoch(
                model, loader, torch.optim.SGD(model.parameters(), 0.01), ak.classification(), accumulation_steps=3
            )
        return ak.audit(trace)

    model = resnet()
    assert "batchnorm-statistics" in [finding.pitfall for finding in verdict(model).findings]
    model.train()
    assert verdict(ak.replace_batchnorm(resnet(), groups=2)).ok
    assert verdict(ak.replace_batchnorm(model, frozen=True)).ok
