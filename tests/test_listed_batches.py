"""Batches that a loop puts into a list first: long lists, several passes over one, and what is kept of them."""

from __future__ import annotations

import gc
import weakref
from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import accumkit as ak
from accumkit.objective import tensors_in
from accumkit.trace.fetched import Fetches

N = 4
KEPT = 2 * N + 64


class Stream(IterableDataset):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return (self.data[i] for i in range(len(self.data)))


def loader(batches, stream=False):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(8 * batches, 6, generator=g, dtype=torch.float64)
    data = TensorDataset(x, torch.randint(0, 3, (len(x),), generator=g))
    return DataLoader(Stream(data) if stream else data, batch_size=8)


def watched(batches, passes=1, change=None, objective=..., restart=True, stream=False):
    """Watch a loop over a list; ``restart``: each pass steps with its own last batch."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objective = ak.classification() if objective is ... else objective
    with ak.watch(model, objective, accumulation_steps=N) as trace:
        listed = list(loader(batches, stream))
        for _ in range(passes):
            for i, (x, y) in enumerate(listed):
                size = min(N, batches - i // N * N) if restart else N
                (F.cross_entropy(model(change(x) if change else x), y) / size).backward()
                if (i + 1) % N == 0 or (restart and i + 1 == batches):
                    optimizer.step()
                    optimizer.zero_grad()
    return trace


def weights(trace):
    return [m.weight for u in trace.updates for m in u.micro_batches]


@pytest.mark.parametrize("batches", [KEPT, KEPT + 1, KEPT + 28, 2 * KEPT + 6])
def test_a_list_longer_than_what_is_kept_is_measured(batches):
    trace = watched(batches)
    assert weights(trace) == pytest.approx([1.0] * batches)
    verdict = ak.audit(trace)
    assert (verdict.status, verdict.reasons) == ("equivalent", ())


@pytest.mark.parametrize("change", [lambda x: x + 0.1 * torch.randn_like(x), torch.clone])
def test_a_batch_that_is_no_longer_kept_is_not_taken_for_the_one_that_is_due(change):
    trace = watched(KEPT + 28, change=change)
    verdict = ak.audit(trace)
    assert verdict.status == "cannot tell" and not verdict.findings
    assert not any("not those of the declared objective" in reason for reason in verdict.reasons)
    assert f"only the last {KEPT} are kept" in verdict.reasons[0]
    assert "iterate over a DataLoader, in each pass anew, or over trace.batches(...)" in verdict.reasons[0]
    assert all(u.why or u.unexplained < 1e-6 for u in trace.updates)


def test_the_same_in_other_units_is_found_in_a_long_list():
    trace = watched(KEPT + 28, change=lambda x: 3 * x - 1)
    measured = [u for u in trace.updates if u.why is None]
    assert len(measured) == KEPT // N
    assert all(u.unexplained < 1e-6 for u in measured)


def test_a_short_list_that_is_changed_is_matched_in_order():
    trace = watched(KEPT, change=lambda x: x + torch.randn_like(x))
    assert weights(trace) == pytest.approx([1.0] * KEPT)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("batches", [3, 12, 14, KEPT + 5])
def test_every_pass_over_one_list_is_measured(batches, stream):
    trace = watched(batches, passes=3, stream=stream)
    assert weights(trace) == pytest.approx([1.0] * (3 * batches))
    assert trace.epoch_sizes == [batches] * 3
    assert trace.fetched_sizes == [batches] * 3
    assert ak.audit(trace).status == "equivalent"


@pytest.mark.parametrize("batches", [5, 14, KEPT + 6])
def test_a_tail_that_leaks_into_the_next_pass_over_a_list_is_found(batches):
    verdict = ak.audit(watched(batches, passes=3, restart=False))
    assert [finding.pitfall for finding in verdict.findings] == ["tail-leaked"]


def fetches(batches):
    found = Fetches(8)
    found.start(len(batches), 4)
    for batch in batches:
        found.add(0, batch)
    return found


def made(number):
    return [(torch.randn(4, 20), torch.arange(4)) for _ in range(number)]


def test_a_batch_that_the_loop_keeps_is_found_and_one_that_it_forgot_is_gone():
    batches = made(20)
    found, refs = fetches(batches), [weakref.ref(x) for x, _ in batches]
    x, y = batches[3]
    entry = found.match([x], 4)
    assert entry.batch[0] is x and entry.batch[1] is y and entry.epoch == 0
    del entry, x, y
    found.close_window()
    batches.clear()
    gc.collect()
    assert sum(ref() is not None for ref in refs) == 8 + 1, "what is in the queue, and nothing else"


def test_what_is_known_of_batches_that_are_gone_stays_bounded():
    found = Fetches(8)
    found.start(2000, 4)
    for _ in range(2000):
        (batch,) = made(1)
        found.add(0, batch)
        found.use(found.match([batch[0]], 4))
        found.close_window()
    assert len(found.earlier.known) < 40


Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize(
    "form",
    [list, lambda p: {"x": p[0], "y": p[1]}, lambda p: (p[0], [p[1]]), lambda p: Pair(*p), lambda p: (p, 3), tuple],
)
def test_a_batch_is_found_in_its_form(form):
    batches = [form(pair) for pair in made(10)]
    found = fetches(batches)
    (x, y), batch = tensors_in(batches[0]), found.match(tensors_in(batches[0])[:1], 4).batch
    assert batch is not batches[0] and type(batch) is type(batches[0])
    assert [id(t) for t in tensors_in(batch)] == [id(x), id(y)] and repr(batch) == repr(batches[0])


def test_a_batch_of_other_things_is_not_kept():
    batches = [(x, y, object()) for x, y in made(10)]
    assert fetches(batches).match([batches[0][0]], 4) is None


def test_a_window_without_end_over_a_list_stays_bounded():
    batches = made(50)
    found = fetches(batches)
    for _ in range(3):
        for x, y in batches:
            entry = found.match([x], 4)
            found.use(entry)
            assert entry.batch[1] is y
    assert len(found.queue) <= 16


def test_one_tensor_in_several_batches_tells_none_of_them():
    x = torch.randn(4, 20)
    found = fetches([(x, torch.full((4,), i)) for i in range(3)])
    listed = [entry.batch for entry in found.queue]
    for entry in found.queue:
        found.use(entry)
    found.close_window()
    assert found.match([listed[1][0]], 4) is None


def test_an_evaluation_over_the_list_begins_no_pass():
    batches = made(3)
    found = fetches(batches)
    for x, _ in batches:
        found.use(found.match([x], 4))
    found.close_window()
    assert found.match([batches[0][0]], 4, trained=False).epoch == 0
    assert not found.queue and found.passes == 0
    assert [found.match([x], 4).epoch for x, _ in batches] == [1, 1, 1]
