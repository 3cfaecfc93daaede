"""Watching unusual but real loops: closures, scalers, frameworks, checkpoints, reused memory, errors."""

from __future__ import annotations

import gc
import random
import sys
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset

import accumkit as ak
from accumkit.trace import watch
from accumkit.trace.meter import LOOKS
from tests.test_trace import assert_fair, loader, mlp, right, sgd, weights


def mean_steps(model, batches, step, n, zero):
    for i, (x, y) in enumerate(batches, 1):
        (F.cross_entropy(model(x), y) / n).backward()
        if i % n == 0:
            step()
            zero()


# closures
@pytest.mark.parametrize("keyword", [True, False])
def test_a_closure_is_part_of_its_window(keyword):
    model = mlp()
    optimizer = sgd(model)
    batches = list(loader(24))
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        for start in (0, 3):

            def closure(start=start):
                optimizer.zero_grad()
                losses = []
                for x, y in trace.batches(batches[start : start + 3]):
                    losses.append(F.cross_entropy(model(x), y) / 3)
                    losses[-1].backward()
                return sum(loss.item() for loss in losses)

            optimizer.step(closure=closure) if keyword else optimizer.step(closure)
    assert_fair(trace)
    assert [u.accumulated for u in trace.updates] == [3, 3]


def test_lbfgs_evaluates_its_window_several_times():
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")
    batches = list(loader(24))
    with watch(model, ak.classification(), accumulation_steps=6) as trace:

        def closure():
            optimizer.zero_grad()
            total = 0.0
            for x, y in trace.batches(batches):
                loss = F.cross_entropy(model(x), y) / 6
                loss.backward()
                total += loss.item()
            return total

        for _ in range(3):
            optimizer.step(closure)
    assert_fair(trace)
    assert [u.accumulated for u in trace.updates] == [6, 6, 6]
    assert trace.count_of("backward") > 18


def test_a_step_that_raised_is_forgotten():
    class Flaky(torch.optim.SGD):
        broken = True

        def step(self, closure=None):
            if self.broken:
                self.broken = False
                raise OSError("disk full")
            return super().step(closure)

    model = mlp()
    optimizer = Flaky(model.parameters(), lr=0.05)
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        with pytest.raises(OSError):
            right(model, loader(), optimizer, 3)
        optimizer.zero_grad()
        right(model, loader(), optimizer, 3)
    assert [u.accumulated for u in trace.updates] == [3, 2, 3, 2]
    assert weights(trace) == pytest.approx([1] * 10)


# mixed precision
def scaled_loop(model, batches, optimizer, scaler, n, clip=None, clip_first=False, autocast=None, divide=None):
    for i, (x, y) in enumerate(batches, 1):
        with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
            loss = F.cross_entropy(model(x), y) / (divide or n)
        scaler.scale(loss).backward()
        if i % n == 0:
            if clip and clip_first:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            if clip:
                scaler.unscale_(optimizer)
            if clip and not clip_first:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_weighs_nothing(clip, fused):
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        scaled_loop(model, loader(24, dtype=torch.float32), optimizer, scaler, 3, clip)
    assert_fair(trace, torch.float32)
    assert trace.count_of("step") == 2 and not any(u.skipped for u in trace.updates)
    if clip:
        assert all(u.clip_factor == pytest.approx(u.expected_clip_factor, rel=1e-5) for u in trace.updates)


