"""What train_epoch trains and clears, and how it puts back: frozen parameters, late ones, odd buffers and numbers."""

from __future__ import annotations

import math
import re

import big_batch as oracle
import pytest
import torch
from refusals import OBJECTIVE, epoch, net, refused
from torch import nn

import accumkit as ak
from accumkit.safety import Undo
from accumkit.stream import LIKELY, provisional_divisor
from accumkit.sums import Sums

BUFFERED = pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
SCHEDULERS = torch.optim.lr_scheduler


def six_lines(model, optimizer, batches, scheduler=None, accumulation_steps=3):
    for window in ak.windows(batches, accumulation_steps, OBJECTIVE):
        optimizer.zero_grad()
        for batch in window:
            (OBJECTIVE.total(model, batch) / window.count).backward()
        optimizer.step()
        if scheduler:
            scheduler.step()


# Which parameters are trained


@BUFFERED
def test_a_frozen_layer_does_not_move_by_a_gradient_from_before(buffered):
    model = oracle.mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = oracle.labelled([4] * 6)
    OBJECTIVE.total(model, batches[0]).backward()
    optimizer.step()
    model[0].requires_grad_(False)
    before, found = model[0].weight.clone(), model[0].weight.grad
    with pytest.raises(ak.AccumkitError, match="update 1"):
        epoch(model, optimizer, [(batches[0][0], batches[0][1] + 99)], buffered=buffered)
    assert model[0].weight.grad is found, "an epoch that fails gives back what it set aside"
    epoch(model, optimizer, batches, buffered=buffered)
    assert torch.equal(model[0].weight, before)
    assert all(p.grad is None for p in model.parameters())


class Unfreeze:
    """Steps as a scheduler does, and at its second step lets the first layer train."""

    def __init__(self, model, optimizer, group):
        self.model, self.optimizer, self.group, self.steps = model, optimizer, group, 0

    def step(self):
        self.steps += 1
        if self.steps == 2 and self.group:
            self.optimizer.add_param_group({"params": list(self.model[0].parameters())})
        elif self.steps == 2:
            self.model[0].requires_grad_(True)


@BUFFERED
@pytest.mark.parametrize("group", [False, True], ids=["unfrozen", "add_param_group"])
@pytest.mark.parametrize("more", [{}, {"max_grad_norm": 1e9}, {"accumulate_dtype": torch.float64}], ids=str)
def test_parameters_that_start_to_train_between_updates(buffered, group, more):
    results = []
    for mine in (False, True):
        model = oracle.mlp()
        optimizer = torch.optim.SGD((model[2] if group else model).parameters(), lr=0.1)
        model[0].requires_grad_(group)
        scheduler, batches = Unfreeze(model, optimizer, group), oracle.labelled([4] * 20)
        if mine:
            epoch(model, optimizer, batches, scheduler_per_update=scheduler, buffered=buffered, **more)
        else:
            six_lines(model, optimizer, batches, scheduler)
        results.append(oracle.flat(model.parameters()))
    assert oracle.error(*results) < 1e-12


def test_parameters_added_in_the_middle_of_a_window_are_refused():
    model = oracle.mlp()
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)

    def batches():
        for i, batch in enumerate(oracle.labelled([4] * 3)):
            if i == 1:
                optimizer.add_param_group({"params": list(model[0].parameters())})
            yield batch

    before = oracle.flat(model.parameters())
    with pytest.raises(ak.AccumkitError, match=r"update 1: .* in the middle of its window.*between updates"):
        epoch(model, optimizer, batches(), buffered=False)
    assert torch.equal(oracle.flat(model.parameters()), before)


def test_frozen_float16_parameters_and_a_scaler_go_together():
    model = nn.Sequential(nn.Linear(5, 3), nn.Linear(2, 2).half().requires_grad_(False))
    model.forward = model[0].forward
    log = epoch(model, torch.optim.SGD(model.parameters(), lr=0.1), oracle.labelled([4] * 3, dtype=torch.float32),
                scaler=torch.amp.GradScaler("cpu", init_scale=8.0))  # fmt: skip
    assert log.skipped == 0


# Autocast around the epoch


