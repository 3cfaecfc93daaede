"""Bad input: an error that says what was given and what to change, and a model as it was before the window."""

from __future__ import annotations

import copy

import big_batch as oracle
import pytest
import torch
import torch.nn.functional as F
from refusals import OBJECTIVE, Net, epoch, net, refused, same, state, stopped_in_update_2
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

import accumkit as ak

BUFFERED = pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])


@pytest.mark.parametrize("loader", [[], iter([]), (b for b in ())], ids=["list", "iterator", "generator"])
@BUFFERED
def test_empty_loader(loader, buffered):
    problem = refused("gave no batch", loader, buffered=buffered)
    assert ("once" in str(problem)) == (not isinstance(loader, list))
    with pytest.raises(ak.AccumkitError, match="gave no batch"):
        next(ak.windows(loader, 2, OBJECTIVE))


@BUFFERED
def test_a_loader_that_is_none(buffered):
    refused("the loader is 'int', which cannot be iterated", 5, buffered=buffered)


class Lines(IterableDataset):
    def __iter__(self):
        yield from oracle.labelled([4, 3])


@BUFFERED
def test_a_data_set_in_place_of_a_loader(buffered):
    data = TensorDataset(*oracle.labelled([12])[0])
    for given in (data, Subset(data, range(4))):
        refused(rf"a data set \({type(given).__name__}\), which gives single examples.*DataLoader\(data, batch_size=",
                given, buffered=buffered)  # fmt: skip
    with pytest.raises(ak.AccumkitError, match="gives single examples"):
        next(ak.windows(data, 2, OBJECTIVE))
    for stream in (Lines(), DataLoader(Lines(), batch_size=None)):
        assert epoch(*net(), stream, buffered=buffered).examples == 7


@BUFFERED
def test_batches_of_unexpected_shape(buffered):
    wide = (torch.randn(4, oracle.FEATURES + 1, dtype=torch.float64), torch.zeros(4, dtype=torch.long))
    problem = stopped_in_update_2(
        r"update 2, micro-batch 2: forward, the objective or backward raised RuntimeError.*float64 \(4, 6\) on cpu",
        lambda good: [*good, good[0], wide], buffered=buffered,
    )  # fmt: skip
    assert isinstance(problem.__cause__, RuntimeError)
    refused("micro-batch 1: objective.count failed with AttributeError", [(torch.zeros(4, 5), 3)], buffered=buffered)
    refused("micro-batch 1: no target in a batch with the keys", [{"x": torch.zeros(4, 5)}], buffered=buffered)
    refused("micro-batch 1: a batch without a tensor: str", ["text"], buffered=buffered)


@BUFFERED
def test_more_targets_than_outputs(buffered):
    odd = (torch.randn(4, oracle.FEATURES, dtype=torch.float64), torch.zeros(5, dtype=torch.long))
    refused("micro-batch 1.*int64 \\(5,\\)", [odd], buffered=buffered)


@BUFFERED
def test_a_window_without_one_valid_unit(buffered):
    def batches(good):
        return [*good, *((x, torch.full_like(y, -100)) for x, y in good)]

    stopped_in_update_2(
        r"update 2: not one valid unit in its window \(3 micro-batches, 12 examples, count 0\)",
        batches,
        buffered=buffered,
    )


@pytest.mark.parametrize("count", [-1, float("nan"), float("inf"), "many", None, torch.zeros(2)])
@BUFFERED
def test_a_count_that_is_none(count, buffered):
    objective = ak.Objective(loss=OBJECTIVE.loss, count=lambda batch: count)
    refused("micro-batch 1: objective.count", oracle.labelled([4]), objective=objective, buffered=buffered)


@BUFFERED
def test_a_loader_that_raises_in_a_window(buffered):
    def batches(good):
        yield from good
        yield good[0]
        raise OSError("truncated file.")

    problem = stopped_in_update_2(
        "window 2, micro-batch 2: the loader raised OSError: truncated file; make it", batches, buffered=buffered
    )
    assert isinstance(problem.__cause__, OSError)


