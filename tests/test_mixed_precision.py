"""train_epoch with autocast and a scaler, on the CPU: torch.amp.GradScaler works there too."""

from __future__ import annotations

import big_batch as oracle
import pytest
import torch

import accumkit as ak

OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


def amp_epoch(scale: float, buffered: bool = True, max_grad_norm: float | None = 0.05, growth_interval: int = 1000):
    model = oracle.mlp(dtype=torch.float32)
    optimizer = OPTIMIZERS["AdamW"](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=growth_interval)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    with oracle.observed(model, optimizer) as seen:
        log = ak.train_epoch(
            model, oracle.labelled([4, 4, 2, 4, 3], dtype=torch.float32), optimizer, ak.classification(),
            accumulation_steps=3, scaler=scaler, scheduler_per_update=scheduler, autocast_dtype=torch.float16,
            max_grad_norm=max_grad_norm, buffered=buffered,
        )  # fmt: skip
    return model, optimizer, scaler, scheduler, log, seen


@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
def test_float16_with_a_scaler_clips_as_without_one(buffered):
    *_, log, seen = amp_epoch(scale=2.0**12, buffered=buffered)
    big = oracle.mlp(dtype=torch.float32)
    windows = oracle.grouped(oracle.labelled([4, 4, 2, 4, 3], dtype=torch.float32), 3)
    wanted = oracle.big_batches(
        big, OPTIMIZERS["AdamW"](big.parameters()), windows, oracle.mean_cross_entropy, max_grad_norm=0.05
    )
    assert not log.skipped
    for got, right in zip(seen.gradients, wanted.gradients, strict=True):
        assert oracle.error(got, right) < 5e-3  # float16 has 11 bits
        assert got.norm().item() == pytest.approx(0.05, rel=1e-3)


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
def test_a_skipped_update_touches_nothing(buffered, clip):
    model, optimizer, scaler, scheduler, log, seen = amp_epoch(scale=2.0**60, buffered=buffered, max_grad_norm=clip)
    assert [u.skipped for u in log.updates] == [True, True]
    assert not seen.gradients
    assert torch.equal(oracle.flat(model.parameters()), oracle.flat(oracle.mlp(dtype=torch.float32).parameters()))
    assert not optimizer.state
    assert scheduler.last_epoch == 0
    assert scaler.get_scale() == 2.0**58  # halved once an update, not once a micro-batch
    assert (log.skipped, len(log.updates), log.micro_batches) == (2, 2, 5)
    assert "2 updates (2 skipped)" in repr(log)


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_skipped_update_of_a_fused_optimizer(clip):
    model = oracle.mlp(dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)  # its step runs, and changes nothing
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    batches = oracle.labelled([4] * 3, dtype=torch.float32)
    log = ak.train_epoch(model, batches, optimizer, ak.classification(), accumulation_steps=3, max_grad_norm=clip,
                         scaler=torch.amp.GradScaler("cpu", init_scale=2.0**60), autocast_dtype=torch.float16,
                         scheduler_per_update=scheduler)  # fmt: skip
    assert log.updates[0].skipped
    assert torch.equal(oracle.flat(model.parameters()), oracle.flat(oracle.mlp(dtype=torch.float32).parameters()))
    assert scheduler.last_epoch == 0
    assert all(state["step"] == 0 for state in optimizer.state.values())


def test_scale_stays_for_a_whole_window():
    scales = []
    _, _, scaler, *_ = amp_epoch(scale=2.0**8, growth_interval=1)
    assert scaler.get_scale() == 2.0**10  # doubled after each of two updates
    model = oracle.mlp(dtype=torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=1)
    objective = ak.classification()
    noting = ak.Objective(
        total_loss=lambda m, batch: (scales.append(scaler.get_scale()), objective.total(m, batch))[1],
        count=objective.count,
    )
    ak.train_epoch(model, oracle.labelled([4] * 5, dtype=torch.float32), OPTIMIZERS["SGD"](model.parameters()), noting,
                   accumulation_steps=3, scaler=scaler)  # fmt: skip
    assert scales == [256.0] * 3 + [512.0] * 2


def test_a_nan_loss_with_a_scaler_is_a_skipped_update():
    batches = oracle.labelled([4, 4, 4, 4], dtype=torch.float32)
    batches[1][0][0, 0] = float("nan")
    model = oracle.mlp(dtype=torch.float32)
    log = ak.train_epoch(model, batches, OPTIMIZERS["SGD"](model.parameters()), ak.classification(),
                         accumulation_steps=2, scaler=torch.amp.GradScaler("cpu"))  # fmt: skip
    assert [u.skipped for u in log.updates] == [True, False]
    assert log.loss == log.updates[1].loss  # the true mean of what was finite
    assert torch.isfinite(oracle.flat(model.parameters())).all()
