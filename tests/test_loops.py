"""train_epoch does what one backward on the concatenated window does, update by update."""

from __future__ import annotations

import big_batch as oracle
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import accumkit as ak

OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}
SHAPES = {  # sizes of the micro-batches, accumulation steps
    "full windows": ([4] * 6, 3),
    "short tail": ([4, 4, 4, 4, 3], 3),
    "unequal micro-batches": ([5, 1, 3, 2, 7, 4, 2], 3),
    "smaller than a micro-batch": ([2], 4),
    "one step": ([4, 4, 3], 1),
}
WEIGHT = torch.tensor([0.2, 1.0, 3.5], dtype=torch.float64)
OPTIONS = {  # of cross entropy
    "plain": {},
    "class weights": {"weight": WEIGHT},
    "label smoothing": {"label_smoothing": 0.1},
    "weights and smoothing": {"weight": WEIGHT, "label_smoothing": 0.2},
}


def objective_for(options: dict) -> ak.Objective:
    return ak.classification(class_weight=options.get("weight"), label_smoothing=options.get("label_smoothing", 0.0))


@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", OPTIONS)
def test_updates_are_those_of_the_big_batch(shape, optimizer, options, buffered):
    sizes, steps = SHAPES[shape]
    batches = oracle.labelled(sizes)
    model, big = oracle.mlp(), oracle.mlp()
    own, other = OPTIMIZERS[optimizer](model.parameters()), OPTIMIZERS[optimizer](big.parameters())
    with oracle.observed(model, own) as seen:
        log = ak.train_epoch(
            model, batches, own, objective_for(OPTIONS[options]), accumulation_steps=steps, buffered=buffered
        )
    windows = oracle.grouped(batches, steps)
    wanted = oracle.big_batches(
        big, other, windows, lambda m, window: oracle.mean_cross_entropy(m, window, **OPTIONS[options])
    )
    oracle.assert_same(seen, wanted)
    assert [u.micro_batches for u in log.updates] == [len(window) for window in windows]
    assert [u.examples for u in log.updates] == [sum(len(y) for _, y in window) for window in windows]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    steps=st.integers(1, 5),
    weighted=st.booleans(),
    smoothing=st.sampled_from([0.0, 0.1]),
    ignored=st.sampled_from([0.0, 0.3, 0.7]),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    clip=st.sampled_from([None, 0.05]),
    tail=st.sampled_from(["step", "drop"]),
    buffered=st.booleans(),
    seed=st.integers(0, 1000),
)
@pytest.mark.filterwarnings("ignore:no update was made")
def test_any_sizes_weights_and_ignored_targets(
    sizes, steps, weighted, smoothing, ignored, optimizer, clip, tail, buffered, seed
):
    batches = oracle.labelled(sizes, seed=seed, ignored=ignored)
    weight = WEIGHT if weighted else None
    windows = oracle.grouped(batches, steps, tail)
    empty = [i for i, window in enumerate(windows) if all((y == -100).all() for _, y in window)]
    model, big = oracle.mlp(), oracle.mlp()
    own, other = OPTIMIZERS[optimizer](model.parameters()), OPTIMIZERS[optimizer](big.parameters())
    objective = ak.classification(class_weight=weight, label_smoothing=smoothing)
    with oracle.observed(model, own) as seen:
        try:
            log = ak.train_epoch(model, iter(batches), own, objective, accumulation_steps=steps, tail=tail,
                                 max_grad_norm=clip, buffered=buffered)  # fmt: skip
        except ak.AccumkitError as problem:
            assert empty, problem
            assert f"update {empty[0] + 1}: not one valid unit" in str(problem)
        else:
            assert not empty
            assert len(log.updates) == len(windows)
            assert log.micro_batches + log.dropped_micro_batches == len(sizes)
            assert log.examples + log.dropped_examples == sum(sizes)
    wanted = oracle.big_batches(
        big, other, windows[: empty[0]] if empty else windows,
        lambda m, window: oracle.mean_cross_entropy(m, window, weight=weight, label_smoothing=smoothing),
        max_grad_norm=clip,
    )  # fmt: skip
    oracle.assert_same(seen, wanted)