@BUFFERED
@pytest.mark.parametrize("inner", [None, torch.bfloat16], ids=str)
def test_autocast_around_the_epoch_is_autocast_within(buffered, inner):
    results, batches = [], oracle.labelled([4] * 12, dtype=torch.float32)
    for outer in (False, True):
        model = oracle.mlp(dtype=torch.float32)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=outer):
            if outer:
                model(batches[0][0])  # leaves copies of weights in the cache, and the next line moves the weights
            with torch.no_grad():
                model[0].weight.mul_(2)
            log = epoch(model, optimizer, batches, autocast_dtype=inner if outer else torch.bfloat16,
                        buffered=buffered)  # fmt: skip
            if outer:
                now = model(batches[0][0]).float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            after = model(batches[0][0]).float()
        results.append((oracle.flat(model.parameters()), log.loss))
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]
    assert torch.equal(now, after), "after the epoch, too, forward sees the weights as they are"


# Sums and rounding


def test_sums_do_not_share_memory_with_grad():
    p = nn.Parameter(torch.zeros(3))
    held = torch.ones(3)
    p.grad = held
    sums = Sums([p], torch.float32)
    sums.take()
    held.fill_(100.0)  # as DDP with gradient_as_bucket_view writes its next gradient
    p.grad = held
    sums.take()
    sums.put_back()
    assert p.grad.tolist() == [101.0] * 3


@pytest.mark.parametrize("norm", [None, math.inf, 1e6])
def test_sums_that_do_not_fit_the_type_of_the_parameter(norm):
    model = nn.Linear(1, 1, bias=False).half()
    objective = ak.Objective(loss=lambda out, batch: out.float().sum(), count=lambda batch: 5e-5,
                             per_update=lambda m: (m.weight * 4e4).sum())  # fmt: skip
    data = [(torch.full((1, 1), 4.0).half(), torch.zeros(1)) for _ in range(4)]
    refused("update 1: the gradient of weight is not finite although the loss is.*too large for its precision", data,
            objective=objective, pair=(model, torch.optim.SGD(model.parameters(), lr=1.0)), accumulation_steps=4,
            max_grad_norm=norm, accumulate_dtype=torch.float32)  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "steps", "bound"),
    [(torch.float16, 10**5, 0.005), (torch.float16, 10**9, 0.005), (torch.float32, 10**44, 1e-6),
     (torch.float32, 10**400, 1e-6)],
    ids=["float16, 1e5", "float16, 1e9", "float32, 1e44", "float32, 1e400"],
)  # fmt: skip
def test_steps_far_above_what_the_data_has(dtype, steps, bound):
    moved = []
    for buffered in (True, False):
        model = oracle.mlp(dtype=dtype)
        before = oracle.flat(model.parameters()).float()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        epoch(model, optimizer, oracle.labelled([2] * 6, dtype=dtype), accumulation_steps=steps, buffered=buffered)
        moved.append(oracle.flat(model.parameters()).float() - before)
    assert oracle.error(moved[1], moved[0]) < bound
    assert provisional_divisor(4, steps) == 4 * LIKELY


# A loss that is not finite, with a scaler


