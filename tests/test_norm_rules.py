"""Findings about coupling: BatchNorm, losses that compare examples, and dropout; none where none belongs."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import accumkit as ak
from accumkit.studies.layers import DeferredBatchNorm, commit
from accumkit.studies.running import corrected_momentum
from tests import right_loops as right
from tests.problems import images


def net(*norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), *norm, nn.ReLU(), nn.Linear(8, 10)).double()


def slugs(verdict: ak.audit) -> list[str]:
    return [finding.pitfall for finding in verdict.findings]


def test_batchnorm_is_named_with_how_far_it_turns_the_gradient():
    trace = images(model=net(nn.BatchNorm1d(8, momentum=None))).watch(right.six_lines)
    verdict = ak.audit(trace)
    assert slugs(verdict) == ["batchnorm-statistics"]
    (finding,) = verdict.findings
    assert (finding.affects, finding.lesson) == ("gradient", "04_batchnorm_and_groupnorm")
    assert verdict.status == "not equivalent"
    assert verdict.reasons == ()
    said = re.search(r"cosine to the big batch's is 0\.(\d+) to 0\.(\d+), its difference", finding.evidence)
    cosines = [update.cosine for update in trace.updates]
    assert (float(f"0.{said[1]}"), float(f"0.{said[2]}")) == pytest.approx((min(cosines), max(cosines)), abs=1e-3)
    assert finding.evidence.endswith("In every update (6)")
    assert "ak.replace_batchnorm" in finding.fix
    assert "SyncBatchNorm joins ranks" in finding.fix


def test_the_fix_it_names_is_one():
    trained = net(nn.BatchNorm1d(8))
    assert ak.audit(images(model=ak.replace_batchnorm(net(nn.BatchNorm1d(8)), groups=2)).watch(right.six_lines)).ok
    trained(torch.randn(9, 64, dtype=torch.float64))
    assert ak.audit(images(model=ak.replace_batchnorm(trained, frozen=True)).watch(right.six_lines)).ok


def test_many_layers_are_shortened_and_events_alone_are_enough():
    model = nn.Sequential(nn.Flatten(), *(nn.BatchNorm1d(64, momentum=None) for _ in range(6)), nn.Linear(64, 10))
    verdict = ak.audit(images(model=model.double()).watch(right.six_lines, objective=None))
    assert slugs(verdict) == ["batchnorm-statistics"]
    assert "layers 1, 2, 3 and 3 more" in verdict.findings[0].evidence
    assert "cosine" not in verdict.findings[0].evidence  # nothing was measured


@pytest.mark.parametrize(
    "model",
    [
        net(nn.BatchNorm1d(8)).eval(),
        net(nn.GroupNorm(2, 8)),
        net(nn.LayerNorm(8)),
        net(nn.Identity()),
    ],
)
def test_norms_that_do_not_mix_are_not_accused(model):
    assert ak.audit(images(model=model).watch(right.six_lines)).ok


def test_one_micro_batch_an_update_is_the_big_batch():
    assert ak.audit(images(model=net(nn.BatchNorm1d(8))).watch(right.six_lines, 1)).ok


def test_momentum_is_named_with_what_it_amounts_to():
    verdict = ak.audit(images(24, model=net(nn.BatchNorm1d(8, momentum=0.2))).watch(right.six_lines))
    assert slugs(verdict) == ["batchnorm-statistics", "batchnorm-momentum"]
    finding = verdict.findings[1]
    assert finding.affects == "record"
    # 6 micro-batches in 2 updates: 3 moves an update, 1 - 0.8^3 = 0.488; the cure is 1 - 0.8^(1/3) = 0.0717
    assert "(layer 2) move 3 times an update: their momentum of 0.2 amounts to 0.488 an update" in finding.evidence
    assert "here 0.0717" in finding.fix


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(8, momentum=None),
        nn.BatchNorm1d(8, momentum=corrected_momentum(0.1, 3)),
        nn.BatchNorm1d(8, track_running_stats=False),
    ],
)
def test_momentum_that_is_corrected_or_absent_is_not_accused(norm):
    assert slugs(ak.audit(images(model=net(norm)).watch(right.six_lines))) == ["batchnorm-statistics"]


def test_deferred_statistics_move_once_an_update():
    def loop(model, loader, optimizer, steps, scheduler):
        objective = ak.classification()
        for window in ak.windows(loader, steps, objective):
            optimizer.zero_grad()
            for batch in window:
                (objective.total(model, batch) / window.count).backward()
            commit(model)
            optimizer.step()

    trace = images(model=net(DeferredBatchNorm(8))).watch(loop)
    assert [tuple(entry) for entry in trace.running] == [("2", 0.1, 3)]
    assert slugs(ak.audit(trace)) == ["batchnorm-statistics"]


def test_a_loss_that_compares_examples_is_named():
    def total(model, batch):  # each image is to be told from the others of its micro-batch
        pixels, _ = batch
        z = F.normalize(model(pixels), dim=1)
        return F.cross_entropy(z @ z.T / 0.5, torch.arange(len(z)), reduction="sum")

    objective = ak.Objective(total_loss=total, count=lambda batch: len(batch[1]))

    def loop(model, loader, optimizer, steps, scheduler):
        for window in ak.windows(loader, steps, objective):
            optimizer.zero_grad()
            for batch in window:
                (objective.total(model, batch) / window.count).backward()
            optimizer.step()

    verdict = ak.audit(images(objective=objective).watch(loop))
    assert slugs(verdict) == ["coupled-examples"]
    assert verdict.status == "not equivalent"
    assert "examples act on each other" in verdict.findings[0].evidence
    assert re.match(r"test_norm_rules.py:\d+", verdict.findings[0].location)
    assert ak.audit(images(objective=objective).watch(loop, 1)).ok


def dropping(seed_again: bool):
    def loop(model, loader, optimizer, steps, scheduler):
        objective = ak.classification()
        for window in ak.windows(loader, steps, objective):
            optimizer.zero_grad()
            for batch in window:
                if seed_again:
                    torch.manual_seed(0)
                (objective.total(model, batch) / window.count).backward()
            optimizer.step()

    return loop


def test_masks_that_come_again_are_named():
    trace = images(model=net(nn.Dropout(0.5))).watch(dropping(seed_again=True))
    assert [(u.drew, u.masks_repeated) for u in trace.updates] == [(3, 2), (3, 2), (2, 1)]
    verdict = ak.audit(trace)
    assert slugs(verdict) == ["dropout-masks"]
    assert "5 of 8 micro-batches drew the same random numbers" in verdict.findings[0].evidence
    assert verdict.status == "not equivalent"
    assert "drawn as the big batch's are" not in verdict.reason


def test_dropout_as_it_should_be_is_said_and_is_no_fault():
    verdict = ak.audit(images(model=net(nn.Dropout(0.5))).watch(dropping(seed_again=False)))
    assert verdict.ok
    assert "gradients agree in distribution, not in value. In every update (3)." in verdict.reason
    assert ak.audit(images(model=net(nn.Dropout(0.5))).watch(dropping(seed_again=True), 1)).ok
    assert ak.audit(images(model=net(nn.Dropout(0.5)).eval()).watch(dropping(seed_again=True))).reason == ""
    assert ak.audit(images(model=net()).watch(dropping(seed_again=True))).ok  # nothing is drawn


def test_batchnorm_with_dropout_claims_no_number_that_was_not_measured():
    verdict = ak.audit(images(model=net(nn.BatchNorm1d(8, momentum=None), nn.Dropout(0.5))).watch(right.six_lines))
    assert slugs(verdict) == ["batchnorm-statistics"]
    assert "cosine" not in verdict.findings[0].evidence


def test_a_fault_of_the_loop_is_still_named_beside_batchnorm():
    def missing(model, loader, optimizer, steps, scheduler):
        for i, (pixels, labels) in enumerate(loader, 1):
            F.cross_entropy(model(pixels), labels).backward()
            if i % steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    verdict = ak.audit(images(24, model=net(nn.BatchNorm1d(8, momentum=None))).watch(missing))
    assert slugs(verdict) == ["missing-division", "batchnorm-statistics"]
