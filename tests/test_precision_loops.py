"""train_epoch in mixed precision: the big batch's updates within rounding, real skips, and sums kept in float32."""

from __future__ import annotations

import math

import big_batch as oracle
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import accumkit as ak
from accumkit import tasks
from accumkit.stream import provisional_divisor
from accumkit.studies.precision import bytes_of
from accumkit.sums import Sums

STEPS, MAX_NORM = 3, 0.25
SIZES = (4, 4, 4, 4, 3)  # windows of 12 and 7 examples
EPS = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}  # between 1 and the next number
BUFFERED = pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
LOW = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


def batches(sizes=SIZES, dtype=torch.float32):
    x, y = tasks.digits(sum(sizes), dtype).tensors
    return list(zip(x.split(list(sizes)), y.split(list(sizes)), strict=True))


def gradients(model):
    return [p.grad.detach().clone() for p in model.parameters()]


def seen_by(optimizer, model):
    """Note the gradients of each step."""
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(gradients(model)))
    return seen


def big_batch(window, dtype, max_norm=MAX_NORM):
    """The clipped gradient of the concatenated window, one backward, nothing scaled."""
    model = tasks.mlp()
    x, y = (torch.cat(parts) for parts in zip(*window, strict=True))
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        loss = F.cross_entropy(model(x).float(), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    return gradients(model)


def in_ulp(got, wanted, dtype):
    """Return the largest difference in ulp of the largest entry, and the difference in norm, in units of eps."""
    largest = wanted.abs().max().item()
    ulp = EPS[dtype] * 2.0 ** math.floor(math.log2(largest))
    return (got - wanted).abs().max().item() / ulp, ((got - wanted).norm() / wanted.norm()).item() / EPS[dtype]


# measured: 0.13 and 0.13 at most (0.25 and 0.15 buffered or not) against the same autocast; against float32 0.5 and
# 0.5 in float16, 4 and 1.1 in bfloat16, whose range is wide and whose digits are few
@LOW
@BUFFERED
@pytest.mark.parametrize("against", ["the same autocast", "float32"])
def test_scaled_and_clipped_is_unscaled_clipping_of_the_big_batch(dtype, buffered, against, capsys):
    bounds = (2.0, 1.0) if dtype == torch.float16 or against != "float32" else (8.0, 2.0)
    worst = [0.0, 0.0]
    data = batches()
    for window in (data[:3], data[3:]):  # from the same parameters: what a step does is not in question here
        model = tasks.mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen = seen_by(optimizer, model)
        scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
        log = ak.train_epoch(model, window, optimizer, ak.classification(), accumulation_steps=STEPS, scaler=scaler,
                             autocast_dtype=dtype, max_grad_norm=MAX_NORM, buffered=buffered)  # fmt: skip
        assert log.updates[0].grad_norm > 2 * MAX_NORM, "else clipping would not be tried"
        wanted = big_batch(window, dtype if against == "the same autocast" else None)
        for got, right in zip(seen[0], wanted, strict=True):
            for i, off in enumerate(in_ulp(got, right, dtype)):
                worst[i] = max(worst[i], off)
    with capsys.disabled():
        how = f"{dtype}, {'buffered' if buffered else 'unbuffered'}, against {against}"
        print(f"\n{how}: at most {worst[0]:.2f} ulp of a tensor's largest entry, {worst[1]:.2f} eps in norm", end="")
    assert worst[0] <= bounds[0]
    assert worst[1] <= bounds[1]


def test_the_comparison_can_fail():
    wanted = big_batch(batches()[:3], None)
    off = in_ulp(wanted[0] * (4 / 3), wanted[0], torch.float16)
    assert off[0] > 100
    assert off[1] > 100


@BUFFERED
@pytest.mark.parametrize("fused", [False, True], ids=["for-loop", "fused"])
def test_a_window_with_a_real_overflow_is_skipped_and_nothing_moves(buffered, fused):
    model = tasks.mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=9)
    data = batches((4,) * 9)
    data[4] = (data[4][0] * 255, data[4][1])  # pixels that nobody divided: finite loss, gradients beyond 65,504

    def train(part):
        return ak.train_epoch(model, part, optimizer, ak.classification(), accumulation_steps=3, scaler=scaler,
                              scheduler_per_update=scheduler, autocast_dtype=torch.float16, max_grad_norm=1.0,
                              buffered=buffered)  # fmt: skip

    def state():
        held = [v.clone() for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
        return [p.detach().clone() for p in model.parameters()], held, scheduler.last_epoch, scheduler.get_last_lr()

    train(data[:3])
    before = state()
    assert before[2] == 1
    log = train(data[3:6])
    after = state()
    assert [u.skipped for u in log.updates] == [True]
    assert math.isfinite(log.updates[0].loss)
    assert not math.isfinite(log.updates[0].grad_norm)
    assert all(map(torch.equal, before[0], after[0]))
    assert all(map(torch.equal, before[1], after[1]))
    assert before[2:] == after[2:]
    assert scaler.get_scale() == 32768.0
    log = train(data[6:])
    assert [u.skipped for u in log.updates] == [False]
    assert state()[2] == 2
    assert all(s["step"].item() == 2 for s in optimizer.state.values())


# sums kept beside .grad
@LOW
@BUFFERED
@pytest.mark.parametrize("max_norm", [None, 0.1])
def test_sums_in_float32_are_exact_to_one_rounding(dtype, buffered, max_norm):
    data = batches((4,) * 64, dtype)
    model, twin = tasks.mlp().to(dtype), tasks.mlp().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = seen_by(optimizer, model)
    ak.train_epoch(model, data, optimizer, ak.classification(), accumulation_steps=64, accumulate_dtype=torch.float32,
                   max_grad_norm=max_norm, buffered=buffered)  # fmt: skip
    exact = [torch.zeros_like(p, dtype=torch.float64) for p in twin.parameters()]
    divisor = 256 if buffered else provisional_divisor(4, 64)  # in backward; the rest of it comes at the end
    for x, y in data:
        given = torch.autograd.grad(F.cross_entropy(twin(x).float(), y, reduction="sum"), list(twin.parameters()),
                                    torch.tensor(1 / divisor))  # fmt: skip
        exact = [e + g.double() * (divisor / 256) for e, g in zip(exact, given, strict=True)]
    if max_norm:
        norm = torch.stack([e.norm() for e in exact]).norm()
        exact = [e * min(1.0, max_norm / (norm + 1e-6)) for e in exact]
    for got, right in zip(seen[0], exact, strict=True):
        assert got.dtype == dtype
        # one rounding moves a number by half the distance to the next at most; float32's own are a 10,000th of that
        half = EPS[dtype] / 2 * 2.0 ** torch.log2(right.abs()).floor()
        smallest = torch.finfo(dtype).smallest_normal * EPS[dtype]  # of float16's subnormal numbers
        assert ((got.double() - right).abs() <= half * (1 + 1e-3) + smallest).all()


@LOW
def test_sums_in_grad_are_not(dtype):
    errors = {}
    for accumulate_dtype in (None, torch.float32):
        data = batches((4,) * 64, dtype)
        model, twin = tasks.mlp().to(dtype), tasks.mlp().to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen = seen_by(optimizer, model)
        ak.train_epoch(model, data, optimizer, ak.classification(), accumulation_steps=64,
                       accumulate_dtype=accumulate_dtype)  # fmt: skip
        exact = 0
        for x, y in data:
            given = torch.autograd.grad(F.cross_entropy(twin(x).float(), y, reduction="sum"), list(twin.parameters()),
                                        torch.tensor(1 / 256))  # fmt: skip
            exact = exact + oracle.flat(given).double()
        errors[accumulate_dtype] = oracle.error(oracle.flat(seen[0]).double(), exact)
    assert errors[torch.float32] < EPS[dtype] / 3
    assert errors[None] > 3 * errors[torch.float32]


def test_a_term_once_an_update_is_in_the_sums():
    objective = ak.Objective(loss=lambda output, batch: F.cross_entropy(output.float(), batch[1], reduction="sum"),
                             count=lambda batch: len(batch[1]),
                             per_update=lambda model: sum(p.float().square().sum() for p in model.parameters())
                             )  # fmt: skip
    seen = {}
    for given in (None, torch.float32):
        model = tasks.mlp().bfloat16()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        notes = seen_by(optimizer, model)
        log = ak.train_epoch(model, batches(dtype=torch.bfloat16), optimizer, objective, accumulation_steps=5,
                             accumulate_dtype=given)  # fmt: skip
        seen[given] = oracle.flat(notes[0]).double()
        assert log.updates[0].per_update > 0
    assert oracle.error(seen[None], seen[torch.float32]) < 0.01


@pytest.mark.parametrize("max_norm", [None, 0.05])
def test_float64_sums_of_a_float32_model_are_those_of_grad(max_norm):
    results = []
    for given in (None, torch.float32, torch.float64):
        model = tasks.mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        log = ak.train_epoch(model, batches(), optimizer, ak.classification(), accumulation_steps=3,
                             accumulate_dtype=given, max_grad_norm=max_norm)  # fmt: skip
        results.append((oracle.flat(model.parameters()).double(), log))
    assert torch.equal(results[0][0], results[1][0]), "float32 sums beside float32 gradients are the same additions"
    assert oracle.error(results[2][0], results[0][0]) < 1e-6
    assert [u.grad_norm for u in results[0][1].updates] == [u.grad_norm for u in results[1][1].updates]


def test_the_price_is_four_bytes_a_parameter():
    model = tasks.mlp().bfloat16()
    sums = Sums(list(model.parameters()), torch.float32)
    for _ in range(3):
        model(torch.ones(2, 64, dtype=torch.bfloat16)).sum().backward()
        sums.take()
        assert all(p.grad is None for p in model.parameters())
    assert sums.nbytes == 4 * 4810 == bytes_of(model)[1]
    assert bytes_of(model)[0] == 2 * 4810
    sums.put_back()
    assert sums.nbytes == 0
    assert {p.grad.dtype for p in model.parameters()} == {torch.bfloat16}


def test_a_scaler_and_sums_go_together():
    seen = []
    for given in (None, torch.float32):
        model = tasks.mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        notes = seen_by(optimizer, model)
        ak.train_epoch(model, batches(), optimizer, ak.classification(), accumulation_steps=3, max_grad_norm=0.2,
                       accumulate_dtype=given, scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))  # fmt: skip
        seen.append(oracle.flat(notes[1]))
    assert torch.equal(*seen)


