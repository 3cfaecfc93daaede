"""Training that has to fail, and a model that has to be as it was."""

from __future__ import annotations

import copy

import big_batch as oracle
import pytest
import torch
from torch import nn

import accumkit as ak

OBJECTIVE = ak.classification()


class Net(nn.Module):
    """With statistics that a forward changes in place, one that it replaces, and one that it fills."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(oracle.FEATURES), nn.Linear(oracle.FEATURES, oracle.CLASSES)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("largest", None)

    def forward(self, x):
        self.seen = self.seen + len(x)
        self.largest = x.max() if self.largest is None else torch.maximum(self.largest, x.max())
        return self.head(self.norm(x))


def net(seed: int = 0, gradients: bool = True) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Net().double()
    if gradients:
        for p in model.parameters():
            p.grad = torch.full_like(p, 7.0)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def state(model, optimizer, *more):
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    return copy.deepcopy([model.state_dict(), optimizer.state_dict(), gradients, *(m.state_dict() for m in more)])


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def epoch(model, optimizer, batches, objective=OBJECTIVE, accumulation_steps=3, **more):
    return ak.train_epoch(model, batches, optimizer, objective, accumulation_steps=accumulation_steps, **more)


def refused(match: str, *args, error=ak.AccumkitError, objective=OBJECTIVE, **more) -> BaseException:
    """Train with something bad in the first window: refused, and the model untouched, gradients found before too."""
    model, optimizer = more.pop("pair", None) or net()
    before = state(model, optimizer)
    with pytest.raises(error, match=match) as caught:
        epoch(model, optimizer, *args, objective=objective, **more)
    assert same(state(model, optimizer), before), "the model was changed"
    return caught.value


def stopped_in_update_2(
    match: str | None, batches, objective=OBJECTIVE, error=ak.AccumkitError, **more
) -> BaseException:
    """Train into something bad in the second window: the model is that of the first update alone."""
    pairs = net(), net()
    good = oracle.labelled([4] * 3)
    epoch(*pairs[1], good, objective, **more)
    with pytest.raises(error, match=match) as caught:
        epoch(*pairs[0], batches(good), objective, **more)
    assert same(state(*pairs[0]), state(*pairs[1])), "the model is not as it was after update 1"
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "Update 1 is kept; the model is as it was before update 2" in text
    return caught.value
