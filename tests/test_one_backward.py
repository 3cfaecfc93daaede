"""Loops that run the forwards of a window and then call one backward on their losses: judged as any other loop."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import accumkit as ak

N = 4


def mean(losses):
    return torch.stack(losses).mean()


def by_four(losses):
    return sum(losses) / N


def loader(batches):
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randn(8 * batches, 6, dtype=torch.float64, generator=draw)
    return DataLoader(TensorDataset(pixels, torch.randint(0, 3, (8 * batches,), generator=draw)), batch_size=8)


def audited(loop, batches=10, fed=None, **watch):
    """Return the verdict on a loop over batches of 8 examples, from a DataLoader or what ``fed`` makes of it."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = loader(batches) if fed is None else fed(loader(batches))
    with ak.watch(model, watch.pop("objective", ak.classification()), accumulation_steps=N, **watch) as trace:
        loop(model, data, optimizer)
    return ak.audit(trace)


def joined(divided=mean, passes=1, last=False, leaks=False, first=1, skipped=()):
    """Return a loop that collects losses; ``last``: it steps at the end too, ``leaks``: it keeps them over passes."""

    def loop(model, data, optimizer):
        losses = []
        for _ in range(passes):
            losses = losses if leaks else []
            for i, (pixels, labels) in enumerate(data, first):
                if i not in skipped:
                    losses.append(F.cross_entropy(model(pixels), labels))
                if i % N == 0 or (last and i == len(data)):
                    divided(losses).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    losses = []

    return loop


def slices(model, data, optimizer, passes=1):
    batches = list(data)
    for _ in range(passes):
        for i in range(0, len(batches), N):
            window = batches[i : i + N]
            optimizer.zero_grad()
            (sum(F.cross_entropy(model(x), y) for x, y in window) / len(window)).backward()
            optimizer.step()


def full_slices(model, data, optimizer):
    batches = list(data)
    slices(model, batches[: len(batches) // N * N], optimizer)


def pairs(model, data, optimizer):
    """Call the model twice for each micro-batch, and step after each."""
    for pixels, labels in data:
        (F.cross_entropy(model(pixels), labels) + F.cross_entropy(model(-pixels), labels)).backward()
        optimizer.step()
        optimizer.zero_grad()


def names(verdict):
    return [finding.pitfall for finding in verdict.findings]


@pytest.mark.parametrize("passes", [1, 2])
def test_a_short_window_whose_losses_are_thrown_away_is_no_equivalent_run(passes):
    verdict = audited(joined(passes=passes))
    assert (verdict.status, names(verdict)) == ("cannot tell", [])
    which = "the pass" if passes == 1 else "each pass"
    assert verdict.reasons[0].startswith(f"No window was made of the last 2 batches of {which}: fetched, and without a")
    assert "the tail is dropped (tail-dropped)" in verdict.reasons[0]
    assert audited(joined(passes=passes), tail="drop").status == "equivalent"


def test_a_short_slice_that_is_left_out_is_no_equivalent_run():
    verdict = audited(full_slices, 11)
    assert (verdict.status, names(verdict)) == ("cannot tell", [])
    assert verdict.reasons[0].startswith("No window was made of the last 3 batches of the pass: fetched, and without a")


@pytest.mark.parametrize("divided", [mean, by_four])
def test_losses_that_leak_into_the_next_pass_make_a_window_of_six(divided):
    verdict = audited(joined(divided, passes=2, leaks=True))
    assert (verdict.status, names(verdict)) == ("cannot tell", [])
    assert verdict.reasons[0].startswith("Windows of 4, 4, 6 and 4 micro-batches do not follow from accumulation_steps")
    assert any(said.startswith("2 of the 20 batches fetched had no backward.") for said in verdict.reasons)


@pytest.mark.parametrize(
    ("loop", "fault", "said"),
    [
        (joined(by_four, last=True), "tail-divisor", "has 2 micro-batches and is divided by 4: one example weighs 0.5"),
        (joined(lambda losses: mean(losses) / N, last=True), "double-division", "one example weighs 0.25"),
        (joined(sum, last=True), "missing-division", "a window has 2 to 4 of them: one example weighs 2 to 4"),
        (joined(first=0), "off-by-one", "windows of 1, 4 and 4 micro-batches (the first step after 1, then one after"),
        (joined(by_four, last=True, skipped=(2,)), "skipped-micro-batch", "1 micro-batch was fetched and brought no"),
    ],
)
def test_the_fault_is_named_that_a_backward_each_would_have(loop, fault, said):
    verdict = audited(loop, 9 if fault == "off-by-one" else 10)
    found = {finding.pitfall: finding.evidence for finding in verdict.findings}
    assert verdict.status == "not equivalent"
    assert said in found[fault]
    assert set(found) <= {fault, "tail-divisor"}


@pytest.mark.parametrize("batches", [8, 10, 12])
def test_right_loops_are_equivalent(batches):
    for loop in (joined(last=True), joined(last=True, passes=2), slices):
        verdict = audited(loop, batches)
        assert (verdict.status, verdict.findings) == ("equivalent", ()), verdict


@pytest.mark.parametrize("objective", [ak.classification(), None])
@pytest.mark.parametrize(("fed", "passes"), [(list, 1), (list, 2), (None, 2)])
def test_slices_of_a_list_are_not_taken_for_a_step_at_every_micro_batch(objective, fed, passes):
    verdict = audited(lambda *given: slices(*given, passes), fed=fed, objective=objective)
    assert (verdict.status, names(verdict)) == ("cannot tell", [])
    assert "each backward was for several forward calls" in verdict.reasons[0]


def ahead(model, data, optimizer):
    """Run a window's forwards, then a backward for each."""
    losses = []
    for i, (pixels, labels) in enumerate(data, 1):
        losses.append(F.cross_entropy(model(pixels), labels))
        if i % N == 0 or i == len(data):
            for loss in losses:
                (loss / len(losses)).backward()
            optimizer.step()
            optimizer.zero_grad()
            losses = []


def turns(model, data, optimizer):
    """Call the model a number of times that changes from batch to batch."""
    for i, (pixels, labels) in enumerate(data, 1):
        rows = zip(pixels.chunk(1 + 5 * (i > 5)), labels.chunk(1 + 5 * (i > 5)), strict=True)
        (sum(F.cross_entropy(model(x), y, reduction="sum") for x, y in rows) / 8 / (2 if i > 8 else N)).backward()
        if i % N == 0 or i == len(data):
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("loop", [ahead, turns])
def test_a_backward_each_counts_once_whatever_the_number_of_forward_calls(loop):
    verdict = audited(loop)
    assert (verdict.status, verdict.findings) == ("equivalent", ()), verdict


def test_a_step_at_every_micro_batch_is_one_whose_model_is_called_twice():
    assert "step-every-micro-batch" in names(audited(pairs))