class Causal(nn.Module):
    """Each position knows the tokens up to it, so padding on the right changes nothing before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 6), nn.Linear(6, 11)

    def forward(self, tokens):
        return self.head(self.embed(tokens).cumsum(1) / torch.arange(1, tokens.shape[1] + 1)[:, None])


@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("shift", [True, False])
def test_tokens_of_unequal_length(buffered, shift):
    draw = torch.Generator().manual_seed(3)
    lines = [torch.randint(0, 11, (n,), generator=draw) for n in (9, 2, 5, 1, 1, 12, 3, 4, 7, 2, 6)]

    def padded(some):
        tokens = nn.utils.rnn.pad_sequence(some, batch_first=True, padding_value=0)
        labels = nn.utils.rnn.pad_sequence(some, batch_first=True, padding_value=-100)
        return tokens, labels

    groups = [lines[:2], lines[2:5], lines[5:6], lines[6:9], lines[9:]]
    batches = [padded(group) for group in groups]  # the padded width differs from one micro-batch to the next

    def mean_loss(model, window):
        tokens, labels = padded([line for group in window for line in group])
        scores = model(tokens)
        scores, labels = (scores[:, :-1], labels[:, 1:]) if shift else (scores, labels)
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=-100)

    torch.manual_seed(0)
    model = Causal().double()
    torch.manual_seed(0)
    big = Causal().double()
    own, other = OPTIMIZERS["AdamW"](model.parameters()), OPTIMIZERS["AdamW"](big.parameters())
    with oracle.observed(model, own) as seen:
        log = ak.train_epoch(
            model, batches, own, ak.next_token(shift=shift), accumulation_steps=2, buffered=buffered
        )  # fmt: skip
    oracle.assert_same(seen, oracle.big_batches(big, other, oracle.grouped(groups, 2), mean_loss))
    lost = 1 if shift else 0  # a line's first token is no target
    wanted = [sum(len(line) - lost for group in window for line in group) for window in oracle.grouped(groups, 2)]
    assert [u.count for u in log.updates] == wanted
    assert log.examples == len(lines)
    assert log.unit == "tokens"


def test_counts_apart_and_the_loss_is_the_true_mean():
    batches = oracle.labelled([4, 4, 4, 4, 3], ignored=0.4)
    model = oracle.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # so that the loss of the whole epoch is known at once
    log = ak.train_epoch(model, batches, optimizer, ak.classification(), accumulation_steps=3)
    assert [u.examples for u in log.updates] == [12, 7]
    assert (len(log.updates), log.micro_batches, log.examples) == (2, 5, 19)
    assert log.count == sum(int((y != -100).sum()) for _, y in batches)
    assert log.loss == pytest.approx(oracle.mean_cross_entropy(model, batches).item(), rel=1e-14)


@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
def test_tail_dropped_on_purpose(buffered):
    batches = oracle.labelled([4, 4, 4, 4, 3])
    model, shorter = (
        nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)),
        nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)),
    )
    shorter.load_state_dict(model.state_dict())
    logs = [
        ak.train_epoch(m.double(), data, OPTIMIZERS["SGD"](m.parameters()), ak.classification(), accumulation_steps=3,
                       tail="drop", buffered=buffered)
        for m, data in ((model, batches), (shorter, batches[:3]))
    ]  # fmt: skip
    assert [u.examples for u in logs[0].updates] == [12]
    assert (logs[0].dropped_micro_batches, logs[0].dropped_examples) == (2, 7)
    for name, value in shorter.state_dict().items():  # BatchNorm's statistics too: a dropped tail leaves no trace
        assert torch.equal(model.state_dict()[name], value), name
    assert all(p.grad is None for p in model.parameters())
