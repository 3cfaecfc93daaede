"""What train_epoch does besides: bits, clipping, schedules, per-update terms, gradients found and left, its log."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import big_batch as oracle
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import accumkit as ak

WEIGHT = torch.tensor([0.2, 1.0, 3.5], dtype=torch.float64)
OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_bit_for_bit_the_six_line_loop(dtype, weighted):
    objective = ak.classification(class_weight=WEIGHT if weighted else None)
    batches = oracle.labelled([5, 1, 3, 2, 7, 4, 2], dtype=dtype, ignored=0.2)
    one, two = oracle.mlp(dtype=dtype), oracle.mlp(dtype=dtype)
    optimizer = OPTIMIZERS["SGD"](one.parameters())
    for window in ak.windows(batches, 3, objective):
        optimizer.zero_grad()
        for batch in window:
            (objective.total(one, batch) / window.count).backward()
        optimizer.step()
    ak.train_epoch(two, batches, OPTIMIZERS["SGD"](two.parameters()), objective, accumulation_steps=3)
    assert torch.equal(oracle.flat(one.parameters()), oracle.flat(two.parameters()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bit_for_bit_the_sum_divided_at_the_end(dtype):
    objective = ak.classification(class_weight=WEIGHT)
    batches = oracle.labelled([5, 1, 3, 2, 7, 4, 2], dtype=dtype)
    one, two = oracle.mlp(dtype=dtype), oracle.mlp(dtype=dtype)
    optimizer = OPTIMIZERS["SGD"](one.parameters())
    for window in oracle.grouped(batches, 3):
        optimizer.zero_grad()
        for batch in window:
            objective.total(one, batch).backward()
        for p in one.parameters():
            p.grad /= sum(map(objective.count, window))
        optimizer.step()
    ak.train_epoch(
        two, batches, OPTIMIZERS["SGD"](two.parameters()), objective, accumulation_steps=3, buffered=False
    )  # fmt: skip
    assert torch.equal(oracle.flat(one.parameters()), oracle.flat(two.parameters()))


@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
def test_a_term_that_counts_once_an_update(buffered):
    batches = oracle.labelled([5, 1, 3, 2, 7])

    def decay(model):
        return sum(p.square().sum() for p in model.parameters())

    objective = ak.Objective(
        loss=lambda output, batch: F.cross_entropy(output, batch[1], reduction="sum"),
        count=lambda batch: len(batch[1]), per_update=decay,
    )  # fmt: skip
    model, big = oracle.mlp(), oracle.mlp()
    own, other = OPTIMIZERS["SGD"](model.parameters()), OPTIMIZERS["SGD"](big.parameters())
    with oracle.observed(model, own) as seen:
        log = ak.train_epoch(model, batches, own, objective, accumulation_steps=3, buffered=buffered)
    wanted = oracle.big_batches(
        big, other, oracle.grouped(batches, 3), lambda m, window: oracle.mean_cross_entropy(m, window) + decay(m)
    )
    oracle.assert_same(seen, wanted)
    assert log.updates[0].per_update == pytest.approx(decay(oracle.mlp()).item())


def test_clipping_once_an_update_of_the_whole_gradient():
    batches = oracle.labelled([4, 4, 4, 4, 3])
    model, big = oracle.mlp(), oracle.mlp()
    own, other = OPTIMIZERS["SGD"](model.parameters()), OPTIMIZERS["SGD"](big.parameters())
    with oracle.observed(model, own) as seen:
        log = ak.train_epoch(
            model, batches, own, ak.classification(), accumulation_steps=3, max_grad_norm=0.1
        )  # fmt: skip
    wanted = oracle.big_batches(big, other, oracle.grouped(batches, 3), oracle.mean_cross_entropy, max_grad_norm=0.1)
    oracle.assert_same(seen, wanted)
    assert all(u.grad_norm > 0.1 for u in log.updates)  # of the gradient before clipping
    assert seen.gradients[0].norm().item() == pytest.approx(0.1, rel=1e-4)


def test_scheduler_is_stepped_once_an_update():
    model = oracle.mlp()
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    rates = []
    optimizer.register_step_pre_hook(lambda opt, *_: rates.append(opt.param_groups[0]["lr"]))
    ak.train_epoch(model, oracle.labelled([4] * 7), optimizer, ak.classification(), accumulation_steps=3,
                   scheduler_per_update=scheduler)  # fmt: skip
    assert rates == [0.1, 0.05, 0.025]
    assert scheduler.last_epoch == 3


def test_gradients_found_before_and_left_after():
    model, fresh = oracle.mlp(), oracle.mlp()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    for m in (model, fresh):
        ak.train_epoch(m, oracle.labelled([4, 3]), OPTIMIZERS["SGD"](m.parameters()), ak.classification(),
                       accumulation_steps=2)  # fmt: skip
    assert torch.equal(oracle.flat(model.parameters()), oracle.flat(fresh.parameters()))
    assert all(p.grad is None for p in model.parameters())


def test_sparse_gradients_are_divided_too():
    tokens = torch.tensor([[1, 2], [3, 4], [5, 1]])
    models = [nn.Embedding(8, 3, sparse=sparse) for sparse in (True, False)]
    models[1].load_state_dict(models[0].state_dict())
    objective = ak.Objective(total_loss=lambda m, batch: m(batch).square().sum(), count=len)
    for model in models:
        ak.train_epoch(model, tokens.split(1), torch.optim.SGD(model.parameters(), lr=0.1), objective,
                       accumulation_steps=2, buffered=False)  # fmt: skip
    assert torch.allclose(models[0].weight, models[1].weight)


def test_a_log_reads_as_a_table():
    model = oracle.mlp()
    log = ak.train_epoch(model, oracle.labelled([4, 4, 4, 4, 3]), OPTIMIZERS["SGD"](model.parameters()),
                         ak.classification(class_weight=WEIGHT), accumulation_steps=3, max_grad_norm=1.0)  # fmt: skip
    lines = repr(log).splitlines()
    assert lines[0].split() == ["update", "micro-batches", "examples", "class", "weights", "loss", "grad", "norm"]
    assert lines[1].split()[:3] == ["1", "3", "12"]
    assert lines[3].startswith("2 updates, 5 micro-batches, 19 examples, ")
    assert log._repr_html_().count("<tr>") == 3


def test_one_is_no_plural():
    model = oracle.mlp()
    batches = oracle.labelled([1])
    log = ak.train_epoch(model, batches, OPTIMIZERS["SGD"](model.parameters()), ak.classification(),
                         accumulation_steps=1)  # fmt: skip
    assert repr(log).splitlines()[-1].startswith("1 update, 1 micro-batch, 1 example, mean loss ")
    assert repr(next(ak.windows(batches, 1, ak.classification()))) == "Window 1: 1 micro-batch, 1 example, count 1"
    log = dataclasses.replace(log, updates=log.updates * 21, dropped_micro_batches=1, dropped_examples=1)
    assert repr(log).splitlines()[-3] == "... 1 more update"
    assert repr(log).splitlines()[-1] == "dropped: 1 micro-batch, 1 example"


def test_away_from_the_host_losses_are_read_once_a_window(monkeypatch):
    """The branch that a GPU takes, run here: the same numbers, and one wait for each window."""
    reads = []
    real = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda t: (reads.append(t.shape), real(t))[1])
    monkeypatch.setattr(torch.Tensor, "item", lambda t: pytest.fail("waited for one micro-batch"))
    monkeypatch.setattr("accumkit.batches.mover", lambda device, first: None)
    monkeypatch.setattr("accumkit.loops.check_device", lambda model, device: SimpleNamespace(type="elsewhere"))
    objective = ak.Objective(loss=lambda out, batch: F.cross_entropy(out, batch[1], reduction="sum"),
                             count=lambda batch: len(batch[1]))  # fmt: skip
    batches, logs = oracle.labelled([4, 4, 4, 4, 3]), []
    for buffered in (True, False):
        model = oracle.mlp()
        logs.append(ak.train_epoch(model, batches, OPTIMIZERS["SGD"](model.parameters()), objective,
                                   accumulation_steps=3, buffered=buffered))  # fmt: skip
    assert reads == [(4,), (3,)] * 2  # the losses of a window, and whether its gradient is finite
    monkeypatch.undo()
    model = oracle.mlp()
    plain = ak.train_epoch(model, batches, OPTIMIZERS["SGD"](model.parameters()), objective, accumulation_steps=3)
    assert logs[0] == plain
