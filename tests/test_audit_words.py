"""What verdicts say where numbers are tiny, signs are turned, or two sentences could contradict each other."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import accumkit as ak
from accumkit.audit.findings import span
from tests.hand_traces import trace_of
from tests.problems import images


def test_rounding_beside_other_numbers_is_0():
    assert span([-1.41e-08, 1.0]) == "0 to 1"
    assert span([1.0, -2.0, 1e-9]) == "-2 to 1"
    assert span([2e-5, 65536]) == "2e-05 to 65,536"  # small, but no rounding
    assert span([3e-9, 5e-9]) == "3e-09 to 5e-09"  # beside its like it is a number
    assert span([0.0, 0.0]) == "0"
    erased = trace_of([[(4, -1.41e-8, "erased"), (4, 1), (4, 1)]], precision="float32")
    assert "weighs 0 to 1" in repr(ak.audit(erased))


def test_an_optimizer_that_climbs():
    def climbs(model, loader, optimizer, steps, scheduler):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, maximize=True)
        for window in ak.windows(loader, steps, ak.classification()):
            optimizer.zero_grad()
            for pixels, labels in window:
                (-F.cross_entropy(model(pixels), labels, reduction="sum") / window.count).backward()
            optimizer.step()

    verdict = ak.audit(images(36).watch(climbs))
    assert (verdict.findings, verdict.status) == ((), "equivalent up to scale")
    assert "weighs -1 instead of 1" in verdict.reason
    assert "points the other way: with an optimizer that climbs (maximize=True) the objective still" in verdict.reason
    assert "learning rate" not in verdict.reason

    def climbs_on_sums(model, loader, optimizer, steps, scheduler):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, maximize=True)
        for window in ak.windows(loader, steps, ak.classification()):
            optimizer.zero_grad()
            for pixels, labels in window:
                (-0.5 * F.cross_entropy(model(pixels), labels, reduction="sum")).backward()
            optimizer.step()

    said = ak.audit(images().watch(climbs_on_sums)).reason
    assert "its loss counts -0.5 times" in said
    assert "(maximize=True)" in said


def test_a_run_that_weighs_nothing_is_no_scale():
    nothing = trace_of([[(4, 0.0), (4, 0.0), (4, 0.0)]] * 2)
    verdict = ak.audit(nothing)
    assert verdict.status == "not equivalent"
    assert "One example weighs 0 in updates 1 and 2" in verdict.reason


def test_a_tail_that_leaks_was_not_dropped_as_declared():
    def leaks(model, loader, optimizer, steps, scheduler):
        optimizer.zero_grad()
        for _ in range(3):
            for i, (pixels, labels) in enumerate(loader, 1):
                (F.cross_entropy(model(pixels), labels) / steps).backward()
                if i % steps == 0:
                    optimizer.step()
                    optimizer.zero_grad()

    verdict = ak.audit(images().watch(leaks, tail="drop"))
    assert [finding.pitfall for finding in verdict.findings] == ["tail-leaked"]
    assert "dropped, as declared" not in verdict.reason

    def drops(model, loader, optimizer, steps, scheduler):
        for _ in range(2):
            optimizer.zero_grad()
            for i, (pixels, labels) in enumerate(loader, 1):
                (F.cross_entropy(model(pixels), labels) / steps).backward()
                if i % steps == 0:
                    optimizer.step()
                    optimizer.zero_grad()

    verdict = ak.audit(images().watch(drops, tail="drop"))
    assert verdict.ok
    assert "4 micro-batches in short last windows were dropped, as declared." in verdict.reason


def test_reasons_are_sentences():
    trace = trace_of([[(4, None), (4, None), (4, None)]])
    trace.updates[0] = trace.updates[0]._replace(why="it raised IndexError: Target 9 is out of bounds.")
    trace.reasons += ["parameters were replaced", "Nothing was seen (so it seems.)"]
    verdict = ak.audit(trace)
    assert ".." not in verdict.reason
    assert verdict.reasons[0].endswith("Target 9 is out of bounds.")
    assert verdict.reasons[-2:] == ("Parameters were replaced.", "Nothing was seen (so it seems.)")


def contrast(z):
    z = F.normalize(z)
    alike = z @ z.T / 0.5 - 9 * torch.eye(len(z))
    return F.cross_entropy(alike, torch.arange(len(z)).roll(1), reduction="sum")


@pytest.mark.parametrize("dropout", [0.0, 0.1], ids=["plain", "dropout"])
def test_a_difference_that_is_rounding_is_not_told(dropout):
    def loop(model, loader, optimizer, steps, scheduler):
        for window in ak.windows(loader, steps, ak.classification()):
            optimizer.zero_grad()
            for pixels, _ in window:
                (contrast(model(pixels)) / window.count).backward()
            optimizer.step()

    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 10))
    objective = ak.Objective(loss=lambda out, batch: contrast(out), count=lambda batch: len(batch[1]))
    verdict = ak.audit(images(36, dtype=torch.float32, model=model, objective=objective).watch(loop))
    (finding,) = verdict.findings
    assert finding.pitfall == "coupled-examples"
    assert "1.000" not in finding.evidence
    assert ("cosine" in finding.evidence) == (not dropout)


@pytest.mark.parametrize(
    ("cosine", "error", "says"),
    [
        (1 - 2e-9, 6.05e-5, None),
        (1 - 2e-6, 0.002, "the gradient differs from the big batch's by 0.002 of"),
        (0.9, 0.5, "cosine to the big batch's is 0.900, its difference 0.5 of"),
    ],
)
def test_how_far_coupled_gradients_are_apart(cosine, error, says):
    trace = trace_of([[(4, 1), (4, 1), (4, 1)]] * 2, precision="float32")
    trace.coupled.append("examples")
    trace.updates = [u._replace(cosine=cosine, relative_error=error) for u in trace.updates]
    (finding,) = ak.audit(trace).findings
    assert says in finding.evidence if says else "big batch" not in finding.evidence
