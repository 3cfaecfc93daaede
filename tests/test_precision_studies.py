"""The studies of mixed precision: what torch refuses, what passes in silence, what overflows, and what sums lose."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

import accumkit as ak
from accumkit import tasks
from accumkit.studies import precision
from accumkit.studies.precision.problem import times

NOT_RECORDED, AFTER_STEP = "No inf checks were recorded prior to update", "unscale_() is being called after step()"


@pytest.fixture(scope="module")
def orders():
    return precision.orders()


# the 24 orders
def test_of_24_orders_torch_refuses_half_at_once_and_one_is_right(orders):
    assert [o.calls for o in orders.rows] == list(itertools.permutations(precision.CALLS))
    counted = {kind: len(orders.of(kind)) for kind in {o.kind for o in orders.rows}}
    assert counted == {"refused": 12, "refused later": 4, "not clipped": 2, "silent": 5, "right": 1}
    assert orders.of("right")[0].calls == ("unscale", "clip", "step", "update")


def test_what_torch_says(orders):
    for order in orders.of("refused") + orders.of("refused later"):
        window, call = order.refused_at
        assert order.refused.startswith({"update": NOT_RECORDED, "unscale": AFTER_STEP}[call])
        if order.kind == "refused":
            assert (window, order.windows) == (0, ())
            # update needs a step or an unscale before it; unscale may not follow a step before update
            early = order.calls.index("update") < min(order.calls.index(c) for c in ("unscale", "step"))
            late = order.calls.index("step") < order.calls.index("unscale") < order.calls.index("update")
            assert early or late
        else:
            assert window == 1
            assert order.calls.index("update") < order.calls.index("step"), "the state that update renews is used up"


def test_what_each_silent_order_does_to_an_sgd_update(orders):
    by_calls = {o.calls: o for o in orders.rows}

    def ratios(*calls):
        return [w.ratio for w in by_calls[calls].windows]

    assert ratios("unscale", "clip", "step", "update") == pytest.approx([1, 1, 1], rel=1e-6)
    assert ratios("clip", "unscale", "step", "update") == pytest.approx([1 / 65536] * 3, rel=1e-4)
    for calls in (("unscale", "step", "clip", "update"), ("unscale", "step", "update", "clip")):
        order = by_calls[calls]
        assert [w.ratio * w.right_factor for w in order.windows] == pytest.approx([1, 1, 1], rel=1e-6), "not clipped"
        assert all(w.right_factor < 0.6 for w in order.windows), "else nothing would have to be clipped"
    # an unscale left for after the update makes the next step take its gradients for unscaled
    first, *later = ratios("step", "update", "unscale", "clip")
    assert first == pytest.approx(1 / by_calls["step", "update", "unscale", "clip"].windows[0].right_factor, rel=1e-6)
    assert later[0] * by_calls["step", "update", "unscale", "clip"].windows[1].right_factor == pytest.approx(65536)
    assert ratios("clip", "step", "update", "unscale") == pytest.approx([1 / 65536, 1, 1], rel=1e-4)
    for order in orders.rows:
        for window in order.windows:
            assert window.cosine == pytest.approx(1, abs=1e-9), "the direction stays; only the length goes wrong"


@pytest.mark.parametrize("scale", [2.0**power for power in (0, 8, 16, 24)])
@pytest.mark.parametrize("max_norm", [0.1, 1.0, 5.0])
def test_clip_before_unscale_shrinks_by_what_the_arithmetic_says(scale, max_norm):
    order = precision.run_order(("clip", "unscale", "step", "update"), scale, max_norm, windows=1)
    (window,) = order.windows
    factor = min(1.0, max_norm / (scale * window.true_norm))
    assert window.update / window.true_norm == pytest.approx(factor, rel=1e-3)
    assert window.factor == pytest.approx(factor, rel=1e-3)
    assert window.seen_norm == pytest.approx(scale * window.true_norm, rel=1e-12)


def test_the_factor_read_off_parameters_in_float64_agrees():
    lost, right = (
        precision.run_order(calls, 65536.0, 1.0, windows=1).windows[0].update
        for calls in (("clip", "unscale", "step", "update"), ("unscale", "clip", "step", "update"))
    )
    moved = {}
    for early in (True, False):
        setting = precision.problem.problem(1, 4, 65536.0)
        before = setting.parameters
        for batch in setting.windows[0]:
            setting.backward(batch, 4)
        if not early:
            setting.scaler.unscale_(setting.optimizer)
        nn.utils.clip_grad_norm_(setting.model.parameters(), 1.0)
        setting.scaler.step(setting.optimizer)
        moved[early] = (setting.parameters - before).norm().item() / 0.1
    assert moved[True] == pytest.approx(lost, rel=1e-6)
    assert moved[True] / moved[False] == pytest.approx(lost / right, rel=1e-6)


@pytest.mark.parametrize("name", precision.PRECISIONS)
def test_the_table_is_the_same_in_every_precision(name, orders):
    for other, order in zip(precision.orders(precision=name, scale=1024.0, windows=2).rows, orders.rows, strict=True):
        assert other.kind == order.kind


def test_a_scale_too_large_for_float16_skips(orders):
    table = precision.orders(precision="float16 autocast", scale=2.0**24, windows=2)
    accepted = [o for o in table.rows if o.kind not in ("refused", "refused later")]
    assert {o.kind for o in accepted} == {"skipped"}
    assert len(accepted) == 8
    assert all(w.skipped and w.scale == 2.0 ** (23 - i) for o in accepted for i, w in enumerate(o.windows))


def test_moments_say_where_gradients_were_scaled():
    order = precision.run_order(("clip", "unscale", "step", "update"), windows=1)
    assert [m.call for m in order.moments] == ["backward"] * 4 + ["clip", "unscale", "step", "update"]
    assert [m.scaled for m in order.moments] == pytest.approx([65536.0] * 5 + [1.0] * 3)
    assert order.moments[4].norm == pytest.approx(0.25, rel=1e-3)
    assert order.moments[3].norm == pytest.approx(order.windows[0].seen_norm)
    step = precision.run_order(("step", "update"), windows=1)  # it unscales by itself
    assert [m.scaled for m in step.moments[-2:]] == pytest.approx([1.0, 1.0])


def test_repr_is_a_table(orders):
    lines = repr(orders).splitlines()
    assert lines[0].split("  ")[0] == "order"
    assert len(lines) >= 26
    assert "12 refused" in " ".join(lines[25:])
    assert orders._repr_html_().count("<tr>") == 25
    assert repr(orders.rows[0]) == "unscale, clip, step, update: right; updates beside the right ones: 1, 1, 1"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: precision.run_order(["unscale", "trim"]), "unknown call 'trim': give some of unscale, clip"),
        (lambda: precision.run_order(["step"], precision="float8"), "precision='float8': give one of float64"),
        (lambda: precision.run_order(["step"], accumulation_steps=999), "999 micro-batches of 4 are 11,988 digits"),
        (lambda: precision.clipping(ways=["gently"]), "unknown way 'gently': give some of after unscaling"),
        (lambda: precision.overflow(spoiled=5), "spoiled=5: give a micro-batch from 1 to 4"),
        (lambda: precision.sums("float8"), "dtype='float8': give one of bfloat16, float16"),
    ],
)
def test_bad_settings_are_said(call, says):
    with pytest.raises(ak.AccumkitError, match=says):
        call()


# the ways to clip
@pytest.fixture(scope="module")
def clips():
    return precision.clipping()


@pytest.mark.parametrize("scale", [1.0, 256.0, 65536.0])
def test_ways_to_clip(clips, scale):
    def row(way):
        return clips.row(way, scale)

    for way in ("after unscaling", "by value, after unscaling", "max_norm=inf, before unscaling"):
        assert row(way).ratio == pytest.approx(1, rel=1e-5), way
    assert row("before unscaling").ratio == pytest.approx(1 / scale, rel=1e-4)
    assert row("before unscaling, by hand").ratio == pytest.approx(1 / scale, rel=1e-4)
    assert row("before unscaling").cosine == pytest.approx(1)
    assert row("before unscaling").seen_norm == pytest.approx(scale * row("after unscaling").seen_norm)
    assert row("each micro-batch").cosine < 0.95, "clipping each micro-batch turns the gradient"
    value = row("by value, before unscaling")
    assert value.ratio < (1.001 if scale == 1 else 2 / scale)
    assert value.cosine < 0.9
    assert row("max_norm=inf, before unscaling").factor == 1.0


def test_value_clipping_before_unscaling_leaves_entries_of_the_limit_over_the_scale():
    setting = precision.problem.problem(1, 4, 65536.0)
    for batch in setting.windows[0]:
        setting.backward(batch, 4)
    nn.utils.clip_grad_value_(setting.model.parameters(), 0.02)
    setting.scaler.unscale_(setting.optimizer)
    assert setting.gradient.abs().max().item() == pytest.approx(0.02 / 65536)


# overflow
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("spoiled", [1, 2, 4])
def test_one_micro_batch_spoils_its_window(spoiled, fused):
    result = precision.overflow(spoiled, fused=fused)
    assert [count > 0 for count in result.spoiled] == [i >= spoiled for i in range(1, 5)]
    assert result.skipped
    assert (result.scale_before, result.scale_after) == (65536.0, 32768.0)
    assert not result.schedule_moved
    assert result.naive_schedule_moved
    assert result.hooks == fused, "a fused optimizer's hooks run although it skips inside"
    assert result.times_at_hook == pytest.approx(65536.0 if fused else 1.0, rel=1e-3)


def test_without_an_overflow_the_step_is_made():
    for result in (precision.overflow(0), precision.overflow(2, precision="bfloat16 autocast"),
                   precision.overflow(2, scale=1.0), precision.overflow(2, precision="float32")):  # fmt: skip
        assert sum(result.spoiled) == 0
        assert not result.skipped
        assert result.schedule_moved
        assert result.scale_after == result.scale_before


def test_the_search_for_a_scale():
    result = precision.search(2.0**24, windows=8)
    assert result.skipped == tuple(sorted(result.skipped, reverse=True)), "first it skips, then it does not"
    assert 3 <= sum(result.skipped) <= 7
    for before, after, skipped in zip(result.scales, result.scales[1:], result.skipped, strict=False):
        assert after == (before / 2 if skipped else before)
    assert result.scheduler_steps == result.skipped.count(False)


def test_one_scaler_for_several_optimizers_skips_each_for_itself():
    result = precision.several()
    assert result == precision.Several((False, True), 65536.0, 32768.0)


# sums
@pytest.mark.parametrize(("dtype", "last"), [("bfloat16", (0.05, 0.4)), ("float16", (0.002, 0.03))])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_error_of_a_low_precision_sum_grows_with_n(dtype, last, seed):
    result = precision.sums(dtype, seed=seed)
    errors = [row.in_grad for row in result.rows]
    assert errors == sorted(errors)
    assert last[0] < errors[-1] < last[1]
    assert all(row.in_float32 < 1e-6 for row in result.rows)
    once = [row.one_rounding for row in result.rows[1:]]
    assert max(once) < 1.6 * min(once), "rounding once costs the same whatever N"
    assert result.rows[1].in_grad == pytest.approx(result.rows[1].one_rounding), "two gradients: one rounding"


def test_against_the_true_gradient_neither_curve_is_monotone():
    result = precision.sums(at=[2**power for power in range(11)])
    for field in ("true_in_grad", "true_in_float32"):
        errors = [getattr(row, field) for row in result.rows]
        assert errors != sorted(errors)
        assert errors != sorted(errors, reverse=True)
    assert result.rows[0].true_in_grad == result.rows[0].true_in_float32 > 0.001, "each gradient has an error itself"


def test_the_sum_is_what_autograd_leaves_in_grad():
    model = tasks.mlp().bfloat16()
    images, labels = tasks.digits().tensors
    for i in range(64):
        part = slice(4 * i, 4 * i + 4)
        nn.functional.cross_entropy(model(images[part].bfloat16()).float(), labels[part]).backward()
    exact = precision.sums(at=[64])
    model_sum = torch.cat([p.grad.flatten() for p in model.parameters()]).double()
    twin = tasks.mlp().bfloat16()
    total = torch.zeros_like(model_sum)
    for i in range(64):
        part = slice(4 * i, 4 * i + 4)
        loss = nn.functional.cross_entropy(twin(images[part].bfloat16()).float(), labels[part])
        total += torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(twin.parameters()))]).double()
    assert ((model_sum - total).norm() / total.norm()).item() == pytest.approx(exact.rows[0].in_grad, rel=1e-6)


def test_where_adding_sticks():
    assert precision.sticks("bfloat16") == 256
    assert precision.sticks("float16") == 2048
    assert precision.sticks("bfloat16", step=0.5) == 128
    assert precision.sticks("float32") is None


def test_autocast_leaves_the_sum_in_float32():
    for dtype in ("bfloat16", "float16"):
        assert precision.types(dtype) == precision.Types(dtype, "float32", "float32")
        assert precision.types(dtype, autocast=False) == precision.Types(dtype, dtype, dtype)


def test_bytes():
    own, sums = precision.bytes_of(tasks.mlp().bfloat16())
    assert (own, sums) == (2 * 4810, 4 * 4810)
    frozen = tasks.mlp().bfloat16()
    frozen[1].requires_grad_(False)
    assert precision.bytes_of(frozen)[1] == 4 * 650


def test_ratios_for_people():
    assert [times(r) for r in (1.0004, 0.5, 1 / 256, 1e-10, 148178.2, math.inf, math.nan)] == [
        "1", "0.5", "1/256", "1/1e+10", "148,178", "not finite", "not finite",
    ]  # fmt: skip


@pytest.mark.parametrize("make", [precision.overflow, precision.search, precision.sums, precision.clipping])
def test_results_are_tables(make):
    result = make(at=[1, 2]) if make is precision.sums else make()
    assert len(repr(result).splitlines()) > 2
    assert "<table>" in result._repr_html_()
