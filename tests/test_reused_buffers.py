"""A loader that fills one buffer again is noticed; memory that is shared and stays the same is fine."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate, default_convert

import accumkit as ak
from accumkit.batches import SAMPLE, changed, may_write_again, remember

OBJECTIVE = ak.classification()


def through_torch(x, y):
    buffer_x, buffer_y = torch.empty(x[0].shape), torch.empty(y[0].shape, dtype=torch.long)
    for a, b in zip(x, y, strict=True):
        buffer_x.copy_(a)
        buffer_y.copy_(b)
        yield buffer_x, buffer_y


def through_numpy(x, y):
    buffer = torch.empty(x[0].shape).numpy()
    for a, b in zip(x, y, strict=True):
        buffer[:] = a.numpy()
        yield torch.from_numpy(buffer), b


def through_data(x, y):
    buffer = torch.empty(x[0].shape)
    for a, b in zip(x, y, strict=True):
        buffer.data.copy_(a)
        yield buffer.detach(), b


def through_a_pool(x, y):
    pool = [torch.empty(x[0].shape) for _ in range(2)]
    for i, (a, b) in enumerate(zip(x, y, strict=True)):
        yield pool[i % 2].copy_(a), b


def labels_only(x, y):
    buffer = torch.empty(y[0].shape, dtype=torch.long)
    for a, b in zip(x, y, strict=True):
        yield a, buffer.copy_(b)


def filled_ahead(x, y):
    """While one buffer is handed out, the other is filled: at the end of the window the first holds other rows."""
    pool = [x[0].clone(), x[1].clone()]
    for i, b in enumerate(y):
        yield pool[i % 2], b
        if i + 2 < len(x):
            pool[i % 2].copy_(x[i + 2])


def late(x, y):
    """Recycles buffers only from the second window on."""
    buffer = torch.empty(x[0].shape)
    for i, (a, b) in enumerate(zip(x, y, strict=True)):
        yield (a, b) if i < 3 else (buffer.copy_(a), b)


@pytest.mark.parametrize(
    "loader", [through_torch, through_numpy, through_data, through_a_pool, labels_only, filled_ahead, late]
)
@pytest.mark.parametrize("width", [5, 3000], ids=["small", "large"])
def test_a_reused_buffer_is_noticed_before_the_window_trains(loader, width):
    torch.manual_seed(0)
    x, y = [torch.randn(4, width) for _ in range(6)], [torch.randint(0, 3, (4,)) for _ in range(6)]
    model = nn.Linear(width, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    number = 2 if loader is late else 1
    with pytest.raises(ak.AccumkitError, match=rf"window {number}: micro-batch 1 changed after it was fetched"):
        ak.train_epoch(model, loader(x, y), optimizer, OBJECTIVE, accumulation_steps=3)
    # Without a buffer, and with windows of one, the same loader is fine and gives the same as copies.
    if loader is filled_ahead:
        return
    for steps, buffered in ((3, False), (1, True)):
        own, other = nn.Linear(width, 3), nn.Linear(width, 3)
        other.load_state_dict(own.state_dict())
        for m, batches in ((own, loader(x, y)), (other, list(zip(x, y, strict=True)))):
            ak.train_epoch(m, batches, torch.optim.SGD(m.parameters(), lr=0.1), OBJECTIVE, accumulation_steps=steps,
                           buffered=buffered)  # fmt: skip
        assert torch.equal(own.weight, other.weight)


def test_shared_memory_that_stays_the_same_is_fine():
    x, y = torch.randn(40, 5), torch.randint(0, 3, (40,))
    overlapping = [(x[i : i + 8], y[i : i + 8]) for i in range(6)]
    same = [(x[:4], y[:4])] * 6
    with_nan = [(torch.full((4, 5), float("nan")), y[:4])] * 3
    read_only = x.numpy()[:4]
    read_only.flags.writeable = False
    arrays = [(read_only, y.numpy()[:4])] * 3
    for loader in (overlapping, same, with_nan):
        assert len(list(ak.windows(iter(loader), 3, OBJECTIVE))) == len(loader) // 3
    assert len(list(ak.windows(iter(arrays), 3, ak.Objective(loss=max, count=lambda b: len(b[1]))))) == 1


class TwoBuffers(Dataset):
    """Gives examples in the same memory, two in turn."""

    def __init__(self):
        self.pool = torch.empty(2, 5)

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return self.pool[index % 2].fill_(index), index % 3


BUFFER = torch.empty(2, 5)


def into_one_buffer(examples):
    torch.stack([x for x, _ in examples], out=BUFFER)
    return BUFFER, torch.tensor([y for _, y in examples])


def test_copies_are_left_out_only_where_nothing_can_write_again():
    data = TwoBuffers()
    batches = [(torch.zeros(2, 5), torch.zeros(2, dtype=torch.long))] * 2
    torchs_own = DataLoader(data, batch_size=2)
    for loader in (batches, tuple(batches), torchs_own, DataLoader(data, batch_size=2, collate_fn=default_collate)):
        assert not may_write_again(loader)
    assert [window.count for window in ak.windows(torchs_own, 3, OBJECTIVE)] == [6, 6]
    assert [x[:, 0].tolist() for x, _ in torchs_own] == [[i, i + 1] for i in range(0, 12, 2)], "collation copies"

    class Written(list):
        def __iter__(self):
            return through_torch([torch.ones(4, 5), torch.zeros(4, 5)], [torch.zeros(4, dtype=torch.long)] * 2)

    own = DataLoader(data, batch_size=2, collate_fn=into_one_buffer)
    single = DataLoader(data, batch_size=None, collate_fn=default_convert)
    for loader in (iter(batches), zip(*batches, strict=True), Written(), own, single):
        assert may_write_again(loader)
    for loader in (Written(), own):
        with pytest.raises(ak.AccumkitError, match="window 1: micro-batch 1 changed after it was fetched"):
            list(ak.windows(loader, 2, OBJECTIVE))


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@pytest.mark.parametrize("shape", [(0,), (8, 8), (1000, 1000), (2, 3, 224, 224), (100_000,), (50_000, 2), (2, 50_000)])
def test_little_of_a_large_tensor_is_copied_and_a_new_filling_is_seen(shape, layout):
    tensor = torch.randn(shape)
    tensor = tensor if layout == "contiguous" else tensor.transpose(0, -1)
    ((_, copy, _, _),) = before = remember([tensor])
    assert copy.numel() <= max(tensor.numel() / 10, 2 * SAMPLE)
    assert not changed(before)
    tensor.copy_(torch.randn(tensor.shape))
    assert changed(before) == (tensor.numel() > 0)


def test_nan_is_no_change_in_any_layout():
    assert not changed(remember([torch.full((4, 5), float("nan")), torch.full((4, 5), float("nan")).t()]))


def test_a_sparse_change_in_a_large_tensor_is_seen():
    def one_hot():
        buffer = torch.zeros(4, 200_000)
        for i in range(4):
            yield buffer.zero_().scatter_(1, torch.full((4, 1), 7 * i + 1), 1.0), torch.tensor([0, 1, 2, 0])

    with pytest.raises(ak.AccumkitError, match="window 1: micro-batch 1 changed after it was fetched"):
        list(ak.windows(one_hot(), 2, OBJECTIVE))


def test_a_write_beside_a_large_view_is_fine():
    def slices():
        memory = torch.randn(64, 20_000)
        for i in range(6):
            yield memory[i : i + 4], torch.tensor([0, 1, 2, 0])
            memory[32 + i] = 1.0

    assert len(list(ak.windows(slices(), 3, OBJECTIVE))) == 2


def test_with_workers_the_error_advises_copies_alone():
    loader = DataLoader(TwoBuffers(), batch_size=2, collate_fn=into_one_buffer, num_workers=0)
    with pytest.raises(ak.AccumkitError, match=r"array.copy\(\)\), or train with buffered=False"):
        list(ak.windows(loader, 2, OBJECTIVE))

    class Said(list):
        num_workers = 2

        def __iter__(self):
            return through_torch([torch.ones(4, 5), torch.zeros(4, 5)], [torch.zeros(4, dtype=torch.long)] * 2)

    with pytest.raises(ak.AccumkitError, match="nothing else helps, for they fill it ahead"):
        list(ak.windows(Said(), 2, OBJECTIVE))
