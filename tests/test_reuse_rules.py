"""Data that come again on purpose, or not at all: shuffled restarts, samples of one batch, a backward for each task."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import accumkit as ak
from tests import faulty_loops as faulty
from tests.problems import images


def restarted(shuffle):
    def loop(model, loader, optimizer, steps, scheduler):
        again = DataLoader(loader.dataset, 4, shuffle=shuffle)
        for _ in range(4):
            optimizer.zero_grad()
            for pixels, labels in islice(again, steps):
                (F.cross_entropy(model(pixels), labels) / steps).backward()
            optimizer.step()

    return loop


def test_a_loader_that_shuffles_may_be_begun_for_every_window():
    trace = images().watch(restarted(shuffle=True))
    assert [u.fed_again for u in trace.updates] == [None, False, False, False]
    verdict = ak.audit(trace)
    assert verdict.ok, verdict
    assert "data-reused" not in verdict.reason
    trace = images().watch(restarted(shuffle=False))
    assert [u.fed_again for u in trace.updates] == [None, True, True, True]
    (finding,) = ak.audit(trace).findings
    assert finding.pitfall == "data-reused"
    assert "every window had the same data" in finding.evidence


def test_without_an_objective_it_cannot_be_told_and_is_said():
    verdict = ak.audit(images().watch(restarted(shuffle=True), objective=None))
    assert verdict.findings == ()
    assert "If it does not shuffle" in verdict.reason


def samples(model, loader, optimizer, steps, scheduler):
    for pixels, labels in loader:
        optimizer.zero_grad()
        for _ in range(steps):
            (F.cross_entropy(model(pixels), labels) / steps).backward()
        optimizer.step()


def test_samples_of_one_batch_with_other_masks_are_said_and_not_accused():
    dropout = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 10)).double()
    verdict = ak.audit(images(model=dropout).watch(samples))
    assert verdict.ok, verdict
    assert "In updates 1 to 8 several backward calls were for one batch" in verdict.reason
    assert [f.pitfall for f in ak.audit(images().watch(samples)).findings] == ["data-reused"]  # all draws are one

    def same_masks(model, loader, optimizer, steps, scheduler):
        for pixels, labels in loader:
            optimizer.zero_grad()
            for _ in range(steps):
                torch.manual_seed(1)
                (F.cross_entropy(model(pixels), labels) / steps).backward()
            optimizer.step()

    assert "data-reused" in [f.pitfall for f in ak.audit(images(model=dropout).watch(same_masks)).findings]


def tasks(weight=1.0):
    def loop(model, loader, optimizer, steps, scheduler):
        for _ in range(2):
            for window in ak.windows(loader, steps, ak.classification()):
                optimizer.zero_grad()
                for pixels, labels in window:
                    for part in (0.5, 0.5):
                        loss = part * F.cross_entropy(model(pixels), labels, reduction="sum")
                        (weight * loss / window.count).backward()
                optimizer.step()

    return loop


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_backward_for_each_task_is_said_and_not_accused(steps):
    verdict = ak.audit(images().watch(tasks(), steps))
    assert verdict.findings == ()
    assert "several backward calls were for one batch: right for one call a task" in verdict.reason


@pytest.mark.parametrize("loop", [faulty.same_batch_again, faulty.first_batch_again, faulty.first_window_again])
def test_what_was_a_fault_is_one(loop):
    assert [f.pitfall for f in ak.audit(images().watch(loop)).findings] == ["data-reused"]
