"""Windows: their counts, what they hold in memory, what a batch may be, and loaders that reuse a buffer."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import ClassVar

import big_batch as oracle
import pytest
import torch
from bench import memory
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import accumkit as ak
from accumkit import window as window_module
from accumkit.batches import describe, examples_in, move, tensors_in

OBJECTIVE = ak.classification()
META = torch.device("meta")


def test_counts_examples_and_tail():
    windows = [(len(w), w.count, w.counts, w.examples, w.is_tail) for w in
               ak.windows(oracle.labelled([4, 4, 4, 4, 3]), 3, OBJECTIVE)]  # fmt: skip
    assert windows == [(3, 12, [4, 4, 4], 12, False), (2, 7, [4, 3], 7, True)]


def test_a_full_last_window_is_no_tail():
    assert [w.is_tail for w in ak.windows(oracle.labelled([4, 4, 4, 1]), 2, OBJECTIVE)] == [False, False]
    assert [len(w) for w in ak.windows(oracle.labelled([4] * 5), 2, OBJECTIVE, tail="drop")] == [2, 2]


def test_counts_are_plain_numbers():
    for count in (lambda b: (b[1] >= 0).sum(), lambda b: len(b[1]), lambda b: torch.tensor(len(b[1]))):
        (window,) = [
            (w.count, w.counts) for w in ak.windows(oracle.labelled([4, 3]), 2, ak.Objective(loss=max, count=count))
        ]
        assert window == (7, [4, 3])
        assert type(window[0]) is int


def test_any_iterable_also_one_shot_and_without_a_length():
    batches = oracle.labelled([4, 4, 4, 4, 3])

    class Sequence:
        def __getitem__(self, i):
            return batches[i]

    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    for loader in (batches, tuple(batches), iter(batches), (b for b in batches), map(tuple, batches), Sequence(),
                   DataLoader(TensorDataset(x, y), batch_size=4)):  # fmt: skip
        assert [w.count for w in ak.windows(loader, 3, OBJECTIVE)] == [12, 7]


def test_fetches_a_window_and_no_further():
    fetched = []

    def loader():
        for i, batch in enumerate(oracle.labelled([4] * 7)):
            fetched.append(i)
            yield batch

    windows = ak.windows(loader(), 3, OBJECTIVE)
    assert fetched == []
    next(windows)
    assert fetched == [0, 1, 2]
    next(windows)
    assert fetched == [0, 1, 2, 3, 4, 5]


def test_every_batch_comes_through_fetch(monkeypatch):
    fetched = []

    def fetch(loader):
        for batch in loader:
            fetched.append(batch)
            yield batch

    monkeypatch.setattr(window_module, "fetch", fetch)
    batches = oracle.labelled([4] * 5)
    list(ak.windows(batches, 3, OBJECTIVE))
    model = oracle.mlp()
    for buffered in (True, False):
        ak.train_epoch(model, batches, torch.optim.SGD(model.parameters()), OBJECTIVE, accumulation_steps=3,
                       buffered=buffered)  # fmt: skip
    assert [id(b) for b in fetched] == [id(b) for b in batches] * 3


class Counted:
    """A batch that knows how many of its kind are alive, on the host and moved."""

    alive: ClassVar[weakref.WeakSet] = weakref.WeakSet()
    moved: ClassVar[weakref.WeakSet] = weakref.WeakSet()
    most: ClassVar[dict[str, int]] = {}

    def __init__(self, x, y):
        self.x, self.y = x, y
        Counted.alive.add(self)

    def to(self, device):
        there = Counted(self.x.to(device), self.y.to(device))
        Counted.alive.discard(there)
        Counted.moved.add(there)
        Counted.note()
        return there

    @classmethod
    def note(cls):
        cls.most = {"alive": max(cls.most["alive"], len(cls.alive)), "moved": max(cls.most["moved"], len(cls.moved))}


@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
def test_one_window_on_the_host_and_one_micro_batch_on_the_device(monkeypatch, buffered):
    Counted.most = {"alive": 0, "moved": 0}

    def total(model, batch):
        Counted.note()
        return nn.functional.cross_entropy(model(batch.x), batch.y, reduction="sum")

    def loader():
        for x, y in oracle.labelled([4] * 11):
            yield Counted(x, y)

    # On a machine with one device nothing is moved; here every batch is, as on a GPU.
    monkeypatch.setattr("accumkit.batches.mover", lambda device, first: lambda batch: move(batch, device))
    model = oracle.mlp()
    objective = ak.Objective(total_loss=total, count=lambda batch: len(batch.y))
    log = ak.train_epoch(model, loader(), torch.optim.SGD(model.parameters()), objective, accumulation_steps=3,
                         buffered=buffered)  # fmt: skip
    assert log.examples == 44
    assert Counted.most == {"alive": 3 if buffered else 1, "moved": 1}


def test_the_last_window_is_let_go_before_the_next_is_fetched():
    references, alive = [], []

    def loader():
        for batch in oracle.labelled([4] * 6):
            x, y = batch[0].clone(), batch[1].clone()
            alive.append(sum(r() is not None for r in references))
            references.append(weakref.ref(x))
            yield x, y
            del x, y, batch

    kept = []
    for window in ak.windows(loader(), 2, OBJECTIVE):
        for _batch in window:
            pass
        del _batch
        kept.append(window)
        gc.collect()
    assert max(alive) <= 1
    with pytest.raises(ak.AccumkitError, match="window 1 was let go"):
        list(kept[0])
    assert kept[0].count == 8


def test_a_window_can_be_gone_through_twice():
    for window in ak.windows(oracle.labelled([4, 3]), 2, OBJECTIVE):
        assert [b[0].shape for b in window] == [b[0].shape for b in window]


Pair = namedtuple("Pair", "x y")


@dataclass
class Record:
    x: torch.Tensor
    name: str

    def to(self, device):
        return Record(self.x.to(device), self.name)


@pytest.mark.parametrize(
    "make",
    [
        lambda x, y: x,
        lambda x, y: (x, y),
        lambda x, y: [x, y],
        lambda x, y: {"x": x, "labels": y},
        lambda x, y: OrderedDict(x=x, more={"y": [y, (x, "text")]}, n=3),
        lambda x, y: Pair(x, (y, None)),
        lambda x, y: Record(x, "a"),
        lambda x, y: (Record(x, "a"), y),
        lambda x, y: nn.utils.rnn.pack_sequence([x[0], x[1]]),
    ],
)
def test_what_a_batch_may_be(make):
    x, y = torch.zeros(2, 5), torch.zeros(2, dtype=torch.long)
    batch = make(x, y)
    assert examples_in(batch) == 2
    assert "float32" in describe(batch)
    if isinstance(batch, nn.utils.rnn.PackedSequence):  # its lengths stay on the host
        return
    moved = move(batch, META)
    assert type(moved) is type(batch)
    assert all(t.device == META for t in tensors_in(moved))
    assert len(tensors_in(moved)) == len(tensors_in(batch))
    assert all(t.device.type == "cpu" for t in tensors_in(batch)), "the batch given was changed"


def test_windows_moves_each_batch_when_it_is_reached():
    (window,) = ak.windows([{"x": torch.zeros(4, 2), "labels": torch.zeros(4)}], 2, OBJECTIVE_OF_ROWS, device="meta")
    assert window.count == 4


OBJECTIVE_OF_ROWS = ak.Objective(loss=max, count=lambda batch: len(batch["x"]))


def test_batches_on_the_device():
    for window in ak.windows([{"x": torch.zeros(4, 2)}], 2, OBJECTIVE_OF_ROWS, device="meta"):
        (batch,) = window
        assert batch["x"].device == META


def test_a_batch_without_a_tensor_is_refused():
    with pytest.raises(ak.AccumkitError, match=r"window 1, micro-batch 2: a batch without a tensor: list"):
        list(ak.windows([[torch.zeros(2)], ["text"]], 2, ak.Objective(loss=max, count=len)))


def test_memory_grows_by_less_than_a_kilobyte_a_micro_batch():
    for name, run in memory.RUNS.items():
        traced, _ = memory.growth(run, 200)
        assert traced < memory.LIMIT, name
