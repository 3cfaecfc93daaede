"""What a watch measures, against torch itself: right loops weigh 1, wrong ones what the arithmetic says."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_ as clip_by_name
from torch.nn.utils import clip_grad_value_ as clip_value_by_name
from torch.utils.data import DataLoader, TensorDataset

import accumkit as ak
from accumkit.trace import watch

FLOAT = {torch.float64: 1e-6, torch.float32: 1e-3}


def loader(examples=19, size=4, dtype=torch.float64, **kwargs):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(examples, 8, generator=g, dtype=dtype)
    y = torch.randint(0, 3, (examples,), generator=g)
    return DataLoader(TensorDataset(x, y), batch_size=size, **kwargs)


def mlp(dtype=torch.float64, *extra):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *extra, nn.Linear(16, 3)).to(dtype)


def sgd(model, **kwargs):
    return torch.optim.SGD(model.parameters(), lr=0.05, **kwargs)


def right(model, batches, optimizer, n, epochs=2, before_step=None, prepare=lambda x: x):
    """The plain loop: summed loss, a running count, gradients divided once."""
    for _ in range(epochs):
        pending = count = 0
        batches_left = list(batches)
        for i, (x, y) in enumerate(batches_left, 1):
            F.cross_entropy(model(prepare(x)), y, reduction="sum").backward()
            pending, count = pending + 1, count + len(y)
            if pending == n or i == len(batches_left):
                for p in model.parameters():
                    p.grad /= count
                if before_step:
                    before_step()
                optimizer.step()
                optimizer.zero_grad()
                pending = count = 0


def means(model, batches, optimizer, n, epochs=2):
    """The mean-loss twin: right for equal micro-batches."""
    for _ in range(epochs):
        for i, (x, y) in enumerate(batches, 1):
            k = min(n, len(batches) - (i - 1) // n * n)
            (F.cross_entropy(model(x), y) / k).backward()
            if i % n == 0 or i == len(batches):
                optimizer.step()
                optimizer.zero_grad()


def weights(trace):
    return [m.weight for u in trace.updates for m in u.micro_batches]


def assert_fair(trace, dtype=torch.float64):
    assert trace.reasons == [] and [u.why for u in trace.updates] == [None] * len(trace.updates)
    assert weights(trace) and max(abs(w - 1) for w in weights(trace)) < FLOAT[dtype]
    assert max(u.relative_error for u in trace.updates) < FLOAT[dtype]
    assert all(m.fate == "kept" for m in trace.micro_batches)


@pytest.mark.parametrize("dtype", FLOAT)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 40])
def test_a_right_loop_weighs_one(dtype, n):
    model = mlp(dtype)
    with watch(model, ak.classification(), accumulation_steps=n) as trace:
        right(model, loader(dtype=dtype), sgd(model, momentum=0.9), n)
    assert_fair(trace, dtype)
    assert sum(u.examples for u in trace.updates) == 38
    assert trace.epoch_sizes == trace.fetched_sizes == trace.loader_sizes == [5, 5]


@pytest.mark.parametrize("dtype", FLOAT)
def test_the_mean_loss_twin_weighs_one_for_equal_micro_batches(dtype):
    model = mlp(dtype)
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        means(model, loader(20, dtype=dtype), sgd(model), 3)
    assert_fair(trace, dtype)


@pytest.mark.parametrize("buffered", [True, False])
def test_train_epoch_weighs_one(buffered):
    model = mlp()
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        ak.train_epoch(model, loader(), sgd(model), ak.classification(), accumulation_steps=3, buffered=buffered,
                       max_grad_norm=0.1)  # fmt: skip
    assert_fair(trace)
    assert [u.examples for u in trace.updates] == [12, 7]
    assert all(0.01 < u.clip_factor < 0.9 for u in trace.updates)
    assert all(u.clip_factor == pytest.approx(u.expected_clip_factor, rel=1e-9) for u in trace.updates)


def test_windows_over_a_one_shot_generator():
    model, optimizer, objective = mlp(), None, ak.classification()
    optimizer = sgd(model)
    with watch(model, objective, accumulation_steps=3) as trace:
        for window in ak.windows((b for b in loader()), 3, objective):
            optimizer.zero_grad()
            for batch in window:
                (objective.total(model, batch) / window.count).backward()
            optimizer.step()
    assert_fair(trace)


def test_more_micro_batches_than_parameters():
    torch.manual_seed(0)
    model = nn.Linear(8, 3).double()
    with watch(model, ak.classification(), accumulation_steps=60) as trace:
        right(model, loader(120, 2), sgd(model), 60)
    assert_fair(trace)


def test_inputs_augmented_after_the_loader():
    model = mlp()
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        right(model, loader(), sgd(model), 3, prepare=lambda x: (x - 0.3) / 1.7 + 0.1 * torch.randn_like(x))
    assert_fair(trace)


def test_windows_fetched_ahead_with_augmentation_match_their_own_targets():
    model, objective = mlp(), ak.classification()
    optimizer = sgd(model)
    with watch(model, objective, accumulation_steps=5) as trace:
        for window in ak.windows(loader(), 5, objective):
            optimizer.zero_grad()
            for x, y in window:
                loss = F.cross_entropy(model(x + 0.2 * torch.randn_like(x)), y, reduction="sum")
                (loss / window.count).backward()
            optimizer.step()
    assert_fair(trace)


def test_late_in_training_in_float32():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))
    batches = loader(16, 4, torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(700):
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    optimizer.zero_grad()
    x, y = batches.dataset.tensors
    assert F.cross_entropy(model(x), y).item() < 3e-5
    with watch(model, ak.classification(), accumulation_steps=4) as trace:
        right(model, batches, sgd(model), 4, epochs=3)
    assert_fair(trace, torch.float32)
    assert trace.updates[0].floor > 1e-4  # a float64 reference would have accused it


def test_dropout_is_replayed_with_its_own_masks():
    model = mlp(torch.float64, nn.Dropout(0.5))
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        right(model, loader(), sgd(model), 3)
    assert_fair(trace)


def test_batchnorm_couples_examples_and_weighs_one():
    model = mlp(torch.float64, nn.BatchNorm1d(16))
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        right(model, loader(), sgd(model), 3)
    assert trace.coupled == ["2"]
    assert max(abs(w - 1) for w in weights(trace)) < 1e-6
    assert all(0.3 < u.cosine < 0.999 for u in trace.updates)  # not the big batch's gradient


def test_tokens_of_unequal_length():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11)).double()
    objective = ak.next_token()
    lines = []
    for length in (3, 9, 5, 2, 7):
        ids = torch.randint(0, 11, (2, length))
        labels = ids.clone()
        labels[1, length // 2 + 1 :] = -100
        lines.append((ids, labels))
    optimizer = sgd(model)
    with watch(model, objective, accumulation_steps=3) as trace:
        for _ in range(2):
            for window in ak.windows(lines, 3, objective):
                optimizer.zero_grad()
                for batch in window:
                    (objective.total(model, batch) / window.count).backward()
                optimizer.step()
        for ids, labels in trace.batches(lines):  # each micro-batch's mean, summed: tokens weigh unequally
            loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
            (loss / 5).backward()
        optimizer.step()
    assert trace.unit == "tokens"
    assert max(abs(w - 1) for u in trace.updates[:4] for w in [m.weight for m in u.micro_batches]) < 1e-6
    last = trace.updates[4]
    assert [m.share for m in last.micro_batches] == pytest.approx([0.2] * 5, rel=1e-9)
    assert [m.weight for m in last.micro_batches] == pytest.approx(
        [last.count / 5 / m.count for m in last.micro_batches]
    )


def test_class_weights_count():
    class_weight = torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64)
    model, objective = mlp(), ak.classification(class_weight)
    with watch(model, objective, accumulation_steps=3) as trace:
        ak.train_epoch(model, loader(), sgd(model), objective, accumulation_steps=3)
    assert_fair(trace)
    assert trace.unit == "class weights"


def test_shares_of_wrong_loops():
    def run(divide, n=3, examples=19):
        model = mlp()
        optimizer = sgd(model)
        batches = loader(examples)
        with watch(model, ak.classification(), accumulation_steps=n) as trace:
            for i, (x, y) in enumerate(batches, 1):
                (F.cross_entropy(model(x), y) / divide).backward()
                if i % n == 0 or i == len(batches):
                    optimizer.step()
                    optimizer.zero_grad()
        return trace

    assert weights(run(1)) == pytest.approx([3, 3, 3, 7 / 4, 7 / 3], rel=1e-9)
    assert weights(run(3)) == pytest.approx([1, 1, 1, 7 / 12, 7 / 9], rel=1e-9)
    assert weights(run(9)) == pytest.approx([1 / 3] * 3 + [7 / 36, 7 / 27], rel=1e-9)
    assert [u.gradient_ratio for u in run(1, examples=24).updates] == pytest.approx([3, 3], rel=1e-9)


def zero_by_none(model, optimizer):
    for p in model.parameters():
        p.grad = None


def zero_in_place(model, optimizer):
    for p in model.parameters():
        if p.grad is not None:
            p.grad.zero_()


def zero_data(model, optimizer):
    for p in model.parameters():
        if p.grad is not None:
            p.grad.data.zero_()


ZEROS = {
    "optimizer": lambda m, o: o.zero_grad(),
    "in place": lambda m, o: o.zero_grad(set_to_none=False),
    "module": lambda m, o: m.zero_grad(),
    "module in place": lambda m, o: m.zero_grad(set_to_none=False),
    "None": zero_by_none,
    "zero_": zero_in_place,
    "data.zero_": zero_data,
}


@pytest.mark.parametrize("zero", ZEROS.values(), ids=ZEROS)
@pytest.mark.parametrize("measured", [True, False])
def test_every_way_to_clear_gradients(zero, measured):
    if zero is zero_data and not measured:
        return  # writing through .data leaves no mark without an objective; said in the docs of watch

    def run(every):
        model = mlp()
        optimizer = sgd(model)
        with watch(model, ak.classification() if measured else None, accumulation_steps=3) as trace:
            for i, (x, y) in enumerate(loader(24), 1):
                if every or i % 3 == 1:
                    zero(model, optimizer)
                (F.cross_entropy(model(x), y) / 3).backward()
                if i % 3 == 0:
                    optimizer.step()
        return trace

    right_trace, wrong = run(False), run(True)
    assert [m.fate for m in right_trace.micro_batches] == ["kept"] * 6
    assert [m.fate for m in wrong.micro_batches] == ["erased", "erased", "kept"] * 2
    assert all(u.carried == 0 for t in (right_trace, wrong) for u in t.updates)
    if measured:
        assert weights(right_trace) == pytest.approx([1] * 6)
        assert weights(wrong) == pytest.approx([0, 0, 1] * 2)


@pytest.mark.parametrize("measured", [True, False])
def test_gradients_never_cleared_are_carried(measured):
    model = mlp()
    optimizer = sgd(model)
    with watch(model, ak.classification() if measured else None, accumulation_steps=3) as trace:
        for i, (x, y) in enumerate(loader(24), 1):
            (F.cross_entropy(model(x), y) / 3).backward()
            if i % 3 == 0:
                optimizer.step()
    assert trace.updates[0].carried == 0
    assert trace.updates[1].carried > 0.3
    assert [len(u.micro_batches) for u in trace.updates] == [3, 3]


def by_hand(model, limit):
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    if norm > limit:
        for p in model.parameters():
            p.grad.mul_(limit / norm)


def by_hand_through_data(model, limit):
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    for p in model.parameters():
        p.grad.data.mul_(min(1.0, limit / norm.item()))


CLIPS = {
    "by name": lambda m: clip_by_name(m.parameters(), 0.05),
    "torch's": lambda m: torch.nn.utils.clip_grad_norm_(m.parameters(), 0.05),
    "by hand": lambda m: by_hand(m, 0.05),
    "through data": lambda m: by_hand_through_data(m, 0.05),
}


@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS)
def test_every_way_to_clip_is_kept_out_of_the_shares(clip):
    model = mlp()
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        right(model, loader(), sgd(model), 3, before_step=lambda: clip(model))
    if clip in (CLIPS["by hand"], CLIPS["through data"]):  # clipped and divided in one go: told apart over the run
        factors = [u.clip_factor for u in trace.updates]
    else:
        assert_fair(trace)
        factors = [u.clip_factor for u in trace.updates]
    assert all(f == pytest.approx(0.05 / u.grad_norm, rel=1e-4) for f, u in zip(factors, trace.updates, strict=True))


@pytest.mark.parametrize("clip", [clip_value_by_name, torch.nn.utils.clip_grad_value_])
def test_clipping_values(clip):
    model = mlp()
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        right(model, loader(), sgd(model), 3, before_step=lambda: clip(model.parameters(), 0.05))
    assert trace.count_of("clip") == 4
    assert_fair(trace)
    assert all(0.2 < u.clip_factor < 0.999 for u in trace.updates)


def test_a_norm_that_is_only_logged_is_no_clip():
    model = mlp()
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        right(model, loader(), sgd(model), 3, before_step=lambda: clip_by_name(model.parameters(), float("inf")))
    assert_fair(trace)
    assert trace.count_of("clip") == 0 and all(u.clip_factor is None for u in trace.updates)


def test_backward_through_autograd_and_two_backwards_a_micro_batch():
    model = mlp()
    optimizer = sgd(model)
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        for i, (x, y) in enumerate(loader(24), 1):
            loss = F.cross_entropy(model(x), y) / 3
            torch.autograd.backward(loss * 0.25, retain_graph=True)
            torch.autograd.backward([loss * 0.75])
            if i % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()
    assert_fair(trace)
    assert [u.accumulated for u in trace.updates] == [3, 3]


def test_one_backward_over_several_forwards():
    model = mlp()
    optimizer = sgd(model)
    with watch(model, ak.classification(), accumulation_steps=1) as trace:
        for _ in range(2):
            losses = [F.cross_entropy(model(x), y, reduction="sum") for x, y in loader()]
            (sum(losses) / 19).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_fair(trace)
    assert [u.examples for u in trace.updates] == [19, 19]


def test_a_loss_that_is_not_the_objective_says_so():
    model = mlp()
    optimizer = sgd(model)
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        for i, (x, y) in enumerate(loader(24), 1):
            (F.multi_margin_loss(model(x), y) / 3).backward()
            if i % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()
    assert all(u.unexplained > 0.05 for u in trace.updates)


def test_a_regulariser_counts_once_an_update():
    def penalty(model):
        return 0.1 * sum((p**2).sum() for p in model.parameters())

    objective = ak.Objective(
        loss=lambda output, batch: F.cross_entropy(output, batch[1], reduction="sum"),
        count=lambda batch: len(batch[1]),
        per_update=penalty,
    )
    model = mlp()
    optimizer = sgd(model)
    with watch(model, objective, accumulation_steps=3) as trace:
        ak.train_epoch(model, loader(24), optimizer, objective, accumulation_steps=3)
        for i, (x, y) in enumerate(loader(24), 1):  # and one that adds it to every micro-batch's loss
            (F.cross_entropy(model(x), y) / 3 + penalty(model)).backward()
            if i % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()
    assert [u.auxiliary for u in trace.updates] == pytest.approx([1, 1, 3, 3], rel=1e-6)
    assert weights(trace) == pytest.approx([1] * 12, rel=1e-6)
    assert [u.relative_error < 1e-9 for u in trace.updates] == [True, True, False, False]


def test_tail_dropped_and_cleared_is_lost():
    model = mlp()
    optimizer = sgd(model)
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        for _ in range(2):
            optimizer.zero_grad()
            for i, (x, y) in enumerate(loader(), 1):
                (F.cross_entropy(model(x), y) / 3).backward()
                if i % 3 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
    assert [u.accumulated for u in trace.updates] == [3, 3]
    assert [(m.index, m.fate, m.examples, m.share) for m in trace.lost] == [
        (3, "lost", 4, 0), (4, "lost", 3, 0), (8, "lost", 4, 0), (9, "lost", 3, 0)]  # fmt: skip
    assert trace.epoch_sizes == [5, 5]


def test_tail_left_in_grad_leaks_into_the_next_epoch():
    model = mlp()
    optimizer = sgd(model)
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        for _ in range(2):
            for i, (x, y) in enumerate(loader(), 1):
                (F.cross_entropy(model(x), y) / 3).backward()
                if i % 3 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
    assert [m.fate for m in trace.updates[1].micro_batches] == ["leaked"] * 2 + ["kept"] * 3
    assert weights(trace)[3:] == pytest.approx([1, 4 / 3, 1, 1, 1])
    assert trace.updates[1].count == 12 and trace.updates[1].examples == 12


def test_windows_that_straddle_epochs_are_fair():
    model = mlp()
    optimizer = sgd(model)
    step = 0
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        for _ in range(3):
            for x, y in loader(20):
                (F.cross_entropy(model(x), y) / 3).backward()
                step += 1
                if step % 3 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
    assert_fair(trace)


def test_a_loop_over_a_list_knows_its_epochs():
    model = mlp()
    optimizer = sgd(model)
    batches = list(loader())
    with watch(model, accumulation_steps=3) as trace:
        for _ in range(2):
            for i, (x, y) in enumerate(batches, 1):
                (F.cross_entropy(model(x), y) / 3).backward()
                if i % 3 == 0 or i == 5:
                    optimizer.step()
                    optimizer.zero_grad()
    assert trace.epoch_sizes == [5, 5] and [u.epoch for u in trace.updates] == [0, 0, 1, 1]


def test_validation_is_no_micro_batch():
    model = mlp()
    optimizer = sgd(model)
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        for _ in range(2):
            right(model, loader(), optimizer, 3, epochs=1)
            model.eval()
            with torch.no_grad():
                for x, _ in loader(30, 5):
                    model(x)
            for x, _ in loader(10, 5):
                model(x)  # with gradients on, and no backward
            model.train()
    assert_fair(trace)
    assert trace.count_of("evaluation") == 16
    assert trace.epoch_sizes == [5, 5]


def test_frozen_parameters_and_those_the_optimizer_does_not_hold():
    model = mlp()
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD([model[2].weight, model[2].bias], lr=0.05)  # model[0].weight.grad is never cleared
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        for _ in range(3):
            for i, (x, y) in enumerate(loader(24), 1):
                (F.cross_entropy(model(x), y) / 3).backward()
                if i % 3 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
    assert_fair(trace)
    assert all(u.carried == 0 for u in trace.updates)


def test_two_optimizers_at_one_boundary():
    model = mlp()
    first, second = sgd(model[0]), torch.optim.Adam(model[2].parameters())
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        for i, (x, y) in enumerate(loader(24), 1):
            (F.cross_entropy(model(x), y) / 3).backward()
            if i % 3 == 0:
                for optimizer in (first, second):
                    optimizer.step()
                    optimizer.zero_grad()
    assert_fair(trace)
    assert len(trace.updates) == 2 and trace.count_of("step") == 4


def test_shares_of_a_large_model_from_a_sample():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 3)).double()
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        right(model, loader(), sgd(model), 3, before_step=lambda: clip_by_name(model.parameters(), 1e-3))
    assert_fair(trace)
    assert all(u.clip_factor == pytest.approx(u.expected_clip_factor, rel=1e-6) for u in trace.updates)


def test_a_sample_still_sees_unequal_weights():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 3)).double()
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        means(model, loader(), sgd(model), 3, epochs=1)
    assert weights(trace) == pytest.approx([1, 1, 1, 7 / 8, 7 / 6], rel=1e-8)


def test_copies_do_not_record():
    model = mlp()
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        average = torch.optim.swa_utils.AveragedModel(model)
        twin = copy.deepcopy(model)
        right(model, loader(), sgd(model), 3, epochs=1)
        average.update_parameters(model)
        right(twin, loader(), sgd(twin), 3, epochs=1)
        average(torch.zeros(2, 8, dtype=torch.float64)).sum().backward()
    assert_fair(trace)
    assert len(trace.updates) == 2 and trace.count_of("ema update") == 1 and trace.count_of("forward") == 5


@pytest.mark.parametrize("measured", [True, False])
def test_two_optimizers_at_different_boundaries(measured):
    model = mlp()
    often, seldom = sgd(model[0]), torch.optim.Adam(model[2].parameters())
    with watch(model, ak.classification() if measured else None, accumulation_steps=1) as trace:
        for i, (x, y) in enumerate(loader(24), 1):
            F.cross_entropy(model(x), y).backward()
            often.step()
            often.zero_grad()
            if i % 3 == 0:
                seldom.step()
                seldom.zero_grad()
    assert all(u.carried == 0 for u in trace.updates)
    assert any("several optimizers" in reason for reason in trace.reasons)
    if measured:
        assert [u.why is None for u in trace.updates] == [True] * 5 + [False]


def test_a_forward_that_no_backward_reaches_is_not_in_a_micro_batch():
    model = mlp()
    optimizer = sgd(model)
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        for i, (x, y) in enumerate(loader(24), 1):
            loss = F.cross_entropy(model(x), y) / 3
            if i not in (2, 6):  # a micro-batch skipped after its forward
                loss.backward()
            if i % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()
    assert [u.accumulated for u in trace.updates] == [2, 2]
    assert [u.unused for u in trace.updates] == [1, 1]
    assert weights(trace) == pytest.approx([2 / 3] * 4)


def test_a_discriminators_backward_leaves_the_generators_forward_waiting():
    torch.manual_seed(0)
    generator, critic = nn.Linear(8, 4).double(), nn.Linear(4, 1).double()
    objective = ak.Objective(loss=lambda output, batch: -critic(output).sum(), count=lambda batch: len(batch[0]))
    optimizers = sgd(generator), sgd(critic)
    with watch(generator, objective, accumulation_steps=1) as trace:
        for x, _ in loader(24):
            critic(generator(x).detach()).mean().backward()
            optimizers[1].step()
            optimizers[1].zero_grad()
            (-critic(generator(x)).mean()).backward()
            optimizers[0].step()
            optimizers[0].zero_grad()
            optimizers[1].zero_grad()
    assert_fair(trace)
    assert [u.accumulated for u in trace.updates] == [1] * 6


def test_graphs_that_stay_alive():
    def run(add, retain=False):
        model = mlp()
        optimizer = sgd(model)
        total = 0.0
        with watch(model, ak.classification(), accumulation_steps=3) as trace:
            for i, (x, y) in enumerate(loader(48), 1):
                loss = F.cross_entropy(model(x), y)
                (loss / 3).backward(retain_graph=retain)
                total = total + add(loss)
                if i % 3 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
        return trace.graphs_kept, trace.graphs_retained

    assert run(lambda loss: loss.item()) == (0, 0)
    assert run(lambda loss: loss.detach()) == (0, 0)
    assert run(lambda loss: loss) == (9, 0)
    assert run(lambda loss: loss.item(), retain=True) == (0, 12)


def test_the_same_inputs_again_in_a_window():
    model = mlp()
    optimizer = sgd(model)
    with watch(model, ak.classification(), accumulation_steps=3) as trace:
        for x, y in loader(8):
            for _ in range(3):
                (F.cross_entropy(model(x), y) / 3).backward()
            optimizer.step()
            optimizer.zero_grad()
        right(model, loader(), optimizer, 3, epochs=1)
    assert [m.repeats for m in trace.micro_batches] == [None, 0, 0, None, 3, 3] + [None] * 5


def test_what_a_scheduler_was_planned_for():
    model = mlp()
    optimizer = sgd(model)
    make = torch.optim.lr_scheduler
    parts = [make.LinearLR(optimizer, total_iters=3), make.CosineAnnealingLR(optimizer, 20)]
    schedulers = [make.CosineAnnealingLR(optimizer, 7), make.OneCycleLR(optimizer, 0.1, total_steps=11),
                  make.SequentialLR(optimizer, parts, [3]), make.ExponentialLR(optimizer, 0.9)]  # fmt: skip
    with watch(model, accumulation_steps=3) as trace:
        right(model, loader(4), optimizer, 1, epochs=1)
        for scheduler in schedulers:
            scheduler.step()
    assert [e.value for e in trace.events if e.kind == "scheduler step"] == [7, 11, 23, None]


@pytest.mark.parametrize("zero", [lambda o: o.zero_grad(), lambda o: o.zero_grad(set_to_none=False)])
def test_a_step_without_a_gradient_carries_nothing(zero):
    model = mlp()
    optimizer = sgd(model)
    with watch(model, accumulation_steps=3) as trace:
        right(model, loader(12), optimizer, 3, epochs=1)
        zero(optimizer)
        optimizer.step()
    assert [u.carried for u in trace.updates] == [0, 0]
