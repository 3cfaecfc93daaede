"""The main promises of the loops, on a CUDA device: ``pytest -m cuda``."""

from __future__ import annotations

import big_batch as oracle
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import accumkit as ak

pytestmark = pytest.mark.cuda
SHAPES = {"full windows": ([4] * 6, 3), "short tail": ([4, 4, 4, 4, 3], 3), "unequal": ([5, 1, 3, 2, 7, 4, 2], 3)}
BUFFERED = pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@BUFFERED
def test_updates_are_those_of_the_big_batch(shape, weighted, buffered):
    sizes, steps = SHAPES[shape]
    batches = oracle.labelled(sizes, ignored=0.2)
    weight = torch.tensor([0.2, 1.0, 3.5], dtype=torch.float64, device="cuda") if weighted else None
    model, big = oracle.mlp("cuda"), oracle.mlp("cuda")
    optimizer = sgd(model)
    with oracle.observed(model, optimizer) as seen:
        log = ak.train_epoch(model, batches, optimizer, ak.classification(class_weight=weight),
                             accumulation_steps=steps, max_grad_norm=1.0, buffered=buffered)  # fmt: skip
    wanted = oracle.big_batches(
        big, sgd(big), oracle.grouped(batches, steps),
        lambda m, window: oracle.mean_cross_entropy(m, window, weight=weight), max_grad_norm=1.0,
    )  # fmt: skip
    oracle.assert_same(seen, wanted)
    assert log.examples == sum(sizes)


@BUFFERED
def test_data_on_the_device_and_pinned_data(buffered):
    x, y = (torch.cat(parts) for parts in zip(*oracle.labelled([4, 4, 4, 4, 3]), strict=True))
    results = []
    for loader in (
        oracle.labelled([4, 4, 4, 4, 3]),
        [(a.cuda(), b.cuda()) for a, b in oracle.labelled([4, 4, 4, 4, 3])],
        DataLoader(TensorDataset(x, y), batch_size=4, pin_memory=True),
    ):
        model = oracle.mlp("cuda")
        log = ak.train_epoch(model, loader, sgd(model), ak.classification(), accumulation_steps=3, buffered=buffered)
        assert [u.examples for u in log.updates] == [12, 7]
        results.append(oracle.flat(model.parameters()))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_one_micro_batch_at_a_time_on_the_device():
    """A window of 8 needs no more memory at its peak than a window of 2."""
    model = nn.Linear(1 << 16, 3).cuda()
    batches = [(torch.randn(64, 1 << 16), torch.randint(0, 3, (64,))) for _ in range(8)]  # 16 MiB each
    peaks = []
    for steps in (2, 8):
        torch.cuda.reset_peak_memory_stats()
        ak.train_epoch(model, batches, torch.optim.SGD(model.parameters()), ak.classification(),
                       accumulation_steps=steps)  # fmt: skip
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] < peaks[0] + (1 << 20)


def test_a_pinned_pool_used_again_for_every_window_gives_the_same_numbers():
    data = [(torch.randn(256, 512), torch.randint(0, 3, (256,))) for _ in range(24)]

    def pooled():
        pool = [(torch.empty(256, 512).pin_memory(), torch.empty(256, dtype=torch.long).pin_memory()) for _ in range(3)]
        for i, (x, y) in enumerate(data):
            pool[i % 3][0].copy_(x)
            pool[i % 3][1].copy_(y)
            yield pool[i % 3]

    results = []
    for loader in (data, pooled()):
        torch.manual_seed(0)
        model = nn.Linear(512, 3).cuda()
        objective, optimizer = ak.classification(), sgd(model)
        for window in ak.windows(loader, 3, objective, device="cuda"):
            optimizer.zero_grad()
            for batch in window:
                (objective.total(model, batch) / window.count).backward()
            optimizer.step()
        results.append(model.weight.detach().clone())
    assert torch.allclose(*results)


@pytest.mark.parametrize("where", ["host", "pinned", "device"])
def test_a_reused_buffer_is_noticed(where):
    buffer = torch.empty(4, oracle.FEATURES, dtype=torch.float64)
    buffer = {"host": lambda: buffer, "pinned": buffer.pin_memory, "device": buffer.cuda}[where]()
    loader = ((buffer.copy_(x), y) for x, y in oracle.labelled([4] * 6))
    model = oracle.mlp("cuda")
    with pytest.raises(ak.AccumkitError, match="window 1: micro-batch 1 changed"):
        ak.train_epoch(model, loader, sgd(model), ak.classification(), accumulation_steps=3)


@pytest.mark.parametrize("fused", [False, True])
@BUFFERED
def test_float16_with_a_scaler(buffered, fused):
    batches = oracle.labelled([4, 4, 2, 4, 3], dtype=torch.float32)
    model, big = oracle.mlp("cuda", torch.float32), oracle.mlp("cuda", torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**60)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    before = oracle.flat(model.parameters())
    log = ak.train_epoch(model, batches, optimizer, ak.classification(), accumulation_steps=3, scaler=scaler,
                         scheduler_per_update=scheduler, autocast_dtype=torch.float16, max_grad_norm=0.05,
                         buffered=buffered)  # fmt: skip
    assert [u.skipped for u in log.updates] == [True, True]
    assert torch.equal(oracle.flat(model.parameters()), before)
    assert scheduler.last_epoch == 0
    scaler.update(2.0**12)
    with oracle.observed(model, optimizer) as seen:
        ak.train_epoch(model, batches, optimizer, ak.classification(), accumulation_steps=3, scaler=scaler,
                       autocast_dtype=torch.float16, max_grad_norm=0.05, buffered=buffered)  # fmt: skip
    wanted = oracle.big_batches(
        big, torch.optim.AdamW(big.parameters(), lr=0.01), oracle.grouped(batches, 3), oracle.mean_cross_entropy,
        max_grad_norm=0.05,
    )  # fmt: skip
    for got, right in zip(seen.gradients, wanted.gradients, strict=True):
        assert oracle.error(got, right) < 1e-2


def test_mixed_devices():
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3).cuda()).double()
    with pytest.raises(ak.AccumkitError, match=r"several devices \(cpu, cuda:0\)"):
        ak.train_epoch(model, oracle.labelled([4]), sgd(model), ak.classification(), accumulation_steps=1)
    model = oracle.mlp("cuda")
    with pytest.raises(ak.AccumkitError, match="device='cpu', but the model's parameters are on cuda:0"):
        ak.train_epoch(model, oracle.labelled([4]), sgd(model), ak.classification(), accumulation_steps=1, device="cpu")


@BUFFERED
def test_a_window_that_fails_leaves_the_model_as_it_was(buffered):
    batches = oracle.labelled([4] * 6)
    batches[4][0][0, 0] = float("nan")
    model, twin = oracle.mlp("cuda"), oracle.mlp("cuda")
    with pytest.raises(ak.AccumkitError, match="update 2, micro-batch 2: its loss is nan"):
        ak.train_epoch(model, batches, sgd(model), ak.classification(), accumulation_steps=3, buffered=buffered)
    ak.train_epoch(twin, batches[:3], sgd(twin), ak.classification(), accumulation_steps=3, buffered=buffered)
    assert torch.equal(oracle.flat(model.parameters()), oracle.flat(twin.parameters()))