def test_clipping_before_unscaling_shows_in_the_factor():
    model = mlp(torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        scaled_loop(model, loader(24, dtype=torch.float32), sgd(model), scaler, 3, 0.1, clip_first=True)
    for u in trace.updates:
        assert [m.weight for m in u.micro_batches] == pytest.approx([1] * 3, abs=1e-3)
        assert u.clip_factor == pytest.approx(0.1 / (65536 * u.grad_norm), rel=1e-3)
        assert u.expected_clip_factor == pytest.approx(min(1, 0.1 / u.grad_norm), rel=1e-3)
    kinds = [e.kind for e in trace.events if e.kind in ("clip", "unscale", "step")]
    assert kinds == ["clip", "unscale", "step"] * 2


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_is_seen(fused):
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        scaled_loop(model, loader(36, dtype=torch.float32), optimizer, scaler, 3, divide=1e-3)
    assert [u.skipped for u in trace.updates] == [True] * 3
    assert trace.count_of("skipped step") == 3 and trace.count_of("step") == 0
    assert "scaler" in trace.updates[0].why


def test_autocast_is_replayed_under_autocast():
    model = mlp(torch.float32)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        scaled_loop(model, loader(24, dtype=torch.float32), sgd(model), scaler, 3, autocast=torch.bfloat16)
    assert [u.why for u in trace.updates] == [None, None]
    assert max(abs(w - 1) for w in weights(trace)) < 1e-2


def test_bfloat16_parameters():
    model = mlp(torch.bfloat16)
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        mean_steps(model, loader(24, dtype=torch.bfloat16), sgd(model).step, 3, model.zero_grad)
    assert trace.precision == "bfloat16"
    assert max(abs(w - 1) for w in weights(trace)) < 2e-2


# frameworks and wrappers
def test_accelerate():
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed (extra: frameworks)")
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=4, cpu=True)
    model = mlp(torch.float32)
    model, optimizer, batches = accelerator.prepare(model, sgd(model), loader(20, dtype=torch.float32))
    with watch(model, ak.classification(), accumulation_steps=4) as trace:
        for x, y in batches:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
    assert trace.reasons == []
    assert weights(trace) == pytest.approx([1, 1, 1, 1, 0.25], abs=1e-3)  # its tail is divided by 4
    assert all(m.location.startswith("test_trace_odd.py") for m in trace.micro_batches)


def test_fabric():
    fabric = pytest.importorskip("lightning_fabric", reason="lightning-fabric is not installed (extra: frameworks)")
    runner = fabric.Fabric(accelerator="cpu", devices=1)
    plain = mlp(torch.float32)
    model, optimizer = runner.setup(plain, sgd(plain))
    batches = runner.setup_dataloaders(loader(24, dtype=torch.float32))
    with watch(plain, ak.classification(), accumulation_steps=3) as trace:
        for i, (x, y) in enumerate(batches, 1):
            runner.backward(F.cross_entropy(model(x), y) / 3)
            if i % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()
    assert_fair(trace, torch.float32)


def test_a_compiled_model():
    model = mlp(torch.float32)
    compiled = torch.compile(model, backend="eager")
    with watch(compiled, ak.classification(), accumulation_steps=3) as trace:
        mean_steps(compiled, loader(24, dtype=torch.float32), sgd(model).step, 3, model.zero_grad)
    assert_fair(trace, torch.float32)
    assert trace.count_of("forward") == 6


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_inside_the_model(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.rest = nn.Linear(8, 16).double(), mlp()[1:]

        def forward(self, x):
            return checkpoint(self.rest, self.first(x), use_reentrant=reentrant)

    model = Checkpointed()
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        right(model, loader(), sgd(model), 3)
    assert_fair(trace)
    assert trace.count_of("backward") == 10


def test_channels_last_and_keyword_arguments():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(32, 3)

        def forward(self, *, image):
            return self.head(F.relu(self.conv(image)).flatten(1))

    torch.manual_seed(0)
    model = Net().double().to(memory_format=torch.channels_last)
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        optimizer = sgd(model)
        for i, (x, y) in enumerate(loader(24), 1):
            (F.cross_entropy(model(image=x.view(-1, 1, 2, 4)), y) / 3).backward()
            if i % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()
    assert_fair(trace)


def test_batches_that_are_mappings():
    model = mlp()

    def collate(rows):
        return {"x": torch.stack([r[0] for r in rows]), "labels": torch.stack([r[1] for r in rows])}

    batches = loader(collate_fn=collate)
    optimizer = sgd(model)
    with watch(model, ak.classification(), accumulation_steps=5) as trace:
        for batch in batches:
            (F.cross_entropy(model(batch["x"]), batch["labels"], reduction="sum") / 19).backward()
        optimizer.step()
    assert_fair(trace)


def test_a_total_loss_from_the_batch():
    objective = ak.Objective(
        total_loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="sum"),
        count=lambda batch: len(batch[1]),
    )
    model = mlp()
    with watch(model, objective, accumulation_steps=3) as trace:
        right(model, loader(), sgd(model), 3)
    assert_fair(trace)


def test_no_loader_and_targets_unseen_says_how_to_show_them():
    model, batches = mlp(), list(loader())
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        right(model, batches, sgd(model), 3)
    assert all("trace.batches" in u.why for u in trace.updates)


