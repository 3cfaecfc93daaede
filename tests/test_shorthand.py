"""Noting usual windows in short gives the same trace as hearing of every call, whatever a loop does in between."""

from __future__ import annotations

import contextlib
import copy
import importlib
import random
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import accumkit as ak
from accumkit.trace.recorder import Recorder

watching = importlib.import_module("accumkit.trace.watch")
FIELDS = ("events", "updates", "lost", "epoch_sizes", "fetched_sizes", "loader_sizes", "graphs_retained", "reasons",
          "coupled", "running", "scalers")  # fmt: skip


class Net(nn.Sequential):
    """Takes an argument by name, too."""

    def forward(self, x: torch.Tensor, times: float = 1.0) -> torch.Tensor:
        return super().forward(x) * times


class Run:
    """A loop made of steps, drawn from a seed; most are the usual ones, in the usual order."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        torch.manual_seed(seed)
        norm = nn.BatchNorm1d(6) if seed % 5 == 0 else nn.Identity()
        self.model = Net(nn.Linear(4, 6), norm, nn.ReLU(), nn.Linear(6, 3))
        halves = seed % 3 == 0  # two optimizers, each with a part
        parts = [self.model[0].parameters(), self.model[3].parameters()] if halves else [self.model.parameters()]
        self.optimizers = [torch.optim.SGD(part, lr=0.01, momentum=0.9) for part in parts]
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizers[0], 3)
        self.other = nn.Linear(4, 3)
        self.batches = [(torch.randn(2, 4), torch.randint(0, 3, (2,))) for _ in range(6 + seed % 2)]
        self.seconds = None
        self.trace, self.loader, self.batch, self.loss = None, None, list(self.batches[0]), None

    def fetch(self) -> None:
        """The next batch, in a list of its own as a DataLoader gives it."""
        if self.loader is None:
            self.loader = iter(self.trace.batches(map(list, self.batches)))
        self.batch = next(self.loader, None)
        if self.batch is None:
            self.loader = None
            self.fetch()

    def fetch_elsewhere(self) -> None:
        """From a second loader, in turn with the first."""
        if self.seconds is None:
            self.seconds = iter(self.trace.batches([(torch.randn(2, 4), torch.tensor([0, 1])) for _ in range(99)]))
            self.loader = iter(self.trace.batches(self.batches))
        self.batch = list(next(self.seconds))

    def forward(self, x: torch.Tensor | None = None, model: nn.Module | None = None, **kwargs: float) -> None:
        x = self.batch[0] if x is None else x
        self.loss = F.cross_entropy((model or self.model)(x, **kwargs), self.batch[1][: len(x)])

    def backward(self, **kwargs: bool) -> None:
        if self.loss is not None:
            self.loss.backward(**kwargs)
            self.loss = self.loss if kwargs.get("retain_graph") else None

    def step(self, last: bool = True) -> None:
        for optimizer in self.optimizers if last else self.optimizers[:1]:
            optimizer.step()

    def zero(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def by_hand(self, change) -> None:
        for p in self.model.parameters():
            if p.grad is not None:
                change(p)

    def evaluate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            self.model(self.batch[0])
        self.model.train()

    def closure_step(self) -> None:
        def closure():
            self.zero()
            self.forward()
            self.loss.backward()
            return self.loss

        self.optimizers[0].step(closure)
        self.loss = None

    def taken_apart(self) -> None:
        self.loss = F.cross_entropy(self.model(self.batch.pop(0)), self.batch.pop(0))

    def cleared_inside(self, clear) -> None:
        """A step that clears its gradients itself."""
        handles = [o.register_step_post_hook(lambda o, *_: clear(o)) for o in self.optimizers]
        self.attempt(self.step)
        for handle in handles:
            handle.remove()

    def fails(self) -> None:
        def refuse(*_):
            raise ValueError("no")

        handle = self.optimizers[0].register_step_pre_hook(refuse) if self.dice.random() < 0.5 else None
        kept = self.optimizers[0].param_groups[0]["lr"]
        self.optimizers[0].param_groups[0]["lr"] = "much" if handle is None else kept
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            self.optimizers[0].step()
            raise ValueError("nothing to step")
        if handle is not None:
            handle.remove()
        self.optimizers[0].param_groups[0]["lr"] = kept

    def attempt(self, step) -> None:
        """Torch refuses some of what an odd loop asks for."""
        with contextlib.suppress(RuntimeError, ValueError, IndexError, TypeError):
            step()
        torch.set_grad_enabled(True)

    def odd(self) -> None:
        """One of the things that a usual loop does not do there."""
        oddities = [
            self.fetch, self.forward, self.backward, self.step, self.zero, self.evaluate, self.fails,
            self.closure_step, self.scheduler.step, self.model.zero_grad,
            lambda: self.step(last=False),
            lambda: self.cleared_inside(lambda optimizer: optimizer.zero_grad()),
            lambda: self.cleared_inside(lambda _: (self.by_hand(drop), self.trace.updates)),
            lambda: setattr(self, "batch", list(self.batch)) or self.taken_apart(),
            lambda: torch.optim.SGD(self.other.parameters(), lr=0.1).step(),
            lambda: self.backward(retain_graph=True),
            lambda: (self.backward(retain_graph=True), self.backward()),
            lambda: (self.backward(retain_graph=True), setattr(self, "loss", None)),
            lambda: self.forward(times=2.0),
            lambda: (torch.set_grad_enabled(False), self.model(self.batch[0])),
            lambda: (self.model.eval(), self.forward()),
            lambda: (self.fetch_elsewhere(), self.forward(), self.backward()),
            lambda: (self.fetch_elsewhere(), self.forward(), self.backward()),
            lambda: (setattr(self, "ahead", self.batch), self.fetch(), self.forward(self.ahead[0])),
            lambda: self.loss.register_hook(lambda _: (self.trace.events, None)[1]) if self.loss is not None else None,
            lambda: self.forward(self.batch[0].clone()),
            lambda: self.forward(self.batch[0][:1]),
            lambda: self.forward(torch.randn(2, 4)),
            lambda: (self.forward(model=self.other), self.backward()),
            lambda: self.forward(model=self.other),
            lambda: self.by_hand(drop),
            lambda: self.by_hand(lambda p: p.grad.zero_()),
            lambda: self.by_hand(lambda p: p.grad.mul_(0.5)),
            lambda: self.by_hand(lambda p: setattr(p, "grad", p.grad.clone())),
            lambda: [optimizer.zero_grad(set_to_none=False) for optimizer in self.optimizers],
            lambda: nn.utils.clip_grad_norm_(self.model.parameters(), 0.1),
            lambda: nn.utils.clip_grad_value_(self.model.parameters(), 0.1),
            lambda: self.trace.updates,
            lambda: len(self.trace.events),
            lambda: self.model.eval(),
            lambda: setattr(self, "loader", None),
        ]  # fmt: skip
        self.attempt(self.dice.choice(oddities))
        self.model.train(self.dice.random() < 0.9)

    def go(self) -> ak.Trace:
        chance = self.dice.choice([0.0, 0.02, 0.1, 0.3])
        with ak.watch(self.model, accumulation_steps=3) as self.trace:
            for i in range(1, 31):
                for usual in (self.fetch, self.forward, self.backward):
                    if self.dice.random() < chance:
                        self.odd()
                    self.model.train()
                    self.attempt(usual)
                if self.dice.random() < chance:
                    self.odd()
                if i % 3 == 0:
                    self.attempt(self.step)
                    if self.dice.random() < chance:
                        self.odd()
                    self.zero()
        return self.trace


def test_usual_windows_are_noted_in_short(monkeypatch):
    heard = []
    for name in ("fetched", "forward_begins", "backward_begins", "step_begins"):
        monkeypatch.setattr(Recorder, name, lambda *_, name=name: heard.append(name))
    model, batches = nn.Linear(4, 3), [(torch.randn(2, 4), torch.tensor([0, 1]))] * 6
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with ak.watch(model, accumulation_steps=3) as trace:
        for i, (x, y) in enumerate(trace.batches(batches)):
            F.cross_entropy(model(x), y).backward()
            if i % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                assert len(trace.updates) == i // 3 + 1, "up to date whenever it is read"
    assert heard == []
    assert [(e.kind, e.micro_batch) for e in trace.events[9:]] == [
        ("step", 2), ("zero_grad", 2), ("scheduler step", 2),
        *((kind, i) for i in (3, 4, 5) for kind in ("batch", "forward", "backward")),
        ("step", 5), ("zero_grad", 5), ("scheduler step", 5),
    ]  # fmt: skip
    assert [[m.examples for m in update.micro_batches] for update in trace.updates] == [[2, 2, 2], [2, 2, 2]]


def test_nothing_is_heard_after_the_watch_and_nothing_is_left():
    model, batches = nn.Linear(4, 3), [(torch.randn(2, 4), torch.tensor([0, 1]))] * 9
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def refuse(*_):
        raise ValueError("no")

    with ak.watch(model, accumulation_steps=3) as trace:
        loader = iter(trace.batches(batches))
        F.cross_entropy(model(next(loader)[0]), torch.tensor([0, 1])).backward()
        handle = optimizer.register_step_pre_hook(refuse)
        with pytest.raises(ValueError, match="no"):
            optimizer.step()
        handle.remove()
        copied = copy.deepcopy(trace)
        assert len(copied.events) == len(trace.events) == 3
    assert not optimizer._optimizer_step_pre_hooks
    assert len(list(loader)) == 8 and trace.count_of("batch") == 1


def test_a_loop_may_take_its_batches_apart():
    model, batches = nn.Linear(4, 3), [[torch.randn(2, 4), torch.tensor([0, 1])] for _ in range(6)]
    with ak.watch(model, accumulation_steps=3) as trace:
        for batch in trace.batches(batches):
            x, y = batch.pop(0), batch.pop(0)
            F.cross_entropy(model(x), y).backward()
    assert not trace.reasons and [m.examples for m in trace.lost] == [2] * 6 and trace.count_of("forward") == 6


def test_a_loop_that_never_steps_keeps_few_batches():
    model, alive = nn.Linear(4, 3), []

    def stream():
        for _ in range(300):
            x = torch.randn(2, 4)
            alive.append(weakref.ref(x))
            yield x, torch.tensor([0, 1])

    with ak.watch(model, accumulation_steps=3) as trace:
        for x, y in trace.batches(stream()):
            F.cross_entropy(model(x), y).backward()
        assert sum(ref() is not None for ref in alive) < 100
    assert len(trace.lost) == 300


def test_a_trace_is_up_to_date_when_the_thread_of_its_loop_has_ended():
    model, batches = nn.Linear(4, 3), [(torch.randn(2, 4), torch.tensor([0, 1]))] * 6
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop():
        for i, (x, y) in enumerate(trace.batches(batches)):
            F.cross_entropy(model(x), y).backward()
            if i % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()

    with ak.watch(model, accumulation_steps=3) as trace:
        thread = threading.Thread(target=loop)
        thread.start()
        thread.join()
        assert len(trace.updates) == 2 and trace.count_of("zero_grad") == 2


def drop(parameter: nn.Parameter) -> None:
    parameter.grad = None


def direct(recorder: Recorder) -> Recorder:
    return recorder


@pytest.mark.filterwarnings("ignore:Detected call of:UserWarning")
@pytest.mark.parametrize("seed", range(200))
def test_the_trace_is_the_same_as_without_it(seed, monkeypatch):
    short = Run(seed)
    short.go()
    monkeypatch.setattr(watching, "Shorthand", direct)
    full = Run(seed)
    full.go()
    for name in FIELDS:
        assert getattr(short.trace, name) == getattr(full.trace, name), name
    for own, other in zip(short.model.parameters(), full.model.parameters(), strict=True):
        assert torch.equal(own, other)
