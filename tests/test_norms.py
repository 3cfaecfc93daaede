"""The study of norms: what accumulation leaves alone, what it changes, and what each cure restores; in float64."""

from __future__ import annotations

import itertools
from statistics import fmean

import pytest
import torch
from torch import nn

from accumkit import AccumkitError, tasks
from accumkit.studies import curves, norms, randomness, running
from accumkit.studies.layers import DeferredBatchNorm, GhostBatchNorm, commit
from accumkit.studies.nets import KINDS, calibrate, net
from accumkit.studies.stored_curves import stored

SIZES = norms.SIZES


@pytest.fixture(scope="module")
def mlp() -> norms.Comparison:
    torch.set_num_threads(1)
    return norms.compare(tuple(KINDS))


@pytest.fixture(scope="module")
def cnn() -> norms.Comparison:
    torch.set_num_threads(1)
    return norms.compare(("none", "group", "layer", "instance", "frozen", "batch"), seeds=2, network="cnn")


@pytest.mark.parametrize("norm", ["none", "group", "layer", "frozen"])
def test_norms_of_each_example_by_itself_are_exact_at_every_size(mlp, cnn, norm):
    for found in (mlp, cnn):
        row = found.row(norm)
        assert row.exact
        assert max(error for errors in row.errors for error in errors) <= 1e-12
        assert all(len(errors) == found.seeds for errors in row.errors)


@pytest.mark.parametrize("groups", [1, 2, 8, 16, 32])
def test_any_number_of_groups_is_exact(groups):
    assert norms.compare(("group",), (64, 4, 1), seeds=1, groups=groups).row("group").exact


def test_batchnorm_turns_away_monotonically_and_is_below_a_half_at_two(mlp):
    row = mlp.row("batch")
    means = [row.cosine(size) for size in SIZES[:-1]]
    assert all(after < before for before, after in itertools.pairwise(means)), means
    assert means[-1] < 0.5
    assert means[0] > 1 - 1e-12


def test_a_convolutional_net_turns_away_much_less(mlp, cnn):
    full, conv = mlp.row("batch"), cnn.row("batch")
    for size in SIZES[1:-1]:
        assert 1 - conv.cosine(size) < (1 - full.cosine(size)) / 5
    assert conv.cosine(2) > 0.95
    assert not conv.refused
    assert 0.9 < conv.cosine(1) < conv.cosine(2)  # one image is 64 samples: nothing to refuse
    assert not conv.exact


def test_a_micro_batch_of_one_is_refused_where_a_channel_has_one_value(mlp, cnn):
    row = mlp.row("batch")
    assert list(row.refused) == [1]
    assert "more than 1 value per channel" in row.refused[1]  # torch's own words
    assert "variance 0" in row.why
    assert row.cosine(1) is None
    assert row.error(1) is None
    instance = mlp.row("instance")
    assert list(instance.refused) == list(SIZES)
    assert "more than 1 spatial element" in instance.refused[64]
    assert "InstanceNorm needs pixels" in instance.why
    assert cnn.row("instance").exact


def test_ghost_batches_are_what_accumulation_makes_of_batchnorm(mlp):
    row = mlp.row("ghost")  # of 8
    assert all(row.error(size) <= 1e-12 for size in (64, 32, 16, 8))
    assert row.cosine(4) < 0.9
    data = tasks.digits(64, torch.float64)[:]
    for size in (4, 8, 32):
        accumulated = norms.gradient(net("batch"), data, size)
        at_once = norms.gradient(net("ghost", ghost=size), data, 64)
        assert (accumulated - at_once).norm() <= 1e-12 * at_once.norm()


def test_deferred_statistics_change_no_gradient(mlp):
    for size in range(len(SIZES)):
        assert mlp.row("deferred").cosines[size] == pytest.approx(mlp.row("batch").cosines[size], abs=1e-12)


def test_a_window_with_a_short_last_micro_batch():
    assert norms.compare(("group",), (40, 24, 7), window=40, seeds=1).row("group").exact


def test_the_study_can_fail(monkeypatch):
    wrong = torch.nn.functional.cross_entropy
    monkeypatch.setattr(norms.F, "cross_entropy", lambda *a, reduction: wrong(*a, reduction="mean"))
    assert not norms.compare(("none",), (64, 8), seeds=1).row("none").exact


