"""Verdicts where numbers say nothing, where one fault looks like two, and where batches at the end were passed over."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import accumkit as ak

CLASSES = ak.classification()


def names(verdict):
    return [finding.pitfall for finding in verdict.findings]


def batches(micro_batches, size=4, features=20, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    pixels = torch.randn(micro_batches * size, features, dtype=dtype)
    targets = torch.randn(micro_batches * size, 1, dtype=dtype)
    return list(zip(pixels.split(size), targets.split(size), strict=True))


def summed(factor):
    """Return an objective: squared errors, times a factor."""
    return ak.Objective(
        loss=lambda output, batch: factor * ((output - batch[1]) ** 2).sum(), count=lambda batch: len(batch[1])
    )


def watched(data, objective, divisor, steps=4, dtype=torch.float32):
    """Return the verdict on a linear model, each loss divided by one number."""
    torch.manual_seed(0)
    model = nn.Linear(20, 1).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ak.watch(model, objective, accumulation_steps=steps) as trace:
        for i, batch in enumerate(trace.batches(data), 1):
            (objective.total(model, batch) / divisor).backward()
            if i % steps == 0:
                optimizer.step()
                optimizer.zero_grad()
    return ak.audit(trace)


def test_gradients_of_zero_show_nothing():
    verdict = watched(batches(8), summed(0.0), 4)
    assert (verdict.status, names(verdict)) == ("cannot tell", [])
    assert "The gradient is 0 in updates 1 and 2" in verdict.reason
    assert "example weighs" not in repr(verdict).split("because")[0]
    assert watched(batches(8), summed(1.0), 16).ok


def test_one_window_with_a_gradient_is_evidence():
    data = batches(8)
    objective = ak.Objective(
        loss=lambda output, batch: (batch[1][0] != 0) * ((output - batch[1]) ** 2).sum(),
        count=lambda batch: len(batch[1]),
    )
    for _, targets in data[4:]:
        targets.zero_()
    assert watched(data, objective, 16).ok
    assert names(watched(data, objective, 4)) == ["missing-division"]


@pytest.mark.parametrize("factor", [1e155, 1e160])
def test_numbers_that_are_not_finite_show_nothing(factor):
    verdict = watched(batches(8, dtype=torch.float64), summed(factor), 4, dtype=torch.float64)
    assert (verdict.status, names(verdict)) == ("cannot tell", [])
    assert "could not be judged" in verdict.reason
    assert "not finite" in verdict.reason


def first_step_too_early(divide):
    """Return the verdict on windows of 1, 3, 3, 3 and 1 micro-batches, of two examples each."""
    torch.manual_seed(0)
    model, data = nn.Linear(20, 1).double(), batches(11, size=2, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ak.watch(model, ak.regression(), accumulation_steps=3) as trace:
        for i, (inputs, targets) in enumerate(trace.batches(data)):
            (F.mse_loss(model(inputs), targets) / divide(i)).backward()
            if i % 3 == 0 or i + 1 == len(data):
                optimizer.step()
                optimizer.zero_grad()
    return ak.audit(trace)


def test_a_boundary_at_the_wrong_count_is_one_fault():
    verdict = first_step_too_early(lambda i: min(3, 11 - i // 3 * 3))
    assert (names(verdict), verdict.status) == (["off-by-one"], "not equivalent")
    assert names(first_step_too_early(lambda i: 9)) == ["off-by-one", "double-division"]


def passing_over(size, steps, bad, fetch=1, passes=1, tail="step", flush=True):
    """Return the verdict on a loop that passes over batches which are not finite and counts what it trains on.

    ``fetch``: it fetches so many before it trains; ``flush``: what waits at the end has a step.
    """
    torch.manual_seed(0)
    model, data = nn.Linear(20, 1), batches(size)
    for i in bad:
        data[i][0][0, 0] = float("nan")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(members):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.div_(sum(len(targets) for _, targets in members))
        optimizer.step()
        optimizer.zero_grad()

    def train(members):
        for inputs, targets in members:
            F.mse_loss(model(inputs), targets, reduction="sum").backward()

    with ak.watch(model, ak.regression(), accumulation_steps=steps, tail=tail) as trace:
        for _ in range(passes):
            window, waiting = [], []
            for batch in trace.batches(data):
                if batch[0].isnan().any():
                    continue
                waiting.append(batch)
                if len(waiting) < fetch:
                    continue
                train(waiting)
                window, waiting = window + waiting, []
                if len(window) == steps:
                    step(window)
                    window = []
            if flush and (window or waiting):
                train(waiting)
                step(window + waiting)
    return ak.audit(trace)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("bad", [(4,), (4, 5)])
def test_batches_passed_over_after_a_whole_window(bad, passes):
    verdict = passing_over(4 + len(bad), 4, bad, passes=passes)
    assert (names(verdict), verdict.status) == ([], "cannot tell")
    what = "the last batch" if len(bad) == 1 else "the last 2 batches"
    assert f"No window was made of {what} of {'the' if passes == 1 else 'each'} pass" in verdict.reason
    assert "tail-dropped" in verdict.reason
    assert passing_over(4 + len(bad), 4, bad, passes=passes, tail="drop").ok


def test_a_loop_that_passes_over_batches_elsewhere_too():
    verdict = passing_over(9, 4, (2, 6, 8))
    assert verdict.ok
    assert "3 of the 9 batches fetched had no backward." in verdict.reason
    assert passing_over(9, 4, (2,)).ok


def test_a_short_window_that_is_fetched_and_dropped():
    assert names(passing_over(6, 4, (), fetch=4, flush=False)) == ["tail-dropped"]


def cleared_layer(part, cleared=True):
    """Return the verdict on a loop that clears its first layer at every micro-batch, and that layer's part."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 1))
    with torch.no_grad():
        model[2].weight.mul_(part)
    objective, data = ak.regression(), batches(16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    with ak.watch(model, objective, accumulation_steps=4) as trace:
        for i, batch in enumerate(trace.batches(data), 1):
            if cleared:
                model[0].zero_grad()
            (objective.total(model, batch) / 16).backward()
            if i % 4 == 0:
                first, whole = (
                    torch.cat([p.grad.flatten() for p in m.parameters()]).norm().item() for m in (model[0], model)
                )
                optimizer.step()
                optimizer.zero_grad()
    return ak.audit(trace), first / whole


@pytest.mark.parametrize("part", [1.0, 0.01, 0.003])
def test_a_small_layer_that_is_cleared_inside_every_window(part):
    verdict, of_the_norm = cleared_layer(part)
    assert verdict.status == "not equivalent", of_the_norm
    assert part == 1.0 or of_the_norm < 1e-2
    assert cleared_layer(part, cleared=False)[0].ok


def clipped_by_hand(limit, loss="sum/W", by_hand=lambda members: 1.0, sizes=(4,) * 10, steps=4):
    """Return the verdict on a loop that multiplies its gradients by hand, and then clips them by hand.

    Later examples are the larger, so that norms differ: without a clip they are 2.7 to 13 here.
    """
    torch.manual_seed(0)
    model, made = nn.Linear(6, 1).double(), []
    data = [(torch.randn(n, 6).double(), (i + 1) * torch.ones(n, 1).double()) for i, n in enumerate(sizes)]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with ak.watch(model, ak.regression(), accumulation_steps=steps) as trace:
        batches = trace.batches(data)
        for start in range(0, len(data), steps):
            window = data[start : start + steps]
            count = sum(len(targets) for _, targets in window)
            divisors = {"mean": 1, "mean/k": len(window), "mean/N": steps, "sum/W": count, "sum/W/N": steps * count}
            for _ in window:
                inputs, targets = next(batches)
                reduction = "mean" if loss.startswith("mean") else "sum"
                (F.mse_loss(model(inputs), targets, reduction=reduction) / divisors[loss]).backward()
            for parameter in model.parameters():
                parameter.grad.mul_(by_hand(window))
            norm = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm().item()
            made.append(norm)
            for parameter in model.parameters():
                parameter.grad.mul_(min(1.0, limit / (norm + 1e-6)))
            optimizer.step()
            optimizer.zero_grad()
    verdict = ak.audit(trace)
    if names(verdict):  # what was named was measured before the clip
        assert [u.grad_norm for u in trace.updates] == pytest.approx(made, rel=1e-6)
        clips = [u.clip_factor or 1.0 for u in trace.updates]
        assert clips == pytest.approx([min(1.0, limit / norm) for norm in made], rel=1e-5)
    return verdict


UNEQUAL = (2, 5, 3, 4, 1, 6, 2, 4, 5, 3)


@pytest.mark.parametrize(
    ("loss", "sizes", "limits", "fault"),
    [
        ("mean", (4,) * 10, (20.0, 35.0), "missing-division"),
        ("sum/W/N", (4,) * 10, (0.1, 1.5), "double-division"),
        ("mean/N", (4,) * 10, (0.1, 4.0, 8.0), "tail-divisor"),
        ("mean/k", UNEQUAL, (0.1, 8.0), "mean-of-means"),
    ],
)
def test_a_clip_by_hand_hides_no_division(loss, sizes, limits, fault):
    for limit in limits:
        verdict = clipped_by_hand(limit, loss, sizes=sizes)
        assert (names(verdict), verdict.status) == ([fault], "not equivalent"), limit


def test_a_clip_by_hand_that_may_hide_a_missing_division():
    """Dividing by hand and clipping every update leaves the same trace: a remark, and no fault."""
    for by_hand in (lambda members: 1.0, lambda members: 1 / len(members)):
        verdict = clipped_by_hand(0.1, "mean", by_hand)
        assert verdict.ok
        assert "every micro-batch counts as a whole update in updates 1 to 3" in verdict.reason
        assert "missing-division" in verdict.reason


@pytest.mark.parametrize("limit", [0.1, 5.0, 8.0, 100.0])
@pytest.mark.parametrize("sizes", [(4,) * 10, (4,) * 9, UNEQUAL, (1,) * 9], ids=["2 left", "1 left", "unequal", "ones"])
def test_right_loops_that_divide_and_clip_by_hand(limit, sizes):
    def one_over_count(members):
        return 1 / sum(len(targets) for _, targets in members)

    assert clipped_by_hand(limit, "sum/W", sizes=sizes).ok
    if len(set(sizes)) == 1:
        assert clipped_by_hand(limit, "mean/k", sizes=sizes).ok
        assert clipped_by_hand(limit, "mean", lambda members: 1 / len(members), sizes=sizes).ok
        assert clipped_by_hand(limit, "mean", lambda members: one_over_count(members) * sizes[0], sizes=sizes).ok


@pytest.mark.parametrize(
    ("divisor", "said"), [(8, "divided by 8, where a window has 4"), (2, "divided by 2,"), (0.3, "")]
)
def test_a_mean_divided_by_another_number(divisor, said):
    verdict = watched(batches(8, dtype=torch.float64), summed(1.0), 4 * divisor, dtype=torch.float64)
    assert (verdict.status, names(verdict)) == ("equivalent up to scale", [])
    assert ("If the loss is a micro-batch's mean, it is " in verdict.reason) == bool(said)
    assert said in verdict.reason


def test_a_loop_that_keeps_to_another_number_than_the_one_it_is_given():
    data = batches(10)
    torch.manual_seed(0)
    model = nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ak.watch(model, ak.regression(), accumulation_steps=7) as trace:
        for i, (x, y) in enumerate(trace.batches(data), 1):
            (F.mse_loss(model(x), y) / (4 if i <= 8 else 2)).backward()
            if i % 4 == 0 or i == len(data):
                optimizer.step()
                optimizer.zero_grad()
    verdict = ak.audit(trace)
    assert verdict.status == "cannot tell"
    assert "Windows of 4 micro-batches do not follow from accumulation_steps=7: declare accumulation_steps=4 " in (
        verdict.reason
    )


@pytest.mark.parametrize(("cleared", "said"), [(1, "so nothing is accumulated"), (4, "takes the gradients before it")])
def test_a_step_after_every_micro_batch_says_whether_gradients_pile_up(cleared, said):
    torch.manual_seed(0)
    model = nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ak.watch(model, ak.regression(), accumulation_steps=4) as trace:
        for i, (x, y) in enumerate(trace.batches(batches(8)), 1):
            (F.mse_loss(model(x), y) / 4).backward()
            optimizer.step()
            if i % cleared == 0:
                optimizer.zero_grad()
    verdict = ak.audit(trace)
    assert names(verdict)[0] == "step-every-micro-batch" and said in verdict.findings[0].evidence


def watched_loop(train, micro_batches, steps=4, size=4, objective=CLASSES):
    """Return the verdict on a loop over a DataLoader with a small classifier in float64."""
    torch.manual_seed(0)
    data = TensorDataset(
        torch.randn(micro_batches * size, 6, dtype=torch.float64), torch.arange(micro_batches * size) % 3
    )
    model = nn.Linear(6, 3).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ak.watch(model, objective, accumulation_steps=steps) as trace:
        train(model, DataLoader(data, batch_size=size), optimizer)
    return ak.audit(trace)


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("micro_batches", [8, 9, 10, 12, 13, 16, 25, 40])
def test_a_condition_that_passes_over_the_first_boundary(micro_batches, epochs):
    def train(model, loader, optimizer):
        for _ in range(epochs):
            for i, (x, y) in enumerate(loader):
                (F.cross_entropy(model(x), y) / 4).backward()
                if i > 0 and i % 4 == 0:
                    optimizer.step()
                    optimizer.zero_grad()

    assert names(watched_loop(train, micro_batches))[0] == "off-by-one"


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # torch's own, where it comes too early
@pytest.mark.parametrize("objective", [None, CLASSES], ids=["events only", "measured"])
@pytest.mark.parametrize("steps", [2, 4])
@pytest.mark.parametrize(("wrong", "named"), [(False, []), (True, ["scheduler-every-micro-batch"])])
def test_one_line_that_steps_several_schedulers(steps, wrong, named, objective):
    def train(model, loader, optimizer):
        more = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        schedulers = [torch.optim.lr_scheduler.StepLR(each, 100) for each in (optimizer, more)]
        more.step()
        for i, (x, y) in enumerate(loader, 1):
            (F.cross_entropy(model(x), y) / steps).backward()
            if i % steps == 0:
                optimizer.step()
                optimizer.zero_grad()
            if wrong or i % steps == 0:
                for scheduler in schedulers:
                    scheduler.step()

    assert names(watched_loop(train, 12, steps, objective=objective)) == named


def test_sums_kept_beside_a_very_small_model():
    def train(model, loader, optimizer):
        sums = [torch.zeros_like(p) for p in model.parameters()]
        for i, (x, y) in enumerate(loader, 1):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            for total, p in zip(sums, model.parameters(), strict=True):
                total += p.grad
            if i % 4 == 0:
                for total, p in zip(sums, model.parameters(), strict=True):
                    p.grad = total / 4
                optimizer.step()
                sums = [torch.zeros_like(p) for p in model.parameters()]

    assert watched_loop(train, 12).ok


def test_inputs_that_are_not_finite_are_no_buffer_that_is_used_again():
    def train(model, loader, optimizer):
        loader.dataset.tensors[0][5] = float("nan")
        for i, (x, y) in enumerate(loader, 1):
            (F.cross_entropy(model(x), y) / 4).backward()
            if i % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()

    reason = watched_loop(train, 4).reason
    assert "the gradient is not finite" in reason and "written again" not in reason
