"""Arguments that cannot work: refused with what was given and what to change, before anything is trained."""

from __future__ import annotations

import re

import big_batch as oracle
import pytest
import torch
import torch.nn.functional as F
from refusals import OBJECTIVE, epoch, net, refused
from torch import nn

import accumkit as ak


@pytest.mark.parametrize("steps", [0, -1, 2.5, True, "4", None, 4.0])
def test_accumulation_steps(steps):
    problem = refused("accumulation_steps=", oracle.labelled([4]), accumulation_steps=steps)
    assert repr(steps) in str(problem)
    assert "whole number of 1 or more" in str(problem)
    with pytest.raises(ak.AccumkitError, match="accumulation_steps="):
        ak.windows([], steps, OBJECTIVE)  # at once, not at the first window


@pytest.mark.parametrize("tail", ["Step", None, True, "keep"])
def test_tail(tail):
    assert '"drop"' in str(refused(f"tail={tail!r}", oracle.labelled([4]), tail=tail))
    with pytest.raises(ak.AccumkitError, match="tail="):
        ak.windows([], 2, OBJECTIVE, tail=tail)


@pytest.mark.parametrize("norm", [0, -1.0, float("nan"), True, "1", torch.tensor(1.0)])
def test_max_grad_norm(norm):
    refused("max_grad_norm=.*above 0", oracle.labelled([4]), max_grad_norm=norm)


def test_objective():
    refused(
        "the objective is <function cross_entropy.*ak.classification", oracle.labelled([4]), objective=F.cross_entropy
    )
    with pytest.raises(ak.AccumkitError, match="the objective is None"):
        ak.windows([], 2, None)


@pytest.mark.parametrize("given", ["ce", b"ce", ["ce"], ("ce",)], ids=repr)
def test_an_objective_that_has_a_count_of_another_kind(given):
    shown = f"the objective is {re.escape(repr(given))}; give an Objective, such as ak.classification"
    refused(shown, oracle.labelled([4]), objective=given)
    with pytest.raises(ak.AccumkitError, match=shown):
        ak.windows([], 2, given)


def test_model():
    model, optimizer = net()
    with pytest.raises(ak.AccumkitError, match=r"the model is 'function'; give a torch.nn.Module"):
        epoch(F.relu, optimizer, oracle.labelled([4]))
    model.requires_grad_(False)
    refused("nothing to train: 4 parameters, none requires a gradient", oracle.labelled([4]), pair=(model, optimizer))
    bare = nn.Flatten()
    with pytest.raises(ak.AccumkitError, match="nothing to train: 0 parameters"):
        epoch(bare, optimizer, oracle.labelled([4]))


def test_eval_mode_is_a_warning_and_trains():
    model, optimizer = net()
    with pytest.warns(UserWarning, match=r"eval mode.*model.train\(\)"):
        log = epoch(model.eval(), optimizer, oracle.labelled([4]))
    assert len(log.updates) == 1


def test_optimizer():
    model, _ = net()
    with pytest.raises(ak.AccumkitError, match="the optimizer is 'float'"):
        epoch(model, 0.1, oracle.labelled([4]))
    other = torch.optim.SGD(nn.Linear(2, 2).parameters())
    refused("none of the model's trainable parameters", oracle.labelled([4]), pair=(model, other))
    lbfgs = torch.optim.LBFGS(model.parameters())
    refused("LBFGS needs a closure", oracle.labelled([4]), pair=(model, lbfgs))


def test_scheduler():
    model, optimizer = net()
    schedulers = torch.optim.lr_scheduler
    pair = (model, optimizer)
    plateau = schedulers.ReduceLROnPlateau(optimizer)
    refused(
        "ReduceLROnPlateau watches a validation figure", oracle.labelled([4]), pair=pair, scheduler_per_update=plateau
    )
    stranger = schedulers.StepLR(net()[1], 1)
    refused("belongs to another optimizer", oracle.labelled([4]), pair=pair, scheduler_per_update=stranger)
    refused("no step()", oracle.labelled([4]), pair=pair, scheduler_per_update=3)


def test_precision():
    refused("autocast_dtype=torch.float32", oracle.labelled([4]), autocast_dtype=torch.float32)
    refused("autocast_dtype='bfloat16'", oracle.labelled([4]), autocast_dtype="bfloat16")
    refused("scaler is 'bool'", oracle.labelled([4]), scaler=True)
    model = oracle.mlp(dtype=torch.float16)
    pair = (model, torch.optim.SGD(model.parameters()))
    refused("float16 parameters", oracle.labelled([4]), pair=pair, scaler=torch.amp.GradScaler("cpu"))
    model, optimizer = net()
    epoch(model, optimizer, oracle.labelled([4]), scaler=torch.amp.GradScaler("cpu", enabled=False))  # as without


@pytest.mark.parametrize("device", ["gpu", 1.5, [0]])
def test_device(device):
    refused("device=.* is no device of torch", oracle.labelled([4]), device=device)
    with pytest.raises(ak.AccumkitError, match="is no device of torch"):
        ak.windows([], 2, OBJECTIVE, device=device)


def test_mixed_devices():
    refused("device='meta'.*parameters are on cpu.*model.to", oracle.labelled([4]), device="meta")
    model, optimizer = net()
    model.register_parameter("far", nn.Parameter(torch.zeros(2, device="meta")))
    with pytest.raises(ak.AccumkitError, match=r"several devices \(meta, cpu\).*device="):
        epoch(model, optimizer, oracle.labelled([4]))
    elsewhere = [(x.to("meta"), y) for x, y in oracle.labelled([4])]
    with pytest.raises(ak.AccumkitError, match=r"update 1.*"):  # a meta tensor holds nothing that could be moved
        epoch(*net(), elsewhere)