def test_tables_say_their_numbers(mlp, cnn):
    text = repr(mlp)
    lines = {line.split("  ")[0]: line for line in text.splitlines()}
    assert lines["BatchNorm"].split()[-2] == "refused"
    assert "below 1e-12" in lines["GroupNorm"]
    assert "standard deviation over 5 seeds; fully connected network, window of 64" in text.replace("\n", " ")
    html = cnn._repr_html_()
    assert html.startswith("<table>")
    assert '<th scope="row"' in html
    assert "InstanceNorm" in html


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"norms": ("weight",)}, "norm 'weight' is not known; give one of none, group"),
        ({"micro_batch_sizes": (65,)}, "each from 1 to the window's 64"),
        ({"micro_batch_sizes": ()}, "give at least one"),
        ({"micro_batch_sizes": (True,)}, "each from 1"),
        ({"seeds": 0}, "seeds=0: give a whole number"),
        ({"window": 1}, "window=1: give a whole number from 2"),
        ({"network": "rnn"}, "network='rnn': give one of 'mlp', 'cnn'"),
        ({"groups": 7}, "groups=7 do not divide the 64 channels of this network; give 1, 2, 4"),
    ],
)
def test_bad_settings_are_clear(how, said):
    with pytest.raises(AccumkitError, match=said):
        norms.compare(**how)


def test_nothing_random_is_left_behind():
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    norms.compare(("batch", "frozen"), (64, 8), seeds=1)
    randomness.compare(draws=(1,))
    running.disagreement(seeds=1)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_num_threads() == threads


# running statistics


@pytest.mark.parametrize("size", [32, 8, 2])
def test_deferred_statistics_are_the_big_batchs_in_the_first_layer_only(size):
    deferred = running.compare(size).way("deferred")
    assert deferred.mean_errors[0] <= 1e-12
    assert deferred.variance_errors[0] <= 1e-12
    assert deferred.mean_errors[1] > 1e-3  # deeper layers see other inputs
    assert deferred.updates == 1


@pytest.mark.parametrize("size", [32, 8, 2])
def test_corrected_momentum_leaves_less_than_a_percent_in_the_first_layer(size):
    found = running.compare(size)
    plain, corrected = found.way("plain"), found.way("corrected")
    assert 1e-12 < corrected.mean_errors[0] < 0.01
    assert corrected.mean_errors[0] < plain.mean_errors[0] / 10
    assert corrected.variance_errors[0] < plain.variance_errors[0] / 2
    assert corrected.updates == plain.updates == 64 // size
    assert corrected.momentum == pytest.approx(0.1)
    assert plain.momentum == pytest.approx(1 - 0.9 ** (64 // size))


def test_the_variance_lacks_what_lies_between_micro_batches():
    # Shuffled digits: torch's unbiased variance makes up for it on average. Sorted ones: nothing does but pooling.
    shuffled, by_class = (running.compare(8, order=order) for order in ("shuffled", "by class"))
    assert shuffled.way("corrected").variance_ratios[0] == pytest.approx(1, abs=0.02)
    assert by_class.way("corrected").variance_ratios[0] < 0.85
    assert by_class.way("deferred").variance_ratios[0] == pytest.approx(1, abs=1e-12)
    assert "by class" in repr(by_class)
    assert "momentum corrected" in by_class._repr_html_()


def test_momenta_are_each_others_inverse():
    for steps in (1, 2, 16):
        assert running.effective_momentum(running.corrected_momentum(0.1, steps), steps) == pytest.approx(0.1)
    assert [round(running.effective_momentum(0.1, n), 2) for n in (2, 4, 8, 16)] == [0.19, 0.34, 0.57, 0.81]
    with pytest.raises(AccumkitError, match=r"momentum=1\.5: give a number between 0 and 1"):
        running.effective_momentum(1.5, 2)
    with pytest.raises(AccumkitError, match="accumulation_steps=0"):
        running.corrected_momentum(0.1, 0)
    with pytest.raises(AccumkitError, match="micro_batch_size=3: give 2, 4"):
        running.compare(3)
    with pytest.raises(AccumkitError, match="order='random'"):
        running.compare(8, order="random")


@pytest.mark.parametrize("shape", [(10, 3), (10, 3, 4), (10, 3, 2, 2)])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_deferred_batchnorm_pools_as_one_batch_does(shape, momentum):
    big = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)](3, momentum=momentum).double()
    small = DeferredBatchNorm(3, momentum=momentum).double()
    for _ in range(3):
        x = 100 + torch.randn(shape, dtype=torch.float64)
        big(x)
        for piece in x.split(4):
            small(piece)
        commit(small)
    assert torch.allclose(small.running_mean, big.running_mean, rtol=1e-13)
    assert torch.allclose(small.running_var, big.running_var, rtol=1e-12)
    assert int(small.num_batches_tracked) == 3
    small.commit()
    assert int(small.num_batches_tracked) == 3
    x = torch.randn(shape, dtype=torch.float64)
    assert torch.allclose(small.eval()(x), big.eval()(x))