class Stream(IterableDataset):
    def __iter__(self):
        g = torch.Generator().manual_seed(0)
        for _ in range(18):
            yield torch.randn(8, generator=g, dtype=torch.float64), torch.randint(0, 3, (), generator=g)


def test_a_stream_without_a_length():
    model = mlp()
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        ak.train_epoch(model, DataLoader(Stream(), batch_size=4), sgd(model), ak.classification(), accumulation_steps=3)
    assert_fair(trace)
    assert trace.loader_sizes == [-1] and trace.epoch_sizes == [5]


# memory used again
def reused(kind):
    x, y = torch.zeros(4, 8, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    array = x.numpy()
    for source, target in loader(24):
        if kind == "torch":
            x.copy_(source)
            y.copy_(target)
            yield x, y
        else:
            array[:] = source.numpy()
            yield torch.from_numpy(array), target


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_a_loader_that_reuses_its_buffer_does_not_spoil_the_window(kind):
    model = mlp()
    optimizer = sgd(model)
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        for _ in range(2):
            mean_steps(model, trace.batches(reused(kind)), optimizer.step, 3, optimizer.zero_grad)
    assert_fair(trace)


def test_memory_used_again_only_later_is_said():
    model = mlp()
    optimizer = sgd(model)
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        mean_steps(model, loader(24), optimizer.step, 3, optimizer.zero_grad)
        mean_steps(model, trace.batches(reused("torch")), optimizer.step, 3, optimizer.zero_grad)
    assert [u.why is None for u in trace.updates] == [True, True, False, True]
    assert "reuses one buffer" in trace.updates[2].why
    assert max(abs(w - 1) for w in weights(trace) if w is not None) < 1e-6


# nothing is changed
def digest(model, optimizer):
    def walk(value):
        if isinstance(value, torch.Tensor):
            return (value.dtype, tuple(value.stride()), value.detach().view(torch.uint8).numpy().tobytes()
                    if value.dim() else value.item())  # fmt: skip
        if isinstance(value, dict):
            return tuple((k, walk(v)) for k, v in value.items())
        return tuple(map(walk, value)) if isinstance(value, (list, tuple)) else value

    return (walk(model.state_dict()), walk(optimizer.state_dict()), torch.get_rng_state().numpy().tobytes(),
            random.getstate(), np.random.get_state()[1].tobytes())  # fmt: skip


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.05, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p),
    "adamw fused": lambda p: torch.optim.AdamW(p, fused=True),
    "adamw foreach": lambda p: torch.optim.AdamW(p, foreach=True),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("norm,drop,autocast", list(product([nn.BatchNorm2d, nn.GroupNorm], [0.0, 0.3], [False, True])))
def test_watching_changes_nothing_bit_for_bit(make, norm, drop, autocast):
    def run(watched):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        layer = norm(4) if norm is nn.BatchNorm2d else norm(2, 4)
        model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), layer, nn.ReLU(), nn.Dropout(drop), nn.Flatten(),
                              nn.Linear(32, 3)).to(memory_format=torch.channels_last)  # fmt: skip
        optimizer = make(model.parameters())
        batches = loader(19, dtype=torch.float32, shuffle=True)

        def train():
            for i, (x, y) in enumerate(batches, 1):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    loss = F.cross_entropy(model(x.view(-1, 1, 2, 4) + 0.1 * torch.randn(1) * random.random()), y)
                (loss / 3).backward()
                if i % 3 == 0 or i == len(batches):
                    optimizer.step()
                    optimizer.zero_grad()

        if watched:
            with watch(model, ak.classification(), accumulation_steps=3) as trace:
                train()
                train()
            assert [u.why for u in trace.updates] == [None] * 4
        else:
            train()
            train()
        return digest(model, optimizer)

    assert run(True) == run(False)


PLACES = [
    (torch.autograd, "_engine_run_backward"), (torch.optim.Optimizer, "zero_grad"), (nn.Module, "zero_grad"),
    (nn.Module, "__call__"), (torch.amp.GradScaler, "step"), (torch.amp.GradScaler, "unscale_"), (torch, "save"),
    (torch.nn.utils.clip_grad, "_clip_grads_with_norm_"), (DataLoader, "__iter__"),
    (torch.optim.lr_scheduler.LRScheduler, "step"), (torch.optim.swa_utils.AveragedModel, "update_parameters"),
    (ak.window, "fetch"),
]  # fmt: skip


