"""A gradient that is not finite never reaches the optimizer, with clipping or without."""

from __future__ import annotations

import big_batch as oracle
import pytest
import torch
from refusals import OBJECTIVE, epoch, net, refused, same, state, stopped_in_update_2
from torch import nn

import accumkit as ak
from accumkit.finite import Finite

BUFFERED = pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])


class RootAtZero(torch.autograd.Function):
    """Finite forward, NaN backward: as a square root at 0 that is multiplied by 0 afterwards."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * float("nan")


def broken_where_large(out, batch):
    spoil = batch[0].abs().max() > 100
    return OBJECTIVE.loss(RootAtZero.apply(out) if spoil else out, batch)


BREAKS = ak.Objective(loss=broken_where_large, count=OBJECTIVE.count)


def large(good):
    x = good[1][0].clone()
    x[0, 0] = 1000.0
    return [*good, good[0], (x, good[1][1]), good[2]]


@BUFFERED
def test_a_nan_gradient_behind_a_finite_loss_stops_the_update(buffered):
    problem = stopped_in_update_2(
        "update 2: the gradient of norm.weight, norm.bias, head.weight and 1 more is not finite although the loss is; "
        "look for square roots", large, objective=BREAKS, buffered=buffered,
    )  # fmt: skip
    assert "parameters of the model" not in str(problem)


@BUFFERED
@pytest.mark.parametrize("clip", [{}, {"max_grad_norm": 1.0}], ids=["plain", "clipped"])
def test_training_goes_on_after_such_a_gradient(buffered, clip):
    pairs = net(), net()
    good = oracle.labelled([4] * 3)
    with pytest.raises(ak.AccumkitError, match="although the loss is"):
        epoch(*pairs[0], large(good), BREAKS, buffered=buffered, **clip)
    for pair in pairs[1:]:
        epoch(*pair, good, BREAKS, buffered=buffered, **clip)
    for pair in pairs:
        epoch(*pair, good, BREAKS, buffered=buffered, **clip)
    assert same(state(*pairs[0]), state(*pairs[1]))


def test_a_term_or_low_precision_sums_with_such_a_gradient():
    term = ak.Objective(
        loss=OBJECTIVE.loss, count=OBJECTIVE.count, per_update=lambda m: RootAtZero.apply(m.head.weight).sum()
    )
    refused("gradient of head.weight is not finite", oracle.labelled([4]), objective=term)
    torch.manual_seed(0)
    model = oracle.mlp(dtype=torch.bfloat16)
    pair = model, torch.optim.SGD(model.parameters(), lr=0.1)
    batches = large(oracle.labelled([4] * 3, dtype=torch.bfloat16))[3:]
    refused("gradient of 0.weight, .* is not finite", batches, objective=BREAKS, accumulate_dtype=torch.float32,
            pair=pair)  # fmt: skip


def test_a_loss_that_is_nan_is_blamed_before_the_term():
    model, optimizer = net()
    model.head.bias.data[0] = float("nan")
    objective = ak.Objective(loss=OBJECTIVE.loss, count=OBJECTIVE.count, per_update=lambda m: m.head.bias.sum())
    with pytest.raises(ak.AccumkitError, match="its loss is nan; parameters of the model are not finite already"):
        epoch(model, optimizer, oracle.labelled([4]), objective)


@pytest.mark.parametrize("value", [0.0, float("inf"), float("nan")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_gradients_are_looked_at_and_not_changed(dtype, value):
    parameters = [nn.Parameter(torch.randn(5, 3).to(dtype)), nn.Parameter(torch.randn(2)), nn.Parameter(torch.ones(1))]
    for p in parameters[:2]:  # the third has none
        p.grad = torch.randn(p.shape).to(p.dtype)
    parameters[0].grad[4, 2] += value
    before = [p.grad.clone() for p in parameters[:2]]
    assert Finite(parameters).found().item() == (value != 0)
    assert all(torch.equal(p.grad.nan_to_num(), b.nan_to_num()) for p, b in zip(parameters, before, strict=False))


def test_no_gradient_and_sparse_ones():
    weight = nn.Parameter(torch.randn(4, 2))
    finite = Finite([weight])
    assert not finite.found()
    nn.functional.embedding(torch.tensor([1, 1]), weight, sparse=True).sum().backward()
    assert not finite.found()
    weight.grad = weight.grad * float("inf")
    assert finite.found()


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(11, 8, sparse=True), nn.Linear(8, 4)

    def forward(self, lines):
        return self.head(self.words(lines))


@BUFFERED
def test_sparse_gradients_are_trained_and_not_clipped(buffered):
    torch.manual_seed(0)
    model = Bag()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.randint(0, 11, (4, 5)), torch.randint(0, 4, (4,))) for _ in range(3)]
    refused(
        r"update 1: max_grad_norm=1 cannot clip, since 1 gradient is sparse, .* make the embedding with sparse=False",
        batches, max_grad_norm=1.0, buffered=buffered, pair=(model, optimizer),
    )  # fmt: skip
    before = model.words.weight.detach().clone()
    epoch(model, optimizer, batches, buffered=buffered)
    assert not torch.equal(before, model.words.weight)