def test_a_window_that_fails_leaves_nothing_in_the_sums():
    data = batches((4,) * 6, torch.bfloat16)
    data[4][0][0] = float("nan")
    model, twin = tasks.mlp().bfloat16(), tasks.mlp().bfloat16()
    options = {"accumulation_steps": 3, "accumulate_dtype": torch.float32}
    with pytest.raises(ak.AccumkitError, match="update 2, micro-batch 2: its loss is nan"):
        ak.train_epoch(model, data, torch.optim.SGD(model.parameters(), lr=0.1), ak.classification(), **options)
    ak.train_epoch(twin, data[:3], torch.optim.SGD(twin.parameters(), lr=0.1), ak.classification(), **options)
    assert torch.equal(oracle.flat(model.parameters()), oracle.flat(twin.parameters()))
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("float32", "accumulate_dtype='float32': give the type"),
        (torch.int32, "accumulate_dtype=torch.int32: give the type"),
        (torch.bfloat16, "cannot hold what a parameter of torch.float32 can"),
        (torch.float16, "cannot hold what a parameter of torch.float32 can"),
    ],
)
def test_types_that_cannot_work(given, says):
    model = tasks.mlp()
    with pytest.raises(ak.AccumkitError, match=says):
        ak.train_epoch(model, batches(), torch.optim.SGD(model.parameters(), lr=0.1), ak.classification(),
                       accumulation_steps=2, accumulate_dtype=given)  # fmt: skip
    model = model.half()
    with pytest.raises(ak.AccumkitError, match=r"a parameter of torch\.float16"):
        ak.train_epoch(model, batches(), torch.optim.SGD(model.parameters(), lr=0.1), ak.classification(),
                       accumulation_steps=2, accumulate_dtype=torch.bfloat16)  # fmt: skip


@pytest.mark.parametrize("max_norm", [None, 0.2, 50.0, float("inf")])
@BUFFERED
@LOW
def test_watched_it_is_the_big_batch(dtype, buffered, max_norm):
    model = tasks.mlp(hidden=16).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with ak.watch(model, ak.classification(), accumulation_steps=16) as trace:
        ak.train_epoch(model, batches((4,) * 19, dtype), optimizer, ak.classification(), accumulation_steps=16,
                       accumulate_dtype=torch.float32, max_grad_norm=max_norm, buffered=buffered)  # fmt: skip
    verdict = ak.audit(trace)
    assert verdict.ok, verdict
    assert [u.kept_aside for u in trace.updates] == [True, True]
    if max_norm == 0.2:
        for update in trace.updates:
            assert update.clip_factor == pytest.approx(update.expected_clip_factor, rel=2e-3)
            assert update.clip_factor < 0.9