@BUFFERED
@pytest.mark.parametrize("norm", [None, 1.0])
@pytest.mark.parametrize("broken", ["loss", "per_update"])
def test_a_loss_that_is_not_finite_with_a_gradient_that_is(buffered, norm, broken):
    infinite = torch.tensor(math.inf)
    objective = ak.Objective(
        loss=lambda out, batch: OBJECTIVE.loss(out, batch) + (infinite if broken == "loss" else 0),
        count=OBJECTIVE.count, per_update=lambda m: m[0].weight.sum() + (infinite if broken == "per_update" else 0),
    )  # fmt: skip
    model = oracle.mlp(dtype=torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    says = {"loss": "micro-batch 1: its loss is inf", "per_update": "the objective's per_update term is inf"}[broken]
    pair = model, torch.optim.SGD(model.parameters(), lr=0.1)
    batches = oracle.labelled([4] * 3, dtype=torch.float32)
    refused(f"update 1.*{says}", batches, objective=objective, pair=pair, scaler=scaler, max_grad_norm=norm,
            buffered=buffered)  # fmt: skip
    assert scaler.get_scale() == 64.0
    log = epoch(*pair, batches, scaler=scaler, max_grad_norm=norm, buffered=buffered)
    assert log.skipped == 0
    assert math.isfinite(log.loss)


# Putting back


class Buffered(nn.Module):
    """Interrupted in its second forward."""

    def __init__(self, mask, touch=lambda module: None):
        super().__init__()
        self.register_buffer("mask", mask)
        self.norm, self.head, self.touch, self.calls = nn.BatchNorm1d(5), nn.Linear(5, 3), touch, 0

    def forward(self, x):
        self.calls += 1
        self.touch(self)
        x = self.norm(x)
        if self.calls == 2:
            raise KeyboardInterrupt
        return self.head(x)


def inference_buffer():
    with torch.inference_mode():
        return torch.ones(3)


BUFFERS = {
    "expanded": (lambda: torch.ones(1, 3).expand(4, 3), lambda m: None),
    "expanded and written to": (lambda: torch.ones(1, 3).expand(4, 3), lambda m: m.mask[0].add_(1)),
    "made in inference mode": (inference_buffer, lambda m: None),
    "resized by forward": (lambda: torch.zeros(4), lambda m: m.mask.resize_(m.calls + 4).fill_(1)),
    "with NaN": (lambda: torch.full((3,), math.nan), lambda m: m.mask.fill_(1)),
    "sparse": (lambda: torch.eye(3).to_sparse(), lambda m: m.mask.zero_()),
    "of another type": (lambda: torch.ones(3), lambda m: setattr(m.mask, "data", torch.zeros(3, dtype=torch.float64))),
}


@BUFFERED
@pytest.mark.parametrize("name", BUFFERS)
def test_an_interrupt_beside_an_odd_buffer(name, buffered):
    make, touch = BUFFERS[name]
    model = Buffered(make(), touch)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    found = [p.grad for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(KeyboardInterrupt) as caught:
        epoch(model, optimizer, oracle.labelled([4] * 3, dtype=torch.float32), buffered=buffered)
    assert len(caught.value.__notes__) == 1
    assert "the model is as it was before update 1" in caught.value.__notes__[0]
    assert model.norm.num_batches_tracked == 0
    assert all(p.grad is g for p, g in zip(model.parameters(), found, strict=True))
    assert (model.mask.shape, model.mask.dtype) == (make().shape, make().dtype)
    assert torch.equal(model.mask.to_dense().nan_to_num(7.0), make().to_dense().nan_to_num(7.0))


def test_a_buffer_that_two_modules_share_stays_one():
    mask = torch.ones(1, 3).expand(4, 3)
    model = nn.ModuleList([nn.Module(), nn.Module()])
    for part in model:
        part.register_buffer("mask", mask)
    undo = Undo(model)
    undo.remember()
    mask[0].add_(1)
    assert undo.restore() == []
    assert model[0].mask is model[1].mask
    assert model[0].mask.eq(1).all()


class Guarded(nn.Module):
    """Lets nobody put a buffer in place again."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.head = nn.Linear(5, 3)

    def __setattr__(self, name, value):
        if name == "seen":
            raise TypeError("not to be set.")
        super().__setattr__(name, value)

    def forward(self, x):
        return self.head(x)


def test_what_cannot_be_put_back_is_said_and_hides_nothing():
    model = Guarded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def batches():
        yield oracle.labelled([4], dtype=torch.float32)[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        epoch(model, optimizer, batches(), buffered=False)
    assert "Not put back: the buffer seen of Guarded (not to be set)." in caught.value.__notes__
    with pytest.warns(UserWarning, match="the tail was dropped, but not put back: the buffer seen of Guarded"):
        log = epoch(model, optimizer, oracle.labelled([4] * 4, dtype=torch.float32), tail="drop", buffered=False)
    assert len(log.updates) == 1


def test_a_tail_is_dropped_beside_an_expanded_buffer():
    model = Buffered(torch.ones(1, 3).expand(4, 3))
    model.calls = 5
    log = epoch(model, torch.optim.SGD(model.parameters(), lr=0.1), oracle.labelled([4] * 5, dtype=torch.float32),
                tail="drop", buffered=False)  # fmt: skip
    assert (len(log.updates), log.dropped_micro_batches) == (1, 2)
    assert model.norm.num_batches_tracked == 3


def test_layers_that_wait_for_their_first_batch():
    lazy = nn.Sequential(nn.Linear(5, 3), nn.LazyBatchNorm1d())
    pair = lazy, torch.optim.SGD(lazy[0].parameters(), lr=0.1)
    with pytest.raises(ak.AccumkitError, match=r"wait for their first batch \(1.running_mean, .* on one batch"):
        epoch(*pair, oracle.labelled([4], dtype=torch.float32))
    lazy = nn.Sequential(nn.LazyLinear(3), nn.Tanh())  # these are made by the first forward, and trained
    epoch(lazy, torch.optim.SGD(lazy.parameters(), lr=0.1), oracle.labelled([4], dtype=torch.float32))


# Arguments and words


def test_arguments_are_refused_in_words():
    batches = oracle.labelled([4])
    refused("accumulation_steps=.*whole number of 1 or more", batches, accumulation_steps=torch.tensor(True))
    refused("max_grad_norm is a whole number that no float can hold", batches, max_grad_norm=10**400)
    refused('tail=.*give "step"', batches, tail=torch.tensor([1, 2]).numpy())
    refused("autocast_dtype=.*give torch.bfloat16", batches, autocast_dtype=torch.tensor([1, 2]).numpy())
    for given in ("no", None, 2, [False]):
        refused(rf"buffered={re.escape(repr(given))}: give True .* or False", batches, buffered=given)
    refused(r"scheduler_per_update is the class StepLR, not a scheduler; make one: StepLR\(optimizer, ", batches,
            scheduler_per_update=SCHEDULERS.StepLR)  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu", 0)])
def test_the_cpu_has_no_number(device):
    assert len(epoch(*net(), oracle.labelled([4]), device=device).updates) == 1


@pytest.mark.parametrize("where", ["loss", "per_update"])
def test_a_complex_loss(where):
    model = nn.Linear(5, 3, dtype=torch.complex64)
    objective = ak.Objective(loss=lambda out, batch: out.sum() if where == "loss" else out.sum().real,
                             count=OBJECTIVE.count, per_update=lambda m: m.weight.sum())  # fmt: skip
    refused("update 1, .*: the objective's loss is complex.*return a real one",
            [(x.to(torch.complex64), y) for x, y in oracle.labelled([4] * 3)], objective=objective,
            pair=(model, torch.optim.SGD(model.parameters(), lr=0.1)))  # fmt: skip


@pytest.mark.parametrize(
    ("at", "kept"), [(1, "Update 1 is kept: update 1 was made"), (2, "Updates 1 to 2 are kept: update 2 was made")]
)
def test_a_scheduler_that_raises_leaves_its_update_kept(at, kept):
    class Raises:
        steps = 0

        def step(self):
            self.steps += 1
            if self.steps == at:
                raise ZeroDivisionError

    with pytest.raises(ak.AccumkitError, match=kept) as caught:
        epoch(*net(), oracle.labelled([4] * 9), scheduler_per_update=Raises())
    assert "No update was made" not in str(caught.value)


def test_an_interrupt_while_gradients_are_set_aside_or_a_tail_is_put_back(monkeypatch):
    """The same line of the loop is cut off by hand, as an interrupt would."""
    for name, tail in (("remember", "step"), ("restore", "drop")):
        model, optimizer = net()
        found = [p.grad for p in model.parameters()]
        real, calls = getattr(Undo, name), []

        def cut(self, real=real, calls=calls):
            calls.append(1)
            if len(calls) == 1:
                raise KeyboardInterrupt
            return real(self)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Undo, name, cut)
            epoch(model, optimizer, oracle.labelled([4]), tail=tail, buffered=False)
        assert all(p.grad is g for p, g in zip(model.parameters(), found, strict=True))
        assert model.norm.num_batches_tracked == 0
