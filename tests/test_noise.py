"""What rounding does to a window's numbers: right loops stay right where gradients cancel, are faint or much alike."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import accumkit as ak
from accumkit.trace.noise import filled, of_a_sum
from accumkit.trace.pending import Held
from accumkit.trace.piece import Call
from accumkit.trace.shares import by_fit

PRECISIONS = [torch.float32, torch.float64]
WITHIN = {torch.float32: 1e-3, torch.float64: 1e-6}


def watched(model, optimizer, batches, objective, steps, factor=1.0, passes=1, before_step=None):
    """Train with a right loop, but for a factor on each loss, and return the trace."""
    optimizer.zero_grad()
    with ak.watch(model, objective, accumulation_steps=steps) as trace:
        for _ in range(passes):
            for i, batch in enumerate(trace.batches(batches)):
                window = batches[i // steps * steps : i // steps * steps + steps]
                (objective.total(model, batch) * factor / sum(map(objective.count, window))).backward()
                if (i + 1) % steps == 0 or i + 1 == len(batches):
                    if before_step is not None:
                        before_step(model)
                    optimizer.step()
                    optimizer.zero_grad()
    return trace


def weights(trace):
    return torch.tensor([m.weight for m in trace.micro_batches], dtype=torch.float64)


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("updates", [200, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_late_in_training_a_right_loop_is_right_and_a_wrong_one_is_named(dtype, updates, seed):
    torch.manual_seed(seed)
    x = torch.randn(16, 3, dtype=dtype)
    y = x @ torch.randn(3, 1, dtype=dtype) + torch.randn(16, 1, dtype=dtype)
    for factor, status, names in ((1.0, "equivalent", []), (4.0, "not equivalent", ["missing-division"])):
        model = nn.Linear(3, 1).to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(updates):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        trace = watched(model, optimizer, list(zip(x.split(4), y.split(4), strict=True)), ak.regression(), 4, factor)
        assert (weights(trace) - factor).abs().max() <= factor * WITHIN[dtype]
        verdict = ak.audit(trace)
        assert (verdict.status, [finding.pitfall for finding in verdict.findings]) == (status, names)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_a_gradient_changed_by_hand_is_seen_where_gradients_cancel(dtype):
    torch.manual_seed(3)
    x, y = torch.randn(16, 3, dtype=dtype), torch.randn(16, 1, dtype=dtype)
    model = nn.Linear(3, 1).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(300):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()

    def disturb(model):
        model.weight.grad += 1e-3

    batches = list(zip(x.split(4), y.split(4), strict=True))
    assert ak.audit(watched(model, optimizer, batches, ak.regression(), 4, before_step=disturb)).status != "equivalent"


def hinge():
    return ak.Objective(
        loss=lambda output, batch: (1 - output[:, 0] * batch[1]).clamp(min=0).sum(), count=lambda batch: len(batch[1])
    )


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("scale", [0.0, 1e-12], ids=["none", "lost"])
def test_a_micro_batch_without_a_gradient_weighs_what_the_others_do(dtype, scale):
    torch.manual_seed(0)
    model = nn.Linear(5, 1, bias=False).to(dtype)
    easy = torch.randn(4, 5, dtype=dtype) * 100 * scale
    if not scale:
        easy = 100 * model.weight.detach().expand(4, 5).clone()  # far beyond the margin
    batches = [(torch.randn(4, 5, dtype=dtype), -torch.ones(4, dtype=dtype)) for _ in range(3)]
    batches.insert(1, (easy, torch.ones(4, dtype=dtype)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for factor, status in ((1.0, "equivalent"), (4.0, "not equivalent")):
        trace = watched(model, optimizer, batches, hinge(), 4, factor)
        assert (weights(trace) - factor).abs().max() <= factor * WITHIN[dtype]
        assert ak.audit(trace).status == status


def test_a_micro_batch_whose_loss_is_taken_out_weighs_nothing():
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.randn(4, 5), torch.randint(0, 3, (4,))) for _ in range(4)]
    with ak.watch(model, ak.classification(), accumulation_steps=4) as trace:
        for i, (x, y) in enumerate(trace.batches(batches)):
            (F.cross_entropy(model(x), y) / 4 * (i != 2)).backward()
        optimizer.step()
    assert weights(trace).tolist() == pytest.approx([1, 1, 0, 1], abs=1e-3)


@pytest.mark.parametrize("seed", range(12))
def test_micro_batches_that_hardly_differ_are_weighed_right(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    first, target = torch.randn(4, 6), torch.randint(0, 3, (4,))
    apart = 10 ** (-4.3 + 0.8 * torch.rand(()).item())
    batches = [(first + apart * torch.randn(4, 6), target) for _ in range(4)]
    trace = watched(model, torch.optim.SGD(model.parameters(), lr=0.1), batches, ak.classification(), 4)
    assert (weights(trace) - 1).abs().max() <= 1e-3
    assert ak.audit(trace).status == "equivalent"


def test_a_fit_is_taken_only_where_it_is_sharp():
    taken = 0
    for seed in range(400):
        torch.manual_seed(seed)
        size, columns = 2 + seed % 5, 20 * (1 + seed % 7)
        rows = torch.randn(size, columns) * 10 ** (-6 * torch.rand(size, 1))
        if seed % 2:  # hardly different
            rows = rows[:1] + 10 ** (-4 * torch.rand(())) * rows.abs().max() * torch.randn(size, columns)
        factors = torch.rand(size, dtype=torch.float64) + 0.5
        reference = (factors @ rows.double()).float()
        found = by_fit(torch.cat([rows, reference[None]]).double(), torch.float32)
        if found is not None:
            taken += 1
            assert ((found[0] - factors) / factors).abs().max() <= 1e-3
    assert taken > 100


class Large(nn.Module):
    """More parameters than are kept of a gradient."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(64, 700), nn.Linear(700, 5)

    def forward(self, x):
        return self.head(self.body(x).relu())