def state():
    module = sys.modules[torch.optim.Optimizer.__module__]
    hooks = module._global_optimizer_pre_hooks, module._global_optimizer_post_hooks
    return [getattr(o, n) for o, n in PLACES], [len(h) for h in hooks], "__call__" in vars(nn.Sequential)


def test_nothing_stays_patched_in_whatever_order_watches_close():
    before = state()
    first, second = mlp(), mlp()
    one, two = watch(first, accumulation_steps=3), watch(second, ak.classification(), accumulation_steps=3)
    trace_one = one.__enter__()
    trace_two = two.__enter__()
    right(first, loader(), sgd(first), 3, epochs=1)
    one.__exit__(None, None, None)
    right(second, loader(), sgd(second), 3, epochs=1)
    two.__exit__(None, None, None)
    assert state() == before
    assert len(trace_one.updates) == len(trace_two.updates) == 2
    assert_fair(trace_two)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_in_the_loop_passes_and_leaves_nothing(error):
    before, model = state(), mlp()
    with pytest.raises(error), watch(model, ak.classification(), accumulation_steps=3) as trace:
        right(model, loader(), sgd(model), 3, epochs=1)
        F.cross_entropy(model(torch.zeros(2, 8, dtype=torch.float64)), torch.tensor([0, 1])).backward()
        raise error("stop")
    assert state() == before
    assert len(trace.updates) == 2 and len(trace.lost) == 1


@pytest.mark.parametrize("where", ["count", "loss"])
def test_an_objective_that_raises_never_reaches_the_loop(where):
    def broken(*_):
        raise KeyError("no such column")

    objective = ak.Objective(
        loss=broken if where == "loss" else lambda o, b: F.cross_entropy(o, b[1], reduction="sum"),
        count=broken if where == "count" else lambda b: len(b[1]),
    )
    model = mlp()
    with watch(model, objective, accumulation_steps=3) as trace:
        right(model, loader(), sgd(model), 3)
    assert len(trace.updates) == 4 and all(u.why for u in trace.updates)
    assert "KeyError" in " ".join([*trace.reasons, *(u.why for u in trace.updates)])


def test_a_model_that_cannot_be_copied_says_so():
    model = mlp()
    model.cache = model[0].weight * 2  # not a leaf: deepcopy refuses
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        right(model, loader(), sgd(model), 3)
    assert len(trace.updates) == 4 and all("raised RuntimeError" in u.why for u in trace.updates)


def test_a_readers_own_hooks_fire_once():
    model = mlp()
    calls = []
    model.register_forward_hook(lambda *_: calls.append("forward"))
    model[2].register_full_backward_hook(lambda *_: calls.append("backward"))
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        right(model, loader(), sgd(model), 3, epochs=1)
    assert calls.count("forward") == calls.count("backward") == 5
    assert_fair(trace)


@pytest.mark.parametrize("given", [0, -1, 2.5, True, "4", None])
def test_accumulation_steps_must_be_a_whole_number(given):
    with pytest.raises(ak.AccumkitError, match="accumulation_steps"), watch(mlp(), accumulation_steps=given):
        pass


def test_bad_arguments():
    frozen = mlp().requires_grad_(False)
    for model, kwargs, match in [
        ("model", {}, "nn.Module"), (mlp(), {"objective": F.cross_entropy}, "Objective"),
        (mlp(), {"tail": "keep"}, "tail"), (frozen, {}, "requires a gradient"),
    ]:  # fmt: skip
        with pytest.raises(ak.AccumkitError, match=match), watch(model, accumulation_steps=2, **kwargs):
            pass


# events and places
def test_every_kind_of_event_and_its_line():
    model = mlp(torch.float32)
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    average = torch.optim.swa_utils.AveragedModel(model)
    with watch(model, accumulation_steps=1) as trace:
        parts = [torch.optim.lr_scheduler.LinearLR(optimizer), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]
        sequence = torch.optim.lr_scheduler.SequentialLR(optimizer, parts, milestones=[2])
        for x, y in loader(4, dtype=torch.float32):
            loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            sequence.step()
            optimizer.zero_grad()
            average.update_parameters(model)
            torch.save(model.state_dict(), "/dev/null" if sys.platform != "win32" else "nul")
            with torch.no_grad():
                model(x)
    kinds = [e.kind for e in trace.events]
    assert kinds == ["batch", "forward", "backward", "unscale", "clip", "step", "scaler update", "scheduler step",
                     "scheduler step", "zero_grad", "ema update", "state saved", "evaluation"]  # fmt: skip
    lines = [int(e.location.split(":")[1]) for e in trace.events]
    assert [e.location.split(":")[0] for e in trace.events] == ["test_trace_odd.py"] * 13
    assert lines == sorted(lines)


