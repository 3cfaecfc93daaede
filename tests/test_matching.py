"""Which batch and which backward a forward call belongs to: after augmentation, and where no objective is given."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import accumkit as ak
from accumkit.trace.fetched import Fetches


# batches that are changed after the loader
def table(rows=160):
    """Raw columns of a table, of very different sizes: any two rows are much alike."""
    g = torch.Generator().manual_seed(0)
    columns = torch.tensor([650.0, 90.0, 14.0, 19.0, 880.0, 105.0, 0.1, 25.0], dtype=torch.float64)
    x = columns * (1 + 0.3 * torch.randn(rows, 8, generator=g, dtype=torch.float64))
    return x, torch.randint(0, 3, (rows,), generator=g)


def one_by_one(loader):
    yield from loader


def fetched_ahead(loader, number=4):
    waiting = []
    for batch in loader:
        waiting.append(batch)
        if len(waiting) == number:
            yield waiting.pop(0)
    yield from waiting


def in_windows(loader):
    window = []
    for batch in loader:
        window.append(batch)
        if len(window) == 4:
            yield from window
            window = []


def passing_over(loader):
    for i, batch in enumerate(loader):
        if i % 5 != 2:
            yield batch


class Standardised(nn.Module):
    def __init__(self, x):
        super().__init__()
        self.mean, self.std, self.layer = x.mean(0), x.std(0), nn.Linear(8, 3).double()

    def forward(self, x):
        return self.layer((x - self.mean) / self.std)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("feed", [one_by_one, fetched_ahead, in_windows, passing_over])
def test_rows_that_are_much_alike_are_matched_in_order(feed, size):
    torch.manual_seed(0)
    x, y = table()
    model = Standardised(x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ak.watch(model, ak.classification(), accumulation_steps=4) as trace:
        for i, (rows, targets) in enumerate(feed(DataLoader(TensorDataset(x, y), size)), 1):
            changed = rows * (1 + 0.1 * torch.randn_like(rows))
            (F.cross_entropy(model(changed), targets) / 4).backward()
            if i % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
    weights = [m.weight for u in trace.updates for m in u.micro_batches]
    assert weights == pytest.approx([1.0] * len(weights))
    assert ak.audit(trace).status == "equivalent"


def fetches(number):
    torch.manual_seed(0)
    found, batches = Fetches(64), [(torch.randn(4, 20), torch.arange(4)) for _ in range(number)]
    found.start(number, 4)
    return found, batches


def use(found, x):
    entry = found.match([x], len(x))
    found.use(entry)
    return entry.batch[0]


def test_a_batch_used_again_is_found_by_its_content_and_not_by_likeness():
    found, (first, second, third) = fetches(3)
    for batch in (first, second):
        found.add(0, batch)
    assert use(found, first[0] + 0.1) is first[0]
    assert use(found, first[0].clone()) is first[0]
    assert use(found, first[0] + 0.1 * torch.randn(4, 20)) is second[0], "the next one, be it less alike"
    assert use(found, second[0] + 0.1 * torch.randn(4, 20)) is second[0], "none waits: once more the last one"
    found.add(0, third)
    assert use(found, third[0] * 2) is third[0]


def test_a_batch_out_of_its_order_is_found_where_it_is_clearly_nearer():
    found, batches = fetches(3)
    for batch in batches:
        found.add(0, batch)
    for i in (1, 0, 2):
        assert use(found, (batches[i][0] - 0.3) / 1.7 + 0.1 * torch.randn(4, 20)) is batches[i][0]


def test_a_loop_that_passes_over_batches_trains_on_the_newest():
    found, batches = fetches(6)
    for i, batch in enumerate(batches):
        found.add(0, batch)
        if i not in (2, 3):
            assert use(found, torch.tanh(batch[0] @ torch.randn(20, 20))) is batch[0]
    found.close_window()
    assert not found.queue


# forward calls and backwards without an objective, as with one
def net():
    torch.manual_seed(0)
    model = nn.Linear(20, 3)
    batches = [(torch.randn(4, 20), torch.randint(0, 3, (4,))) for _ in range(10)]
    return model, batches, torch.optim.SGD(model.parameters(), lr=0.1)


def both(run):
    """Return what is recorded of each micro-batch, with an objective and without one."""
    found = []
    for objective in (ak.classification(), None):
        model, batches, optimizer = net()
        with ak.watch(model, objective, accumulation_steps=4) as trace:
            run(trace, model, batches, optimizer)
        numbers = [[(m.index, m.epoch, m.examples, m.fate) for m in u.micro_batches] for u in trace.updates]
        found.append((numbers, [u.unused for u in trace.updates], [(m.index, m.epoch, m.examples) for m in trace.lost]))
    return found


def penalty(model):
    return 1e-3 * sum(p.pow(2).sum() for p in model.parameters())


def assert_alike(run):
    """Both ways of watching see the same, and every micro-batch with its four examples."""
    measured, events = both(run)
    assert events == measured
    assert {m[2] for update in events[0] for m in update} == {4}


@pytest.mark.parametrize("with_penalty", [False, True])
def test_a_second_forward_without_backward_adds_no_examples(with_penalty):
    def run(trace, model, batches, optimizer):
        for i, (x, y) in enumerate(trace.batches(batches), 1):
            (model(x).argmax(1) == y).float().mean()
            loss = F.cross_entropy(model(x), y) / 4 + (penalty(model) if with_penalty else 0)
            loss.backward()
            if i % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()

    assert_alike(run)


def test_two_forwards_of_one_backward_belong_to_it():
    def run(trace, model, batches, optimizer):
        for i, (x, y) in enumerate(trace.batches(batches), 1):
            (F.cross_entropy(model(x[:2]), y[:2]) + F.cross_entropy(model(x[2:]), y[2:])).div(8).backward()
            first, second = (F.cross_entropy(model(part), y[:2]) for part in (x[:2], x[2:]))
            (first + second).div(8).backward()
            if i % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()

    assert_alike(run)


class Fails(torch.autograd.Function):
    armed = False

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if Fails.armed:
            raise RuntimeError("out of memory")
        return gradient


@pytest.mark.parametrize("where", ["forward", "loss", "backward"])
@pytest.mark.parametrize("at", [1, 9])  # inside a window; before a new pass
def test_what_was_broken_off_is_no_part_of_the_next_micro_batch(where, at):
    def run(trace, model, batches, optimizer):
        calls = 0

        def refuse(*_):
            if where == "forward" and calls == at:
                raise RuntimeError("out of memory")

        handle, done = model.register_forward_pre_hook(refuse), 0
        for _ in range(2):
            for x, y in trace.batches(batches):
                try:
                    output = Fails.apply(model(x))
                    if where == "loss" and calls == at:
                        raise RuntimeError("out of memory")
                    Fails.armed = where == "backward" and calls == at
                    F.cross_entropy(output, y).div(4).backward()
                except RuntimeError:
                    continue
                finally:
                    calls, Fails.armed = calls + 1, False
                done += 1
                if done % 4 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
        handle.remove()

    assert_alike(run)


def test_a_tail_that_is_cleared_through_data_is_dropped_and_does_not_leak():
    def run(trace, model, batches, optimizer):
        for _ in range(3):
            for i, (x, y) in enumerate(trace.batches(batches), 1):
                F.cross_entropy(model(x), y).div(4).backward()
                if i % 4 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
            for p in model.parameters():
                p.grad.data.zero_()

    measured, events = both(run)
    assert events == measured
    assert {m[3] for update in events[0] for m in update} == {"kept"} and len(events[2]) == 6
