"""The main promises of the loops, on a CUDA device: ``pytest -m cuda``; under three minutes, one table at the end."""

from __future__ import annotations

import math

import big_batch as oracle
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import accumkit as ak
from accumkit import tasks
from accumkit.studies import precision, table

pytestmark = pytest.mark.cuda
EPS = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
FOUND: list[tuple[str, str]] = []  # (what, measured), printed once at the end


@pytest.fixture(scope="module", autouse=True)
def printed(request):
    yield
    if FOUND:
        capture = request.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            name = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
            print("\n" + table.plain(("on " + name, "measured"), FOUND))


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


def digits(count, sizes=4):
    images, labels = tasks.digits(count).tensors
    return list(zip(images.split(sizes), labels.split(sizes), strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@BUFFERED
def test_scaled_and_clipped_is_unscaled_clipping_of_the_big_batch(dtype, buffered):
    """Under the same autocast: per tensor, in ulp of its largest entry and in norm."""
    data, worst = digits(19), [0.0, 0.0]
    for window in (data[:3], data[3:]):
        model, big = tasks.mlp().cuda(), tasks.mlp().cuda()
        optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), []
        optimizer.register_step_pre_hook(lambda *_, m=model, s=seen: s.append([p.grad.clone() for p in m.parameters()]))
        scaler = torch.amp.GradScaler("cuda", init_scale=4096.0)
        ak.train_epoch(model, window, optimizer, ak.classification(), accumulation_steps=3, scaler=scaler,
                       autocast_dtype=dtype, max_grad_norm=0.25, buffered=buffered)  # fmt: skip
        x, y = (torch.cat(parts).cuda() for parts in zip(*window, strict=True))
        with torch.autocast("cuda", dtype=dtype):
            output = big(x)
        nn.functional.cross_entropy(output.float(), y).backward()
        nn.utils.clip_grad_norm_(big.parameters(), 0.25)
        for got, right in zip(seen[0], (p.grad for p in big.parameters()), strict=True):
            ulp = EPS[dtype] * 2.0 ** math.floor(math.log2(right.abs().max().item()))
            worst[0] = max(worst[0], (got - right).abs().max().item() / ulp)
            worst[1] = max(worst[1], oracle.error(got, right) / EPS[dtype])
    FOUND.append((f"{dtype} autocast against the big batch, {'' if buffered else 'un'}buffered",
                  f"{worst[0]:.2f} ulp of the largest entry, {worst[1]:.2f} eps in norm"))  # fmt: skip
    assert worst[0] <= 2.0
    assert worst[1] <= 1.0


@pytest.mark.parametrize("fused", [False, True], ids=["for-loop", "fused"])
def test_a_real_overflow_is_skipped_and_nothing_moves(fused):
    result = precision.overflow(2, fused=fused, device="cuda")
    FOUND.append((f"overflow, AdamW {'fused' if fused else 'plain'}",
                  f"scale {result.scale_before:,.0f} to {result.scale_after:,.0f}, "
                  f"step hooks {'ran' if result.hooks else 'did not run'}"))  # fmt: skip
    assert [count > 0 for count in result.spoiled] == [False, True, True, True]
    assert result.skipped
    assert not result.schedule_moved
    assert result.scale_after == result.scale_before / 2
    assert precision.several(device="cuda") == precision.Several((False, True), 65536.0, 32768.0)


def test_the_table_of_24_orders_is_that_of_the_cpu():
    here, there = precision.orders(device="cuda", windows=2), precision.orders(windows=2)
    for order, other in zip(here.rows, there.rows, strict=True):
        assert (order.kind, order.refused_at) == (other.kind, other.refused_at)
        for window, same in zip(order.windows, other.windows, strict=True):
            assert window.ratio == pytest.approx(same.ratio, rel=1e-6)
    FOUND.append(("24 orders", f"{len(here.of('refused'))} refused at once, {len(here.of('right'))} right"))


def test_clip_before_unscale_is_named():
    model = tasks.mlp().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=65536.0)
    with ak.watch(model, ak.classification(), accumulation_steps=3) as trace:
        for window in ak.windows(digits(19), 3, ak.classification(), device="cuda"):
            for x, y in window:
                scaler.scale(nn.functional.cross_entropy(model(x), y, reduction="sum") / window.count).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert [f.pitfall for f in ak.audit(trace).findings] == ["clip-before-unscale"]
    for update in trace.updates:
        factor = min(1.0, 1.0 / (65536.0 * update.grad_norm))
        assert update.clip_factor == pytest.approx(factor, rel=1e-3)
    FOUND.append(("clip before unscale, update 1", f"multiplied by {trace.updates[0].clip_factor:.4g}"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_sums(dtype):
    result = precision.sums(dtype, at=(2, 16, 256), device="cuda")
    errors = [row.in_grad for row in result.rows]
    FOUND.append((f"sum of 2, 16 and 256 gradients in {dtype} off by", ", ".join(f"{e:.1e}" for e in errors)))
    assert errors == sorted(errors)
    assert all(row.in_float32 < 1e-6 for row in result.rows)


def test_sums_beside_grad_cost_four_bytes_a_parameter_and_are_exact():
    """Peak memory of a window, with and without; and the sum that comes of it."""
    batches = [(torch.randn(4, 2048), torch.randint(0, 3, (4,))) for _ in range(16)]
    peaks, results = [], []
    for accumulate_dtype in (None, torch.float32):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2048, 4096), nn.Linear(4096, 3)).cuda().bfloat16()
        data = [(x.bfloat16(), y) for x, y in batches]
        seen: list[torch.Tensor] = []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.register_step_pre_hook(
            lambda *_, m=model, s=seen: s.append(oracle.flat(p.grad for p in m.parameters()))
        )
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        ak.train_epoch(model, data, optimizer, ak.classification(), accumulation_steps=16,
                       accumulate_dtype=accumulate_dtype)  # fmt: skip
        peaks.append(torch.cuda.max_memory_allocated() - before)
        results.append(seen[0].float())
    count = sum(p.numel() for p in model.parameters())
    extra = (peaks[1] - peaks[0]) / count
    FOUND.append(("float32 sums, extra bytes a parameter at the peak", f"{extra:.1f}"))
    FOUND.append(("sums in bfloat16 against float32, N = 16", f"{oracle.error(results[0], results[1]):.1e}"))
    assert extra < 6.5  # four for the sums, and two while they are put back
    assert 1e-3 < oracle.error(results[0], results[1]) < 2e-2


def test_peak_memory_of_a_window_does_not_grow_with_n():
    """Accumulating 16 micro-batches needs what 2 need, under autocast with a scaler and clipping."""
    model = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)).cuda()
    batches = [(torch.randn(256, 4096), torch.randint(0, 10, (256,))) for _ in range(16)]
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda")
    peaks = []
    for steps in (2, 2, 16):  # the first makes the optimizer's state
        torch.cuda.reset_peak_memory_stats()
        ak.train_epoch(model, batches, optimizer, ak.classification(), accumulation_steps=steps, scaler=scaler,
                       autocast_dtype=torch.float16, max_grad_norm=1.0)  # fmt: skip
        peaks.append(torch.cuda.max_memory_allocated())
    FOUND.append(("peak memory, N = 2 and N = 16", f"{peaks[1] / 2**20:.0f} and {peaks[2] / 2**20:.0f} MiB"))
    assert peaks[2] < peaks[1] + (1 << 20)
