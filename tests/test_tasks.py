"""The data sets and models of the course: real, repeatable, and without a trace on the caller's random numbers."""

from __future__ import annotations

import subprocess
import sys
from itertools import chain

import pytest
import torch
from torch import nn

import accumkit as ak
from accumkit import tasks


@pytest.fixture(autouse=True)
def global_rng_untouched():
    before = torch.get_rng_state()
    yield
    assert torch.equal(before, torch.get_rng_state()), "a task moved torch's global random numbers"


def test_digits_are_the_real_ones():
    images, labels = tasks.digits().tensors
    assert images.shape == (1797, 1, 8, 8)
    assert images.min() == 0
    assert images.max() == 1
    assert torch.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_depend_on_the_seed_alone():
    first, again, other = tasks.digits(30), tasks.digits(30), tasks.digits(30, seed=1)
    assert torch.equal(first.tensors[0], again.tensors[0])
    assert not torch.equal(first.tensors[1], other.tensors[1])
    assert torch.equal(first.tensors[0][:7], tasks.digits(7).tensors[0])
    assert tasks.digits(3, dtype=torch.float64).tensors[0].dtype == torch.float64
    assert len(set(tasks.digits(64).tensors[1].tolist())) == 10


@pytest.mark.parametrize("examples", [0, -1, 1798, 2.5, True, "4"])
def test_digits_refuse_a_wrong_number_of_examples(examples):
    with pytest.raises(ak.AccumkitError, match=r"examples=.*from 1 to 1,797"):
        tasks.digits(examples)


def test_digits_say_what_to_install(monkeypatch):
    tasks._all_digits.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ak.AccumkitError, match="pip install scikit-learn") as refused:
        tasks.digits()
    assert isinstance(refused.value.__cause__, ImportError)


def test_loader_order_depends_on_the_seed_alone():
    def epochs(seed):
        loader = tasks.loader(tasks.digits(19), 4, shuffle=True, seed=seed)
        return [[labels.tolist() for _, labels in loader] for _ in range(2)]

    assert epochs(0) == epochs(0)
    assert epochs(0) != epochs(1)
    assert epochs(0)[0] != epochs(0)[1], "each pass is mixed anew"
    assert sorted(chain(*epochs(0)[0])) == sorted(tasks.digits(19).tensors[1].tolist())


@pytest.mark.parametrize("size", [0, -2, 1.5, True, "4"])
def test_loader_refuses_a_wrong_size(size):
    with pytest.raises(ak.AccumkitError, match="micro_batch_size="):
        tasks.loader(tasks.digits(3), size)


@pytest.mark.parametrize(
    "build",
    [tasks.mlp, tasks.cnn, tasks.next_token_model, lambda **k: tasks.cnn(norm="batch", **k)],
    ids=["mlp", "cnn", "next_token_model", "cnn-batch"],
)
def test_models_depend_on_the_seed_alone(build):
    one, same, other = (nn.utils.parameters_to_vector(build(seed=seed).parameters()) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert next(build(dtype=torch.float64).parameters()).dtype == torch.float64


def test_model_sizes():
    assert sum(p.numel() for p in tasks.mlp().parameters()) == 64 * 64 + 64 + 64 * 10 + 10
    assert sum(p.numel() for p in tasks.cnn().parameters()) == 17_362


@pytest.mark.parametrize(
    ("norm", "kind"),
    [(None, nn.Identity), ("batch", nn.BatchNorm2d), ("group", nn.GroupNorm), ("layer", nn.GroupNorm),
     (nn.InstanceNorm2d, nn.InstanceNorm2d)],
)  # fmt: skip
def test_cnn_norms(norm, kind):
    model = tasks.cnn(norm=norm)
    assert isinstance(model[1], kind)
    assert isinstance(model[4], kind)
    assert model(tasks.digits(5).tensors[0]).shape == (5, 10)


def test_cnn_refuses_an_unknown_norm():
    with pytest.raises(ak.AccumkitError, match="norm='bach'"):
        tasks.cnn(norm="bach")


def test_zen_is_swallowed_padded_and_readable():
    script = "from accumkit import tasks; lines = tasks.zen(); print(len(lines), lines.lines[0], end='')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "20 The Zen of Python, by Tim Peters\n"
    lines = tasks.zen()
    tokens, labels = next(iter(tasks.loader(lines, 4)))
    lengths = [len(line) for line in lines.lines[:4]]
    assert len(set(lengths)) > 1
    assert tokens.shape == labels.shape == (4, max(lengths))
    assert (labels != tasks.IGNORED).sum(1).tolist() == lengths
    assert torch.equal(tokens[labels != tasks.IGNORED], labels[labels != tasks.IGNORED])
    assert not tokens[labels == tasks.IGNORED].any()
    assert [lines.decode(row) for row in labels] == list(lines.lines[:4])
    assert [lines.decode(row) for row in tokens] == list(lines.lines[:4])
    assert ak.next_token().count((tokens, labels)) == sum(length - 1 for length in lengths)


def test_next_token_model_does_not_look_ahead():
    lines = tasks.zen()
    model = tasks.next_token_model(len(lines.vocabulary))
    tokens = lines[0][None].clone()
    scores = model(tokens)
    tokens[0, 10] = 1
    assert torch.equal(model(tokens)[0, :10], scores[0, :10])
    assert not torch.equal(model(tokens)[0, 10], scores[0, 10])


def test_no_lines():
    with pytest.raises(ak.AccumkitError, match="no lines"):
        tasks.Lines([])