def test_memory_a_micro_batch_is_some_hundred_bytes():
    import tracemalloc

    model = mlp(torch.float32)
    optimizer = sgd(model)
    x, y = torch.randn(4, 8), torch.randint(0, 3, (4,))

    def batches(n):
        for _ in range(n):
            yield x.clone(), y.clone()

    def run(n, objective):
        gc.collect()
        tracemalloc.start()
        with watch(model, objective, accumulation_steps=4) as trace:
            mean_steps(model, trace.batches(batches(n)), optimizer.step, 4, optimizer.zero_grad)
        gc.collect()
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return size, trace

    for objective in (None, ak.classification()):
        run(40, objective)
        small, kept = run(200, objective)
        large, also = run(1000, objective)
        assert len(kept.updates) == 50 and len(also.updates) == 250
        assert (large - small) / 800 < 1000  # bytes


# what a loop may do with its data and its model
def audited(model, objective, run, n=4):
    with watch(model, objective, accumulation_steps=n) as trace:
        run()
    return trace, ak.audit(trace)


class LossInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x, y):
        return F.cross_entropy(self.net(x), y, reduction="sum")


@pytest.mark.parametrize("divide,status", [(1, "equivalent"), (4, "not equivalent")])
@pytest.mark.parametrize("copy", [False, True])
def test_a_loop_that_splits_its_loaders_batches(divide, status, copy):
    model = LossInside()
    optimizer = sgd(model)
    objective = ak.Objective(loss=lambda output, batch: output, count=lambda batch: len(batch[1]))

    def run():
        for xs, ys in loader(32, 16):
            for x, y in zip(xs.chunk(4), ys.chunk(4), strict=True):
                (model(*(t.clone() if copy else t for t in (x, y))) / len(ys) / divide).backward()
            optimizer.step()
            optimizer.zero_grad()

    trace, verdict = audited(model, objective, run)
    assert verdict.status == status, verdict
    assert [m.count for m in trace.micro_batches] == [4] * 8
    assert weights(trace) == pytest.approx([1 / divide] * 8)