def by_layer(model):
    for layer in (model.body, model.head):
        nn.utils.clip_grad_norm_(layer.parameters(), 1e-3)


def head_alone(model):
    for p in model.head.parameters():
        p.grad.mul_(1e-3)


# so short a gradient as the last is below what clipping in float32 can do
@pytest.mark.parametrize(("change", "factor"), [(None, 1.0), (by_layer, 1.0), (head_alone, 1.0), (None, 1e-24)])
def test_the_norm_of_a_large_model_is_that_of_the_whole_gradient(change, factor):
    torch.manual_seed(0)
    model, norms = Large(), []
    batches = [(torch.randn(4, 64), torch.randint(0, 5, (4,))) for _ in range(8)]

    def look(model):
        norms.append(torch.cat([p.grad.double().flatten() for p in model.parameters()]).norm().item())
        if change is not None:
            change(model)

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    trace = watched(model, optimizer, batches, ak.classification(), 4, factor, before_step=look)
    assert [u.grad_norm for u in trace.updates] == pytest.approx(norms, rel=1e-5)


def held(*counts):
    made = []
    for i, count in enumerate(counts):
        call = Call(count, True)
        call.count = count
        made.append(Held(i, 0, None, [call]))
    return made


def test_faint_gradients_take_the_unit_or_the_share_of_the_others():
    long, none = 3**0.5, 0.0
    accumulated = torch.ones(3, dtype=torch.float64)
    gradients = [long, none, long]
    assert filled([0.5, 0.0, 0.5], gradients, held(1, 7, 3), accumulated) == [0.5, 0.5, 0.5]
    by_share = filled([0.6, 0.0, 0.2], gradients, held(1, 2, 3), accumulated)
    assert by_share == pytest.approx([0.6, 0.3, 0.2])
    assert filled([0.0, 0.0], [none, none], held(1, 1), accumulated) == [0.0, 0.0]
    assert filled([0.5, 0.0, 0.5], [long] * 3, held(1, 1, 1), accumulated) == [0.5, 0.0, 0.5]


def test_rounding_of_a_sum_grows_as_it_cancels():
    assert of_a_sum([1.0] * 4, 4.0, 1e-7) < 1e-5 < of_a_sum([1.0] * 4, 1e-3, 1e-7)
    assert of_a_sum([1.0], 0.0, 1e-7) == float("inf")