class Stops(nn.Module):
    """Raises in its forward number ``at``."""

    def __init__(self, error: BaseException, at: int) -> None:
        super().__init__()
        self.net, self.error, self.left = Net().double(), error, at

    def forward(self, x):
        out = self.net(x)
        self.left -= 1
        if not self.left:
            raise self.error
        return out


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ZeroDivisionError("no"), ak.AccumkitError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (torch.cuda.OutOfMemoryError("full"), torch.cuda.OutOfMemoryError),  # what callers catch to split a batch
        (MemoryError(), MemoryError),
    ],
)
@BUFFERED
def test_a_forward_that_raises_in_a_window(error, raised, buffered):
    torch.manual_seed(0)
    model = Stops(error, at=5)
    twin = copy.deepcopy(model)
    batches = oracle.labelled([4] * 6)
    optimizers = [torch.optim.AdamW(m.parameters()) for m in (model, twin)]
    epoch(twin, optimizers[1], batches[:3], buffered=buffered)
    with pytest.raises(raised) as caught:
        epoch(model, optimizers[0], batches, buffered=buffered)
    assert same(state(model, optimizers[0]), state(twin, optimizers[1]))
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "update 2, micro-batch 2" in text
    assert "Update 1 is kept; the model is as it was before update 2" in text
    assert caught.value is error or caught.value.__cause__ is error


@BUFFERED
def test_an_interrupt_while_fetching(buffered):
    def batches(good):
        yield from [*good, good[0]]
        raise KeyboardInterrupt

    stopped_in_update_2(None, batches, error=KeyboardInterrupt, buffered=buffered)


@BUFFERED
def test_trains_on_after_an_error(buffered):
    """Nothing of a failed window is left over: not its gradients, nor a scaler in the middle of its work."""
    pairs = [(oracle.mlp(dtype=torch.float32), torch.amp.GradScaler("cpu", init_scale=1024.0)) for _ in range(2)]
    batches = oracle.labelled([4] * 3, dtype=torch.float32)

    def per_update(model):
        return model[0].weight.sum()

    for number, (model, scaler) in enumerate(pairs):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if number == 0:
            for breaks in ("forward", "clip"):
                with pytest.MonkeyPatch.context() as patch, pytest.raises(ak.AccumkitError, match="update 1"):
                    if breaks == "forward":
                        patch.setattr(model[1], "forward", lambda x: 1 / 0)
                    else:  # after unscale_, before the step
                        patch.setattr("accumkit.finite.clip_grad_norm_", lambda *a: 1 / 0)
                    epoch(model, optimizer, batches, scaler=scaler, max_grad_norm=0.1, buffered=buffered)
        epoch(model, optimizer, batches, scaler=scaler, max_grad_norm=0.1, buffered=buffered)
    assert torch.equal(oracle.flat(pairs[0][0].parameters()), oracle.flat(pairs[1][0].parameters()))
    assert pairs[0][1].state_dict() == pairs[1][1].state_dict()


# Losses


def objective_of(loss) -> ak.Objective:
    return ak.Objective(loss=loss, count=OBJECTIVE.count)


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda out, batch: F.cross_entropy(out, batch[1], reduction="none"), r"shape \(4,\), not a scalar; sum it"),
        (lambda out, batch: out.sum().detach(), "not attached to the graph"),
        (lambda out, batch: out.sum().item(), "is float, not a tensor"),
        (lambda out, batch: None, "is NoneType, not a tensor"),
    ],
)
@BUFFERED
def test_a_loss_that_cannot_be_accumulated(loss, says, buffered):
    refused(
        f"update 1, micro-batch 1: the objective's loss .*{says}", oracle.labelled([4]), objective=objective_of(loss),
        buffered=buffered,
    )  # fmt: skip