def test_a_model_that_insists_on_float32_is_measured():
    class Bytes(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(torch.float32)

        def forward(self, x):
            return self.net(x.float() * 1.0)

    model = Bytes()
    trace, verdict = audited(model, ak.classification(), lambda: right(model, loader(), sgd(model), 3), 3)
    assert verdict.ok, verdict
    assert [u.floor for u in trace.updates] == [None] * 4


def test_layers_left_out_at_random_are_replayed():
    class LayerDrop(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.extra = mlp(), nn.Linear(8, 8).double()

        def forward(self, x):
            return self.net(x + round(random.random()) * self.extra(x) * np.random.rand())

    random.seed(0)
    np.random.seed(0)
    model = LayerDrop()
    _, verdict = audited(model, ak.classification(), lambda: right(model, loader(40), sgd(model), 3, epochs=4), 3)
    assert verdict.status == "equivalent" and not verdict.findings, verdict


@pytest.mark.parametrize("steady", [True, False], ids=["on every batch", "on some batches"])
def test_an_objective_that_draws_leaves_every_generator_as_the_loop_has_it(steady):
    drawn = []

    def loss(output, batch):
        drawn.append(steady or len(drawn) % 3 == 0)
        noise = np.random.rand() + random.random() if drawn[-1] else 0.0
        return F.cross_entropy(output, batch[1], reduction="sum") * (1 + 0 * noise)

    def states():
        return random.getstate(), np.random.get_state()[1].tobytes(), np.random.get_state()[2]

    random.seed(0)
    np.random.seed(0)
    before, model = states(), mlp()
    with ak.watch(model, ak.Objective(loss=loss, count=lambda b: len(b[1])), accumulation_steps=2) as trace:
        right(model, loader(64), sgd(model), 2, epochs=3)
    assert states() == before
    assert len(trace.updates) > 2 * LOOKS and not any(update.why for update in trace.updates) and any(drawn)


def test_sequences_laid_time_first_are_not_coupled():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.rnn, self.head = nn.Embedding(11, 8), nn.GRU(8, 8), nn.Linear(8, 11)

        def forward(self, tokens):
            return self.head(self.rnn(self.embed(tokens))[0])

    torch.manual_seed(0)
    model = Tagger().double()
    lines = torch.randint(0, 11, (24, 7))
    batches = DataLoader(
        lines, batch_size=3, collate_fn=lambda rows: (torch.stack(rows, 1)[:-1], torch.stack(rows, 1)[1:])
    )
    objective = ak.Objective(
        loss=lambda z, b: F.cross_entropy(z.flatten(0, 1), b[1].flatten(), reduction="sum"),
        count=lambda b: b[1].numel(),
        unit="tokens",
    )
    optimizer = sgd(model)

    def run():
        for window in ak.windows(batches, 4, objective):
            optimizer.zero_grad()
            for batch in window:
                (objective.total(model, batch) / window.count).backward()
            optimizer.step()

    _, verdict = audited(model, objective, run)
    assert verdict.ok, verdict


def contrast(z):
    z = F.normalize(z)
    return F.cross_entropy(z @ z.T - 9 * torch.eye(len(z)), torch.arange(len(z)).roll(1), reduction="sum")


@pytest.mark.parametrize("drop", [0.0, 0.1])
def test_examples_that_act_on_each_other_are_found_with_dropout_too(drop):
    model = mlp(torch.float64, nn.Dropout(drop))
    objective = ak.Objective(loss=lambda z, b: contrast(z), count=lambda b: len(b[1]))
    optimizer = sgd(model)

    def run():
        for window in ak.windows(loader(32), 4, objective):
            optimizer.zero_grad()
            for batch in window:
                (objective.total(model, batch) / window.count).backward()
            optimizer.step()

    trace, verdict = audited(model, objective, run)
    assert trace.coupled == ["examples"] and not verdict.ok


@pytest.mark.parametrize("fault", ["never cleared", "divided again", "cleared before its step"])
def test_a_second_optimizers_own_faults_do_not_pass(fault):
    model = mlp()
    first, second = sgd(model[0]), sgd(model[2])

    def run():
        for i, (x, y) in enumerate(loader(48), 1):
            (F.cross_entropy(model(x), y) / 4).backward()
            if i % 4 == 0:
                first.step()
                if fault == "divided again":
                    for p in model[2].parameters():
                        p.grad /= 4
                if fault == "cleared before its step":
                    second.zero_grad()
                second.step()
                first.zero_grad()
                if fault != "never cleared":
                    second.zero_grad()

    _, verdict = audited(model, ak.classification(), run)
    assert not verdict.ok and verdict.reason, verdict


@pytest.mark.parametrize("call", ["forward", "parts"])
def test_a_forward_that_is_not_seen_is_said_and_not_accused(call):
    model = mlp()
    forward = {"forward": model.forward, "parts": lambda x: model[2](model[1](model[0](x)))}[call]
    optimizer = sgd(model)

    def run():
        for i, (x, y) in enumerate(loader(32), 1):
            (F.cross_entropy(forward(x), y) / 4).backward()
            if i % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()

    _, verdict = audited(model, ak.classification(), run)
    assert verdict.status == "cannot tell" and not verdict.findings
    assert "watch the module that the loop calls" in verdict.reason


def test_gradients_from_autograd_grad_are_not_stale():
    model = mlp()
    optimizer = sgd(model)

    def run():
        for window in ak.windows(loader(32), 4, ak.classification()):
            sums = [torch.zeros_like(p) for p in model.parameters()]
            for x, y in window:
                loss = F.cross_entropy(model(x), y, reduction="sum") / window.count
                for total, g in zip(sums, torch.autograd.grad(loss, list(model.parameters())), strict=True):
                    total += g
            for p, total in zip(model.parameters(), sums, strict=True):
                p.grad = total
            optimizer.step()

    _, verdict = audited(model, ak.classification(), run)
    assert verdict.status == "cannot tell" and not verdict.findings, verdict


CLIPS = {
    "by layer": lambda m: [torch.nn.utils.clip_grad_norm_(part.parameters(), 0.02) for part in (m[0], m[2])],
    "the head": lambda m: torch.nn.utils.clip_grad_norm_(m[2].parameters(), 0.02),
    "largest entry": lambda m: torch.nn.utils.clip_grad_norm_(m.parameters(), 0.02, norm_type=float("inf")),
    "sum of entries": lambda m: torch.nn.utils.clip_grad_norm_(m.parameters(), 0.02, norm_type=1),
}


@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS)
def test_odd_ways_to_clip_a_whole_window_are_right(clip):
    model = mlp()
    before_step = lambda: clip(model)  # noqa: E731
    run = lambda: right(model, loader(), sgd(model), 3, before_step=before_step)  # noqa: E731
    trace, verdict = audited(model, ak.classification(), run, 3)
    assert verdict.ok, verdict
    assert all(0 < u.clip_factor < 0.99 and u.expected_clip_factor is None for u in trace.updates)


def test_a_term_whose_backward_comes_first():
    penalty = lambda m: 0.01 * sum((p**2).sum() for p in m.parameters())  # noqa: E731
    plain = ak.classification()
    objective = ak.Objective(loss=plain.loss, count=plain.count, per_update=penalty)
    model = mlp()
    optimizer = sgd(model)

    def run():
        for window in ak.windows(loader(), 3, objective):
            optimizer.zero_grad()
            penalty(model).backward()
            for batch in window:
                (objective.total(model, batch) / window.count).backward()
            optimizer.step()

    trace, verdict = audited(model, objective, run, 3)
    assert verdict.ok, verdict
    assert [u.auxiliary for u in trace.updates] == pytest.approx([1, 1])


@pytest.mark.parametrize("divide,ok", [(3, True), (9, False)])
def test_a_readers_own_step_hook_is_part_of_the_loop(divide, ok):
    model = mlp()
    optimizer = sgd(model)

    def hook(*_):
        for p in model.parameters():
            p.grad /= divide

    optimizer.register_step_pre_hook(hook)

    def run():
        for i, (x, y) in enumerate(loader(48), 1):
            F.cross_entropy(model(x), y).backward()
            if i % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()

    _, verdict = audited(model, ak.classification(), run, 3)
    assert verdict.ok == ok, verdict


def test_a_pass_without_gradients_over_the_same_batches_first():
    model = mlp()
    optimizer = sgd(model)

    def run():
        for window in ak.windows(loader(), 3, ak.classification()):
            optimizer.zero_grad()
            for x, y in window:
                with torch.no_grad():
                    model(x)
                (F.cross_entropy(model(x), y, reduction="sum") / window.count).backward()
            optimizer.step()

    _, verdict = audited(model, ak.classification(), run, 3)
    assert verdict.ok, verdict


def test_features_of_a_frozen_backbone_are_matched_in_order():
    torch.manual_seed(0)
    model, backbone = mlp(), nn.Linear(8, 8).double().requires_grad_(False)
    optimizer = sgd(model)

    def run():
        for window in ak.windows(loader(), 3, ak.classification()):
            optimizer.zero_grad()
            for x, y in window:
                features = torch.tanh(backbone(x))
                (F.cross_entropy(model(features), y, reduction="sum") / window.count).backward()
            optimizer.step()

    _, verdict = audited(model, ak.classification(), run, 3)
    assert verdict.ok, verdict


def test_a_class_and_its_subclass_watched_at_once_record_once():
    class Special(nn.Sequential):
        pass

    base = mlp()
    special = Special(*mlp())
    with watch(base, accumulation_steps=3) as one, watch(special, accumulation_steps=3) as two:
        for model in (base, special):
            right(model, loader(), sgd(model), 3, epochs=1)
    assert [t.count_of("forward") for t in (one, two)] == [5, 5]


def test_training_in_another_thread_is_its_own():
    import threading

    def other():
        model = mlp(torch.float32)
        for _ in range(20):
            right(model, loader(dtype=torch.float32), sgd(model), 3, epochs=1)

    model = mlp()
    thread = threading.Thread(target=other)
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        thread.start()
        right(model, loader(), sgd(model), 3, epochs=10)
        thread.join()
    assert ak.audit(trace).ok


def test_replaced_parameters_and_lazy_ones_are_said():
    model = mlp()
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        right(model, loader(), sgd(model), 3, epochs=1)
        model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
        right(model, loader(), sgd(model), 3, epochs=1)
    assert any("replaced" in reason for reason in trace.reasons)
    with pytest.raises(ak.AccumkitError, match="lazy"), watch(nn.LazyLinear(3), accumulation_steps=1):
        pass
