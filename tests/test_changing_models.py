"""Models whose trained parameters change while they are watched, and models that no plain row of numbers describes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import accumkit as ak

N, SIZE = 4, 4
REGRESSION = ak.regression()


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    square = [nn.Linear(10, 10), nn.Tanh()]
    return nn.Sequential(nn.Linear(20, 10), nn.Tanh(), *square, nn.Linear(10, 10), nn.Tanh(), nn.Linear(10, 1))


def data(windows: int = 4) -> list:
    torch.manual_seed(1)
    return [(torch.randn(SIZE, 20), torch.randn(SIZE, 1)) for _ in range(N * windows)]


def sgd(*modules: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD([p for m in modules for p in m.parameters()], lr=1e-2)


def norm_of(optimizers) -> float:
    grads = [p.grad for o in optimizers for g in o.param_groups for p in g["params"] if p.grad is not None]
    return torch.cat([grad.double().flatten() for grad in grads]).norm().item()


def run(model, optimizers, at, clear, batches=None, objective=REGRESSION, norms=None):
    """Train with right weights; ``at`` maps micro-batches (k + 0.5: between k's backward and what follows) to changes.

    ``optimizers`` is a list, and the changes may add to it; ``clear`` is called after each step.
    """
    batches = data() if batches is None else batches
    with ak.watch(model, objective, accumulation_steps=N) as trace:
        for i, (x, y) in enumerate(trace.batches(batches)):
            at.get(i, lambda: None)()
            (F.mse_loss(model(x), y, reduction="sum") / (N * len(y))).backward()
            at.get(i + 0.5, lambda: None)()
            if i % N == N - 1:
                if norms is not None:
                    norms.append(norm_of(optimizers))
                for optimizer in optimizers:
                    optimizer.step()
                clear()
    return trace, ak.audit(trace)


def reported(trace) -> list[float]:
    return [u.grad_norm for u in trace.updates]


# parameters that join
def test_stale_gradients_of_a_group_added_between_windows():
    model, norms = layers(), []
    optimizer = sgd(model[6])
    join = {2 * N: lambda: optimizer.add_param_group({"params": list(model[:6].parameters())})}
    trace, verdict = run(model, [optimizer], join, optimizer.zero_grad, norms=norms)
    assert [f.pitfall for f in verdict.findings] == ["stale-gradients"]
    assert [u.carried > 0.1 for u in trace.updates] == [False, False, True, False]
    assert reported(trace) == pytest.approx(norms, rel=1e-5)


def test_a_group_added_between_windows_whose_gradients_are_cleared():
    model, norms = layers(), []
    optimizer = sgd(model[6])
    join = {2 * N: lambda: optimizer.add_param_group({"params": list(model[:6].parameters())})}
    trace, verdict = run(model, [optimizer], join, model.zero_grad, norms=norms)
    assert verdict.ok, verdict
    assert reported(trace) == pytest.approx(norms, rel=1e-5)


@pytest.mark.parametrize("at", [2 * N + 1, 3 * N - 0.5])
def test_a_group_with_stale_gradients_added_inside_a_window_is_not_measured(at):
    model = layers()
    optimizer = sgd(model[6])
    join = {at: lambda: optimizer.add_param_group({"params": list(model[:6].parameters())})}
    trace, verdict = run(model, [optimizer], join, optimizer.zero_grad)
    assert verdict.status == "cannot tell"
    assert "joined inside the window" in verdict.reason
    assert [u.why is None for u in trace.updates] == [True, True, False, True]
    assert trace.updates[2].grad_norm is None


def test_a_group_without_stale_gradients_added_inside_a_window():
    model, norms = layers(), []
    optimizer = sgd(model[6])
    join = {2 * N + 1: lambda: optimizer.add_param_group({"params": list(model[:6].parameters())})}
    trace, verdict = run(model, [optimizer], join, model.zero_grad, norms=norms)
    assert verdict.ok, verdict
    assert reported(trace) == pytest.approx(norms, rel=1e-5)


@pytest.mark.parametrize("cleared", [True, False])
def test_an_optimizer_that_joins_later_and_steps_first(cleared):
    model = layers()
    optimizers = [sgd(model[6])]
    head = optimizers[0]
    join = {2 * N: lambda: optimizers.insert(0, sgd(model[:6]))}
    trace, verdict = run(model, optimizers, join, model.zero_grad if cleared else head.zero_grad)
    if cleared:
        assert verdict.ok, verdict
    else:
        assert not verdict.ok
        assert trace.updates[2].why is not None
        assert trace.updates[2].micro_batches[0].share is None


@pytest.mark.parametrize("objective", [ak.regression(), None])
def test_stale_gradients_of_a_layer_unfrozen_between_windows(objective):
    model, norms = layers(), []
    model[2].requires_grad_(False)
    old = [p for p in model.parameters() if p.requires_grad]
    optimizer = sgd(model)

    def clear():
        for p in old:
            p.grad = None

    trace, verdict = run(
        model, [optimizer], {N: lambda: model[2].requires_grad_(True)}, clear, norms=norms, objective=objective
    )
    assert [f.pitfall for f in verdict.findings] == ["stale-gradients"]
    assert [u.carried > 0.1 for u in trace.updates] == [False, False, True, True]
    if objective is not None:
        assert reported(trace) == pytest.approx(norms, rel=1e-5)


def test_layers_unfrozen_one_by_one_between_windows():
    model, norms = layers(), []
    model[:6].requires_grad_(False)
    optimizer = sgd(model)
    at = {N: lambda: model[4].requires_grad_(True), 2 * N: lambda: model[:4].requires_grad_(True)}
    trace, verdict = run(model, [optimizer], at, optimizer.zero_grad, norms=norms)
    assert verdict.ok, verdict
    assert reported(trace) == pytest.approx(norms, rel=1e-5)


def test_layers_unfrozen_for_an_optimizer_that_is_given_them_then():
    model, norms = layers(), []
    model[:6].requires_grad_(False)
    optimizer = sgd(model[6])

    def join():
        model[4].requires_grad_(True)
        optimizer.add_param_group({"params": list(model[4].parameters())})

    trace, verdict = run(model, [optimizer], {2 * N: join}, optimizer.zero_grad, norms=norms)
    assert verdict.ok, verdict
    assert reported(trace) == pytest.approx(norms, rel=1e-5)


@pytest.mark.parametrize("objective", [ak.regression(), None])
def test_a_layer_unfrozen_inside_a_window(objective):
    model = layers()
    model[2].requires_grad_(False)
    optimizer = sgd(model)
    at = {N + 1: lambda: model[2].requires_grad_(True)}
    trace, verdict = run(model, [optimizer], at, optimizer.zero_grad, objective=objective)
    if objective is not None:
        assert verdict.status == "cannot tell"
        assert "joined inside the window" in verdict.reason
        assert [u.why is None for u in trace.updates] == [True, False, True, True]
    assert not verdict.findings


def with_a_frozen_layer(gradient):
    model = layers()
    model[2].requires_grad_(False)
    for p in model[2].parameters():
        p.grad = gradient(p)
    return model, sgd(model)


def test_a_gradient_left_in_a_frozen_layer_that_the_optimizer_still_holds():
    model, optimizer = with_a_frozen_layer(torch.ones_like)
    trace, verdict = run(model, [optimizer], {}, lambda: [setattr(p, "grad", None) for p in model[4:].parameters()])
    assert not verdict.ok
    assert all(u.why is not None or u.carried > 0.1 for u in trace.updates)


def test_zeros_left_in_frozen_layers_do_no_harm():
    model, optimizer = with_a_frozen_layer(torch.zeros_like)
    _, verdict = run(model, [optimizer], {}, lambda: optimizer.zero_grad(set_to_none=False))
    assert verdict.ok, verdict


# one layer for another
@pytest.mark.parametrize("at", [0, N])
def test_one_layer_frozen_and_another_of_its_shape_unfrozen(at):
    model, norms = layers(), []
    model[2].requires_grad_(False)
    optimizer = sgd(model)

    def swap():
        model[2].requires_grad_(True)
        model[4].requires_grad_(False)

    trace, verdict = run(model, [optimizer], {at: swap}, optimizer.zero_grad, norms=norms)
    assert verdict.ok, verdict
    assert reported(trace) == pytest.approx(norms, rel=1e-5)


def test_layers_trained_in_turns():
    model, norms = layers(), []
    model[2].requires_grad_(False)
    optimizer = sgd(model)

    def turn(on, off):
        model[on].requires_grad_(True)
        model[off].requires_grad_(False)

    at = {N: lambda: turn(2, 4), 2 * N: lambda: turn(4, 2), 3 * N: lambda: turn(2, 4)}
    trace, verdict = run(model, [optimizer], at, optimizer.zero_grad, norms=norms)
    assert verdict.ok, verdict
    assert reported(trace) == pytest.approx(norms, rel=1e-5)


def test_parameters_are_compared_one_by_one_not_counted():
    model = layers()
    model[2].requires_grad_(False)
    optimizer = sgd(model)

    def swap():  # after the window's first backward, before its step, where the first copy is made
        model[2].requires_grad_(True)
        model[4].requires_grad_(False)

    trace, verdict = run(model, [optimizer], {N - 0.5: swap}, optimizer.zero_grad, batches=data(1))
    assert verdict.status == "cannot tell"
    assert "the parameters that require a gradient are others than when the watch began" in trace.updates[0].why


# a large model whose gradients are nearly all zeros
class Factors(nn.Module):
    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(100_000, 8), nn.Embedding(25_000, 8)
        self.bias = nn.Parameter(torch.zeros(1)) if bias else None

    def forward(self, x):
        found = (self.users(x[:, 0]) * self.items(x[:, 1])).sum(1, keepdim=True)
        return found if self.bias is None else found + self.bias


def ratings() -> list:
    torch.manual_seed(1)
    pairs = [torch.stack([torch.randint(0, 100_000, (SIZE,)), torch.randint(0, 25_000, (SIZE,))], 1) for _ in range(12)]
    return [(x, torch.randn(SIZE, 1)) for x in pairs]


@pytest.mark.parametrize("part", [False, True])
def test_micro_batches_that_a_sample_of_the_gradient_misses(part):
    torch.manual_seed(0)
    model = Factors()
    optimizer = sgd(model.users if part else model)
    trace, verdict = run(model, [optimizer], {}, model.zero_grad, batches=ratings())
    assert verdict.status == "cannot tell"
    assert "a sample of each gradient" in verdict.reason
    seen = [u for u in trace.updates if u.why is None]
    assert len(seen) < len(trace.updates)
    assert all(m.weight == pytest.approx(1, rel=1e-3) for u in seen for m in u.micro_batches)


def test_a_large_model_with_a_parameter_in_every_micro_batch():
    torch.manual_seed(0)
    model = Factors(bias=True)
    optimizer = sgd(model)
    trace, verdict = run(model, [optimizer], {}, optimizer.zero_grad, batches=ratings())
    assert verdict.status == "equivalent", verdict
    assert all(m.weight == pytest.approx(1, rel=1e-3) for m in trace.micro_batches)


def test_a_gradient_of_zero_is_not_one_that_the_sample_misses():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 2000), nn.Linear(2000, 1))
    batches = data()
    with torch.no_grad():
        batches[2] = batches[2][0], model(batches[2][0])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    trace, _ = run(model, [optimizer], {}, optimizer.zero_grad, batches=batches)
    assert all(u.why is None for u in trace.updates)


# several precisions in one model
class Mixed(nn.Module):
    def __init__(self, last: torch.dtype) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(20, 10), nn.Linear(10, 10).double(), nn.Linear(10, 1).to(last)

    def forward(self, x):
        return self.c(self.b(self.a(x).double()).to(self.c.weight.dtype)).float()


@pytest.mark.parametrize("last", [torch.bfloat16, torch.float32, torch.float64])
def test_a_model_of_several_precisions_is_held_to_the_lowest(last):
    torch.manual_seed(0)
    model = Mixed(last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    trace, verdict = run(model, [optimizer], {}, optimizer.zero_grad)
    assert trace.precision == ("bfloat16" if last == torch.bfloat16 else "float32")
    assert not trace.coupled
    assert "coupled-examples" not in {f.pitfall for f in verdict.findings}
    assert not any("added up in float32" in repr(f) for f in verdict.findings)
    assert all(m.weight == pytest.approx(1, rel=5e-2) for m in trace.micro_batches)
    if last != torch.bfloat16:
        assert verdict.ok, verdict
