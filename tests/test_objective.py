"""Objectives: summed loss / count is torch's own mean, and errors say what to change."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import accumkit as ak
from accumkit.objective import target_of

WEIGHT = torch.tensor([0.2, 1.0, 3.5], dtype=torch.float64)


def mean_of(objective: ak.Objective, output, batch) -> float:
    return (objective.loss(output, batch) / objective.count(batch)).item()


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["", "weights"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("ignore_index", [-100, 1])
@pytest.mark.parametrize("more", [(), (4,), (4, 2)], ids=["classes", "lines", "pixels"])
def test_classification_is_torchs_mean(weight, smoothing, ignore_index, more):
    output = torch.randn(7, 3, *more, dtype=torch.float64)
    target = torch.randint(0, 3, (7, *more))
    target[2] = ignore_index
    objective = ak.classification(class_weight=weight, ignore_index=ignore_index, label_smoothing=smoothing)
    wanted = F.cross_entropy(output, target, weight=weight, ignore_index=ignore_index, label_smoothing=smoothing)
    assert mean_of(objective, output, (None, target)) == pytest.approx(wanted.item(), rel=1e-14)
    assert mean_of(objective, output, {"x": 0, "labels": target}) == pytest.approx(wanted.item(), rel=1e-14)


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["", "weights"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("more", [(), (4, 2)], ids=["classes", "pixels"])
def test_class_probabilities_are_torchs_mean(weight, smoothing, more):
    output = torch.randn(7, 3, *more, dtype=torch.float64)
    target = torch.randn(7, 3, *more, dtype=torch.float64).softmax(1)
    objective = ak.classification(class_weight=weight, label_smoothing=smoothing)
    wanted = F.cross_entropy(output, target, weight=weight, label_smoothing=smoothing).item()
    assert mean_of(objective, output, (None, target)) == pytest.approx(wanted, rel=1e-14)


def test_one_example_without_a_batch_dimension():
    output, probabilities = torch.randn(3, dtype=torch.float64), torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    for target in (torch.tensor(1), probabilities):
        wanted = F.cross_entropy(output, target).item()
        assert mean_of(ak.classification(), output, (None, target)) == pytest.approx(wanted, rel=1e-14)


def test_counts():
    target = torch.tensor([0, 2, -100, 1])
    assert ak.classification().count((None, target)) == 3
    assert type(ak.classification().count((None, target))) is int
    assert ak.classification(class_weight=WEIGHT).count((None, target)) == pytest.approx(4.7, rel=1e-15)
    assert ak.classification(class_weight=[1, 2, 4]).count((None, target)) == 7
    assert ak.classification(class_weight=WEIGHT.float()).count((None, target)) == pytest.approx(4.7, rel=1e-6)
    assert ak.regression().count((None, torch.zeros(4, 2))) == 8
    tokens = torch.tensor([[5, 6, 7, 8], [5, 6, -100, -100]])
    assert ak.next_token().count(tokens) == 4
    assert ak.next_token(shift=False).count((None, tokens)) == 6


def test_a_micro_batch_without_a_valid_target_adds_nothing():
    output = torch.randn(4, 3, requires_grad=True)
    ignored = (None, torch.full((4,), -100))
    loss = ak.classification(class_weight=WEIGHT).loss(output, ignored)
    loss.backward()
    assert loss.item() == 0
    assert not output.grad.any()
    assert ak.classification().count(ignored) == ak.classification(class_weight=WEIGHT).count(ignored) == 0
    assert ak.next_token().count(torch.full((2, 1), 3)) == 0  # a line of one token predicts nothing


def test_class_weights_are_taken_when_the_objective_is_made():
    weight = torch.tensor([1.0, 1.0])
    objective = ak.classification(class_weight=weight)
    weight.fill_(5.0)
    assert objective.count((None, torch.tensor([0, 1]))) == 2


@pytest.mark.parametrize("shift", [True, False])
def test_next_token_is_torchs_mean_over_valid_tokens(shift):
    scores, labels = torch.randn(3, 6, 9, dtype=torch.float64), torch.randint(0, 9, (3, 6))
    labels[1, 2:] = labels[2, 4:] = -100
    a, b = (scores[:, :-1], labels[:, 1:]) if shift else (scores, labels)
    wanted = F.cross_entropy(a.flatten(0, 1), b.flatten()).item()
    objective = ak.next_token(shift=shift)
    for output in (scores, SimpleNamespace(logits=scores)):
        assert mean_of(objective, output, (None, labels)) == pytest.approx(wanted, rel=1e-14)
    nested = ak.next_token(shift=shift, logits=lambda output: output["scores"])
    assert mean_of(nested, {"scores": scores}, {"labels": labels}) == pytest.approx(wanted, rel=1e-14)


def test_regression_is_torchs_mean_and_does_not_broadcast():
    output, target = torch.randn(4, 2, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
    assert mean_of(ak.regression(), output, (None, target)) == pytest.approx(F.mse_loss(output, target).item())
    with pytest.raises(ak.AccumkitError, match=r"outputs of shape \(4, 1\) against targets of shape \(4,\)"):
        ak.regression().loss(torch.zeros(4, 1), (None, torch.zeros(4)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_outputs_are_summed_in_float32(dtype):
    rows = 20_000  # their summed loss is above 65,504, the largest float16; bfloat16 counts in steps of 512 there
    output = torch.zeros(rows, 64, dtype=dtype)
    loss = ak.classification().loss(output, (None, torch.zeros(rows, dtype=torch.long)))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(rows * math.log(64), rel=1e-5)
    squared = ak.regression().loss(torch.full((rows, 2), 2.0, dtype=dtype), (None, torch.zeros(rows, 2)))
    assert squared.item() == rows * 2 * 4
    tokens = torch.zeros(100, 201, dtype=torch.long)
    loss = ak.next_token().loss(torch.zeros(100, 201, 64, dtype=dtype), tokens)
    assert loss.item() == pytest.approx(rows * math.log(64), rel=1e-5)


class Takes(nn.Module):
    def forward(self, *args, **kwargs):
        return args, kwargs


def test_what_forward_is_given():
    seen = ak.Objective(loss=lambda output, batch: output, count=len)
    assert seen.total(Takes(), (1, 2, 3)) == ((1, 2), {})
    assert seen.total(Takes(), [1, 2]) == ((1,), {})
    assert seen.total(Takes(), (1,)) == ((1,), {})
    assert seen.total(Takes(), {"x": 1, "mask": 2, "labels": 3}) == ((), {"x": 1, "mask": 2})
    assert seen.total(Takes(), 5) == ((5,), {})
    chosen = ak.Objective(loss=lambda output, batch: output, count=len, inputs=lambda batch: (batch["a"],))
    assert chosen.total(Takes(), {"a": 1, "b": 2}) == ((1,), {})
    whole = ak.Objective(total_loss=lambda model, batch: (model, batch), count=len)
    assert whole.total(3, 4) == (3, 4)
    packed = nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    assert seen.total(Takes(), packed)[0][0] is packed


def test_what_an_objective_needs():
    with pytest.raises(ak.AccumkitError, match="one of loss= and total_loss=; neither was given"):
        ak.Objective(count=len)
    with pytest.raises(ak.AccumkitError, match="one of loss= and total_loss=; both was given"):
        ak.Objective(loss=max, total_loss=max, count=len)
    with pytest.raises(ak.AccumkitError, match="needs count="):
        ak.Objective(loss=max)


def test_targets():
    assert target_of((1, 2, 3)) == 3
    assert target_of({"x": 1, "target": 2}) == 2
    assert target_of(7) == 7
    with pytest.raises(ak.AccumkitError, match=r"no target in a batch with the keys \['a', 'b'\]"):
        target_of({"b": 1, "a": 2})
