"""A loop whose loss is not quite the declared objective: then the objective is in doubt, and no fault is made up."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import accumkit as ak

LACKS = "not those of the declared objective"


def squares(factor):
    """Return the squared parameters' sum, times a factor, as a function of the model."""
    return lambda model: factor * sum((p**2).sum() for p in model.parameters())


def absolutes(factor):
    """Return the parameters' absolute sum, times a factor, as a function of the model."""
    return lambda model: factor * sum(p.abs().sum() for p in model.parameters())


def verdict(term=None, smoothing=0.0, examples=64, weights=(1, 1, 1, 1), objective=None, seed=0):
    """Watch a loop over windows of four means, and audit it."""
    torch.manual_seed(seed)
    inputs, labels = torch.randn(examples, 5), torch.randint(0, 3, (examples,))
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ak.watch(model, objective or ak.classification(), accumulation_steps=4) as trace:
        for i, (x, y) in enumerate(DataLoader(TensorDataset(inputs, labels), batch_size=8)):
            loss = F.cross_entropy(model(x), y, label_smoothing=smoothing)
            loss = loss + term(model) if term else loss
            (loss * weights[i % 4] / 4).backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
    return ak.audit(trace)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "how",
    [{"term": squares(1e-2)}, {"term": squares(1e-3)}, {"term": absolutes(1e-3)}, {"smoothing": 0.01}],
    ids=["squares", "few squares", "absolutes", "smoothing"],
)
def test_a_small_term_that_is_not_declared_is_a_question_and_no_fault(how, seed):
    said = verdict(**how, seed=seed)
    assert said.status == "cannot tell" and not said.findings
    assert LACKS in said.reason and "lack a term" in said.reason
    assert "no rule" not in said.reason and "something else" not in said.reason


def test_the_same_term_declared_is_equivalent():
    declared = replace(ak.classification(), per_update=squares(1e-3))
    assert verdict(squares(1e-3), objective=declared).ok


@pytest.mark.parametrize("weight", [1.005, 1.01, 1.5])
def test_unequal_weights_of_the_declared_objective_stay_a_fault(weight):
    said = verdict(weights=(1, weight, 1, 1))
    assert said.status == "not equivalent" and "no rule" in said.reason and LACKS not in said.reason


def test_large_unequal_weights_beside_a_small_term_stay_a_fault():
    assert verdict(squares(1e-3), weights=(1, 1.5, 1, 1)).status == "not equivalent"


@pytest.mark.parametrize("how", [{"smoothing": 0.1}, {"term": squares(1e-2)}], ids=["smoothing", "squares"])
def test_a_finding_does_not_hide_that_the_objective_is_another_one(how):
    said = verdict(**how, examples=88)
    assert said.status == "not equivalent" and [f.pitfall for f in said.findings] == ["tail-dropped"]
    assert LACKS in said.reason and "measured with that objective" in said.reason


def test_a_finding_beside_the_right_objective_says_nothing_of_it():
    said = verdict(examples=88)
    assert [f.pitfall for f in said.findings] == ["tail-dropped"] and LACKS not in said.reason