@pytest.mark.parametrize("where", ["loss", "count"])
def test_one_full_stop_ends_a_sentence(where):
    def ends(*args):
        raise IndexError("Target 9 is out of bounds.")

    objective = ak.Objective(**({"loss": OBJECTIVE.loss, "count": OBJECTIVE.count} | {where: ends}))
    problem = refused("Target 9 is out of bounds. The", oracle.labelled([4]), objective=objective)
    assert ".." not in str(problem)


def test_an_error_whose_text_cannot_be_read():
    class Mute(Exception):
        def __str__(self):
            raise KeyError("nothing to say")

    def loss(out, batch):
        raise Mute

    problem = refused(r"raised Mute: \(its text cannot be read: __str__ raised KeyError\)", oracle.labelled([4]),
                      objective=objective_of(loss))  # fmt: skip
    assert isinstance(problem.__cause__, Mute)


def test_a_loss_without_a_graph_because_of_no_grad():
    with torch.no_grad():
        refused("not attached to the graph.*no_grad", oracle.labelled([4]))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@BUFFERED
def test_a_loss_that_is_not_finite(value, buffered):
    def batches(good):
        x = good[1][0].clone()
        x[0, 0] = value
        return [*good, good[0], (x, good[1][1]), good[2]]

    stopped_in_update_2("update 2, micro-batch 2: its loss is nan; look at", batches, buffered=buffered)


def test_a_mean_over_no_target_is_named():
    batches = oracle.labelled([4, 4])
    batches[1][1].fill_(-100)
    refused(
        "micro-batch 2: its loss is nan; it has no valid unit: the mean of nothing", batches,
        objective=objective_of(lambda out, batch: F.cross_entropy(out, batch[1])),
    )  # fmt: skip


def test_parameters_that_are_not_finite_already():
    model, optimizer = net()
    model.head.bias.data[0] = float("nan")
    with pytest.raises(ak.AccumkitError, match="its loss is nan; parameters of the model are not finite already"):
        epoch(model, optimizer, oracle.labelled([4]))


def test_a_gradient_that_is_not_finite_behind_a_loss_that_is():
    loss = objective_of(lambda out, batch: (out * 0).abs().sqrt().sum())
    refused("the norm of the gradient is nan although the loss is finite", oracle.labelled([4]), objective=loss,
            max_grad_norm=1.0)  # fmt: skip


@pytest.mark.parametrize("term", [lambda m: 3.0, lambda m: m.head.weight, lambda m: m.head.weight.sum() * float("nan")])
@BUFFERED
def test_a_per_update_term_that_cannot_be_used(term, buffered):
    objective = ak.Objective(loss=OBJECTIVE.loss, count=OBJECTIVE.count, per_update=term)
    refused("update 1.*per_update", oracle.labelled([4]), objective=objective, buffered=buffered)


# After the step


def test_a_step_or_scheduler_that_raises_says_what_may_have_changed():
    model, optimizer = net()
    optimizer.register_step_post_hook(lambda *_: 1 / 0)
    with pytest.raises(
        ak.AccumkitError, match=r"the optimizer's step raised ZeroDivisionError.*may have changed in part"
    ):
        epoch(model, optimizer, oracle.labelled([4]))
    model, optimizer = net()
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 - step))
    with pytest.raises(ak.AccumkitError, match=r"update 1: the scheduler's step raised.*update 1 was made"):
        epoch(model, optimizer, oracle.labelled([4]), scheduler_per_update=scheduler)
    assert optimizer.state


@BUFFERED
def test_no_update_at_all_is_a_warning(buffered):
    model, optimizer = net()
    before = state(model, optimizer)
    with pytest.warns(UserWarning, match="no update was made: the data ended after 2 micro-batches, a window needs 3"):
        log = epoch(model, optimizer, oracle.labelled([4, 3]), tail="drop", buffered=buffered)
    assert (log.updates, log.dropped_examples) == ((), 7)
    assert same(state(model, optimizer), before)
    assert "0 updates" in repr(log)
