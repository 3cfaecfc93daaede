"""Targets of small types, buffers filled in part, and things that are no loader of batches or no count."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, IterableDataset

import accumkit as ak
from accumkit import AccumkitError
from accumkit.batches import SAMPLE, changed, describe, examples_in, remember, tensors_in

LABELS = torch.zeros(4, dtype=torch.long)
ROWS = ak.Objective(loss=max, count=lambda batch: len(batch[1]))


def windows(*batches, objective=ROWS, steps=2):
    return list(ak.windows(iter(batches), steps, objective))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rows", [100, 200])
def test_a_byte_is_the_class_it_says(rows, weighted, smoothing):
    target, output = torch.arange(rows) + 56, torch.randn(rows, 256, dtype=torch.float64)
    weight = torch.rand(256, dtype=torch.float64) if weighted else None
    wanted = F.cross_entropy(output, target, weight=weight, label_smoothing=smoothing).item()
    objective = ak.classification(class_weight=weight, label_smoothing=smoothing)
    batch = (None, target.to(torch.uint8))
    assert (objective.loss(output, batch) / objective.count(batch)).item() == pytest.approx(wanted, rel=1e-13)


def test_bytes_of_text_are_all_counted():
    tokens = torch.tensor([list("“a”, “b”".encode())] * 2, dtype=torch.uint8)
    assert (tokens == 156).any()
    assert ak.next_token().count(tokens) == tokens[:, 1:].numel()
    assert ak.next_token(ignore_index=156).count(tokens) == (tokens[:, 1:] != 156).sum()


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_an_ignored_number_beyond_a_type_ignores_nothing(dtype):
    target = torch.full((200,), -100, dtype=dtype)
    for beyond in (156, 2**16 - 100, 2**32 - 100):
        assert ak.classification(ignore_index=beyond).count((None, target)) == 200
    assert ak.classification().count((None, target)) == 0


@pytest.mark.parametrize("shift", [True, False])
def test_tokens_in_another_order_are_refused(shift):
    objective, labels = ak.next_token(shift=shift), torch.randint(0, 9, (3, 6))
    with pytest.raises(ak.AccumkitError, match=r"logits of shape .* against labels of shape .*time first"):
        objective.loss(torch.zeros(6, 3, 9), (None, labels))
    scores = torch.randn(3, 6, 9)
    turned = ak.next_token(shift=shift, logits=lambda output: output.transpose(0, 1))
    assert turned.loss(scores.transpose(0, 1), (None, labels)) == objective.loss(scores, (None, labels))
    flat = ak.next_token(shift=False).loss(scores, (None, labels.flatten()))
    assert flat == ak.next_token(shift=False).loss(scores, (None, labels))


def filled(buffer, rows):
    for number in rows:
        buffer[:number] = torch.randn(buffer[:number].shape)
        yield buffer[:number], torch.zeros(number, dtype=torch.long)


@pytest.mark.parametrize("shape", [(32, 3, 32, 32), (64, 3, 100, 100), (100, 400), (50_000, 2), (40_000,)])
def test_a_buffer_filled_again_in_its_first_rows_is_noticed(shape):
    with pytest.raises(ak.AccumkitError, match="micro-batch 1 changed after it was fetched"):
        list(ak.windows(filled(torch.empty(shape), (shape[0], 1)), 2, ROWS))


@pytest.mark.parametrize("row", range(0, 32, 5))
def test_each_row_of_a_large_batch_is_looked_at(row):
    tensor = torch.randn(32, 3, 64, 64)
    before = remember([tensor[:]])
    tensor[row] = torch.randn(3, 64, 64)
    assert changed(before)
    assert sum(copy.numel() for _, copy, _, _ in before) <= SAMPLE


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.uint8, np.int64, np.bool_, np.complex64])
def test_one_hot_rows_in_a_buffer_of_numpys_are_noticed(dtype):
    rows = np.zeros((8, 100_000), dtype)
    tensor = torch.from_numpy(rows)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        rows.fill(0)
        rows[np.arange(8), rng.integers(0, 100_000, 8)] = 1
        before = remember([tensor])
        assert not changed(before)
        rows.fill(0)
        rows[np.arange(8), rng.integers(0, 100_000, 8)] = 1
        assert changed(before)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support")
def test_a_sparse_tensor_is_looked_at(layout):
    tensor = torch.eye(5).to_sparse(layout=layout)
    before = remember([tensor])
    assert not changed(before)
    (tensor._values() if layout is torch.sparse_coo else tensor.values()).fill_(2.0)
    assert changed(before)


def read_only(array):
    view = array.view()
    view.flags.writeable = False
    return view


VIEWS = {
    "read only": read_only,
    "backwards": lambda array: array[::-1],
    "another byte order": lambda array: array.view(array.dtype.newbyteorder()),
    "read only, backwards": lambda array: read_only(array[:, ::-1]),
    "between entries": lambda array: np.ndarray((4, 2), np.float32, array, 2, (9, 5)),
    "long": lambda array: array.view(np.uint8).reshape(-1)[:48].view(np.longdouble).reshape(3, 1),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_an_array_is_looked_at_in_its_own_memory(view):
    array = np.zeros((4, 3), np.float32)
    seen = view(array)
    (tensor,) = tensors_in({"x": seen})
    assert tensor.shape[: seen.ndim] == seen.shape
    assert examples_in({"x": seen}) == len(seen)
    before = remember([tensor])
    array[:] = 7
    assert changed(before)


def test_a_read_only_view_of_a_buffer_is_noticed():
    def loader():
        base = np.zeros((4, 3), np.float32)
        for i in range(2):
            base[:] = i
            yield read_only(base), LABELS

    with pytest.raises(ak.AccumkitError, match="micro-batch 1 changed after it was fetched"):
        list(ak.windows(loader(), 2, ROWS))


def test_numbers_and_images_beside_tensors():
    class Picture:
        __array_interface__ = None

    assert [t.dim() for t in tensors_in([np.float32(3), np.array(2), LABELS])] == [0, 0, 1]
    assert "int64" in describe([np.array(2), LABELS])
    assert len(tensors_in([Picture(), LABELS])) == 1


def test_lines_in_a_packed_sequence_are_examples():
    packed = pack_sequence([torch.randn(k, 2) for k in (5, 3, 2)])
    y = torch.tensor([0, 1, 1])
    for batch in (packed, (packed, y), [packed, y], {"x": packed, "y": y}, ((packed, y), y), (torch.tensor(1), packed)):
        assert examples_in(batch) == 3
    assert windows((packed, y), (packed, y))[0].examples == 6


@pytest.mark.parametrize("enforce_sorted", [True, False])
@pytest.mark.parametrize("objective", [ak.classification(), ak.next_token(), ak.regression()])
def test_a_packed_sequence_alone_has_no_target(enforce_sorted, objective):
    packed = pack_sequence([torch.randn(k, 2) for k in (5, 3, 2)], enforce_sorted=enforce_sorted)
    with pytest.raises(ak.AccumkitError, match=r"no target in a batch that is a PackedSequence alone; yield \(packed"):
        windows(packed, objective=objective)


class Stream(IterableDataset):
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("make", [lambda x, y: (x, y), lambda x, y: (x, int(y)), lambda x, y: {"x": x, "labels": y}])
def test_an_iterable_data_set_of_single_examples_is_no_loader(make, buffered):
    model = nn.Linear(3, 2)
    objective = ak.Objective(total_loss=lambda m, batch: m(torch.ones(3)).sum(), count=lambda batch: 1)
    single = Stream([make(torch.randn(3), torch.tensor(1)) for _ in range(4)])
    with pytest.raises(ak.AccumkitError, match=r"window 1, micro-batch 1: the loader is a data set \(Stream\), which"):
        ak.train_epoch(model, single, torch.optim.SGD(model.parameters(), lr=0.1), objective, accumulation_steps=2,
                       buffered=buffered)  # fmt: skip


def test_an_iterable_data_set_of_batches_is_a_loader():
    batches = Stream([(torch.randn(4, 3), LABELS)] * 2)
    for loader in (batches, DataLoader(batches, batch_size=None), DataLoader(Stream(range(8)), batch_size=4)):
        count = ak.Objective(loss=max, count=lambda batch: len(batch[-1]) if isinstance(batch, list) else len(batch))
        assert [w.examples for w in ak.windows(loader, 2, count)] == [8]


def test_one_batch_in_place_of_a_loader_is_refused():
    tokens, tensor = torch.randint(0, 9, (4, 6)), ak.Objective(loss=max, count=len)
    for batch in ((tokens, tokens.clone()), (tokens[:, :-1], tokens[:, 1:]), (torch.randn(4, 3), LABELS)):
        with pytest.raises(ak.AccumkitError, match=r"a tuple of 2 tensors, as one batch is.*\[\(tokens, labels\)\]"):
            list(ak.windows(batch, 2, tensor))
        assert sum(w.count for w in ak.windows(list(batch), 2, tensor)) == 8
    for pieces in (tokens.split(1), tokens.chunk(2), tokens.split(2, dim=1), tokens.T.split(3), tokens.unbind()):
        assert sum(map(len, ak.windows(pieces, 2, tensor))) == len(pieces)
    assert sum(map(len, ak.windows((tokens,), 2, tensor))) == 1


@pytest.mark.parametrize(
    ("count", "said"),
    [
        ("4", "objective.count gave '4'; a count is a real number"),
        (torch.tensor(1 + 2j), r"objective.count gave \(1\+2j\); a count is a real number"),
        (np.complex64(1 + 2j), r"objective.count gave \(1\+2j\); a count is a real number"),
        (10**400, "objective.count gave a whole number that no float can hold; a count is a finite"),
        (10**5000, "objective.count gave a whole number that no float can hold; a count is a finite"),
        (1e-320, "objective.count gave 1e-320, which is too small to divide by"),
        (torch.tensor(1e-40), "objective.count gave .*, which is too small to divide by"),
        (-1, "objective.count gave -1; a count is a finite number of units, 0 or more"),
        (float("nan"), "objective.count gave nan; a count is a finite"),
    ],
    ids=[f"count {number}" for number in range(9)],
)
@pytest.mark.parametrize("buffered", [True, False])
def test_what_is_no_count(count, said, buffered):
    model = nn.Linear(3, 2)
    objective = ak.Objective(loss=lambda out, batch: out.sum(), count=lambda batch: count)
    with pytest.raises(ak.AccumkitError, match=f"^window 1, micro-batch 1: {said}"):
        ak.train_epoch(model, [(torch.randn(4, 3), LABELS)], torch.optim.SGD(model.parameters(), lr=0.1), objective,
                       accumulation_steps=1, buffered=buffered)  # fmt: skip


def test_negative_class_weights_are_refused_when_they_are_given():
    with pytest.raises(ak.AccumkitError, match=r"class_weight has a negative entry, -0.5"):
        ak.classification(class_weight=torch.tensor([-0.5, 2.0]))
    assert ak.classification(class_weight=[0, 2]).count((None, torch.tensor([0, 1, 1]))) == 4


class Outputs:
    """What many models of language give: logits and more."""

    def __init__(self, logits):
        self.logits = logits


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return Outputs(self.head(x))


def test_classification_takes_the_logits_of_an_output_that_has_them():
    torch.manual_seed(0)
    model, objective = Classifier().double(), ak.classification()
    batches = [{"x": torch.randn(4, 4).double(), "labels": torch.randint(0, 3, (4,))} for _ in range(4)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ak.watch(model, objective, accumulation_steps=4) as trace:
        for batch in trace.batches(batches):
            (F.cross_entropy(model(x=batch["x"]).logits, batch["labels"]) / 4).backward()
        optimizer.step()
    assert ak.audit(trace).status == "equivalent"
    assert len(ak.train_epoch(model, batches, optimizer, objective, accumulation_steps=4).updates) == 1


def test_an_output_that_is_no_tensor_is_refused_with_the_way_out():
    with pytest.raises(AccumkitError, match=r"gave a dict.*ak.Objective"):
        ak.classification().loss({"scores": torch.zeros(2, 3)}, (None, torch.tensor([0, 1])))