def test_ghost_batchnorm_evaluates_like_any_other():
    layer = GhostBatchNorm(3, ghost=2)
    x = torch.randn(6, 3)
    layer(x)
    assert int(layer.num_batches_tracked) == 3
    assert torch.equal(layer.eval()(x)[:1], layer(x[:1]))


def test_training_and_evaluation_disagree_more_the_smaller_the_micro_batch():
    found = running.disagreement()
    values = list(found.values())
    assert values == sorted(values)
    conv = running.disagreement(network="cnn", seeds=1)
    assert conv[2] < found[2] / 5
    assert max(running.disagreement("layer", (8, 2), seeds=1).values()) < 1e-12


def test_calibration_sets_the_statistics_of_the_images():
    images = tasks.digits(200, torch.float64).tensors[0]
    model = net("batch")
    calibrate(model, images)
    first = model[1](model[0](images))
    assert torch.allclose(model[2].running_mean, first.mean(0))
    assert torch.allclose(model[2].running_var, first.var(0))
    assert model[2].momentum == 0.1


# dropout


def test_dropout_agrees_in_distribution_not_in_value():
    found = randomness.compare(draws=(1, 10, 100))
    assert found.same_seed > 0.3
    assert found.averages[100] < found.averages[10] < found.averages[1]
    assert found.averages[100] < found.averages[1] / 4  # falls as one over the root of the draws
    assert found.replayed == 0.0
    assert found.evaluation <= 1e-12
    assert found.repeated_variance > 1
    assert "from the saved generator states" in repr(found)
    assert "evaluation mode" in found._repr_html_()


# training curves


def test_stored_curves_are_those_that_the_code_gives():
    plan = curves.Plan(sizes=(16,), seeds=1)
    *_, found = curves.train(plan)
    kept = stored()
    for norm in plan.norms:
        again, before = found.errors[norm, 16][0], kept.errors[norm, 16][0]
        assert len(again) == len(before) == plan.epochs
        # another machine may round otherwise, which can move an example or two of 360 over the border
        assert again == pytest.approx(before, abs=1.0)
        assert found.in_training_mode[norm, 16][0] == pytest.approx(kept.in_training_mode[norm, 16][0], abs=1.5)


def test_stored_curves_show_what_the_lesson_says():
    kept = stored()
    assert kept.finished
    assert kept.seconds_left == 0.0
    batch = {size: fmean(kept.final("batch", size)) for size in kept.plan.sizes}
    group = {size: fmean(kept.final("group", size)) for size in kept.plan.sizes}
    assert batch[32] < group[32]  # as in Wu and He: BatchNorm is the better one while micro-batches are large
    assert batch[2] > 5 * group[2]
    assert max(group.values()) - min(group.values()) < 0.5
    assert fmean(kept.in_training_mode["batch", 2]) > batch[2] > fmean(kept.in_training_mode["group", 2])
    assert "BatchNorm, in training mode" in repr(kept)
    assert "held out" in kept._repr_html_()


def test_published_figures_are_those_of_the_paper():
    gaps = [round(b - g, 1) for b, g in zip(curves.WU_AND_HE["batch"], curves.WU_AND_HE["group"], strict=True)]
    assert gaps == [-0.5, -0.5, 0.8, 3.1, 10.6]  # "10.6% lower error than its BN counterpart" at 2


def test_training_comes_in_slices_and_estimates_the_time_left():
    plan = curves.Plan(norms=("batch",), sizes=(32, 16), seeds=1, epochs=1)
    assert curves.Curves(plan).seconds_left is None
    counts, lefts = 0, []
    for found in curves.train(plan):
        counts += 1
        lefts.append(found.seconds_left)
        if counts == 1:
            assert found.final("batch", 32) == []
            assert found.errors == {("batch", 32): [[]]}
    assert counts == 2 * (plan.updates + 1)
    assert found.finished
    assert lefts[-1] == 0.0 < lefts[2]
    assert "-" in repr(curves.Curves(plan)).splitlines()[1]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"norms": ("x",)}, "norm 'x' is not known"),
        ({"epochs": 0}, "epochs=0: give a whole number"),
        ({"seeds": True}, "seeds=True"),
        ({"sizes": ()}, r"sizes=\(\): give micro-batch sizes"),
        ({"sizes": (128,)}, "from 1 to the window, 64"),
    ],
)
def test_bad_plans_are_clear(how, said):
    with pytest.raises(AccumkitError, match=said):
        curves.Plan(**how)
