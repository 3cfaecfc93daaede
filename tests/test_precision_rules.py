"""The rules about clipping, scalers and low-precision sums: each fires on its fault, at its line, and only there."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from torch import nn

import accumkit as ak
from accumkit import tasks
from accumkit.trace.shares import settle
from tests import amp_loops as loops
from tests import faulty_loops
from tests.problems import images
from tests.test_rules import TABLE as FIRST

pytestmark = [
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step"),  # torch's own, on a first skipped step
    pytest.mark.filterwarnings("ignore:`lr_scheduler.step"),
]

# (loop, settings of the watch, the one finding, what its evidence must say, whether events alone show it)
TABLE = [
    (
        loops.clip_before_unscale,
        "clip-before-unscale",
        r"multiplied by 65,536: in update 1 a norm of .*limit of 1",
        True,
    ),
    (loops.clip_value_before_unscale, "clip-before-unscale", r"65,536.*with a limit of 0.5", True),
    (loops.clip_by_hand_before_unscale, "clip-before-unscale", r"65,536.*clipped by hand", False),
    (loops.clip_by_hand_before_unscale_summed, "clip-before-unscale", r"65,536.*clipped by hand", False),
    (loops.clamp_before_unscale, "clip-before-unscale", r"65,536.*clipped by hand", False),
    (loops.fused_clip_before_unscale, "clip-before-unscale", r"65,536.*instead of 1\.", True),
    (loops.clip_every, "clip-every-micro-batch", r"10 clips came inside a window.*one example weighs", True),
    (
        loops.clip_every_by_hand,
        "clip-every-micro-batch",
        r"always ended at a norm of 0\.1: a clip written by hand",
        False,
    ),
    (loops.clip_every_value, "clip-every-micro-batch", r"10 of them changed the gradients, and cut single", True),
    (loops.scale_changed, "scale-changed-in-window", r"scaled by 65,536 and 32,768.*one example weighs 1 to 2", True),
    (loops.unscale_every, "scale-changed-in-window", r"10 times the gradients were unscaled before the last", True),
    (loops.fresh_scaler, "missing-scaler-update", r"6 scalers for 6 steps.*6 steps of 6 were skipped", True),
    (loops.never_updated, "missing-scaler-update", r"did not follow on updates 1 to 5", True),
    (
        loops.schedule_moves_on_a_skip,
        "skipped-update",
        r"1 step \(update 4\).*the schedule moved on: 6 windows, 5",
        True,
    ),
    (loops.average_moves_on_a_skip, "skipped-update", r"1 step \(update 4\).*the average moved on", True),
]
RIGHT = [
    loops.amp, loops.amp_summed, loops.divided_while_scaled, loops.clipped_by_hand, loops.norm_logged_while_scaled,
    loops.clipped_values, loops.switched_off, loops.two_optimizers, loops.a_scaler_for_each_pass,
    loops.sums_aside(torch.float64), loops.sums_aside(torch.float64, clip=0.2), loops.skipping_with_care,
    loops.searching,
]  # fmt: skip
OURS = {"clip-before-unscale", "clip-every-micro-batch", "scale-changed-in-window", "missing-scaler-update",
        "skipped-update", "low-precision-sum"}  # fmt: skip


def data_for(loop, dtype=torch.float64):
    return images(dtype=torch.float32 if loop is loops.fresh_scaler else dtype)  # autocast leaves float64 alone


def marked_line(loop) -> str:
    source, first = inspect.getsourcelines(loop)
    (offset,) = (i for i, line in enumerate(source) if "# HERE" in line)
    return f"amp_loops.py:{first + offset}"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("loop", "pitfall", "evidence", "_"), TABLE, ids=lambda v: getattr(v, "__name__", None))
def test_fires_on_its_fault_and_no_other_does(loop, pitfall, evidence, _, dtype):
    verdict = ak.audit(data_for(loop, dtype).watch(loop))
    assert [finding.pitfall for finding in verdict.findings] == [pitfall]
    (finding,) = verdict.findings
    assert re.search(evidence, finding.evidence), finding.evidence
    assert finding.location == marked_line(loop)
    assert finding.lesson == "05_mixed_precision_and_clipping"
    assert finding.affects in ("gradient", "update")
    assert finding.fix
    assert verdict.status == "not equivalent"


@pytest.mark.parametrize(("loop", "pitfall", "_", "seen"), TABLE, ids=lambda v: getattr(v, "__name__", None))
def test_events_alone(loop, pitfall, _, seen):
    verdict = ak.audit(data_for(loop).watch(loop, objective=None))
    assert [f.pitfall for f in verdict.findings] == ([pitfall] if seen else [])
    if not seen:  # what is written by hand shows in the numbers only
        assert verdict.status == "cannot tell"


@pytest.mark.parametrize("steps", [2, 3, 5])
def test_the_table_holds_for_other_sizes(steps):
    for loop, pitfall, *_ in TABLE:
        verdict = ak.audit(images(4 * 11, dtype=torch.float32).watch(loop, steps))
        assert {f.pitfall for f in verdict.findings} <= {pitfall}, (loop.__name__, verdict)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("loop", RIGHT, ids=lambda loop: loop.__qualname__)
def test_right_loops_are_equivalent(loop, dtype):
    verdict = ak.audit(images(dtype=dtype).watch(loop))
    assert verdict.ok, verdict
    events = ak.audit(images(dtype=dtype).watch(loop, objective=None))
    assert events.findings == ()


@pytest.mark.parametrize(("loop", "data", "pitfall"), [row[:3] for row in FIRST])
def test_no_loop_with_another_fault_is_accused_of_these(loop, data, pitfall):
    verdict = ak.audit(data().watch(loop))
    assert not OURS & {finding.pitfall for finding in verdict.findings}


def test_bfloat16_autocast_with_float32_parameters_is_right():
    verdict = ak.audit(images(256, dtype=torch.float32).watch(loops.bfloat16_autocast, steps=32))
    assert verdict.ok, verdict


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_low_precision_sum_is_named_where_its_error_is_more_than_rounding(dtype):
    assert ak.audit(images(128, dtype=dtype).watch(loops.summed_in_grad, steps=2)).findings == ()
    for steps in (4, 16, 32):
        trace = images(128, dtype=dtype).watch(loops.summed_in_grad, steps=steps)
        verdict = ak.audit(trace)
        (finding,) = verdict.findings
        assert finding.pitfall == "low-precision-sum"
        assert finding.location == marked_line(loops.summed_in_grad)
        worst = max(trace.updates, key=lambda u: u.sum_error)
        times = re.search(r"([\d.]+) times what rounding it once", finding.evidence)
        assert float(times[1]) == pytest.approx(worst.sum_error / worst.one_rounding, rel=1e-2)
        assert 1.1 < float(times[1]) < 8
        assert "accumulate_dtype" in finding.fix


@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sums_kept_aside_in_float32_are_right(dtype, clip):
    trace = images(128, dtype=dtype).watch(loops.sums_aside(clip=clip), steps=16)
    verdict = ak.audit(trace)
    assert verdict.ok, verdict
    assert all(u.kept_aside for u in trace.updates)
    assert all(m.weight == pytest.approx(1, abs=0.02) for u in trace.updates for m in u.micro_batches)


def test_sums_kept_aside_and_never_put_back_are_lost():
    def lost(model, loader, optimizer, steps, scheduler):
        for (x, y), size, last in loops.windows(loader, steps):
            (nn.functional.cross_entropy(model(x), y) / size).backward()
            if last:
                optimizer.step()
            optimizer.zero_grad()

    verdict = ak.audit(images().watch(lost))
    assert [f.pitfall for f in verdict.findings] == ["zero-every-micro-batch"]


@pytest.mark.parametrize("scale", [256.0, 65536.0])
@pytest.mark.parametrize("max_norm", [0.1, 1.0, 5.0])
def test_the_factor_of_clip_before_unscale_is_the_arithmetic_s(scale, max_norm, monkeypatch):
    """Read off .grad, as the optimizer gets it: min(1, max_norm / (scale |g|)), within 1e-3."""
    monkeypatch.setattr(loops, "SCALE", scale)
    monkeypatch.setattr(loops, "clip_grad_norm_", lambda p, _: nn.utils.clip_grad_norm_(p, max_norm))
    given = []
    problem = images(dtype=torch.float32)
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.05)
    optimizer.register_step_pre_hook(
        lambda *_: given.append(torch.cat([p.grad.flatten() for p in problem.model.parameters()]).norm().item())
    )
    trace = problem.watch(lambda *args: loops.clip_before_unscale(args[0], args[1], optimizer, *args[3:]))
    for length, update in zip(given, trace.updates, strict=True):
        factor = min(1.0, max_norm / (scale * update.grad_norm))
        assert length / update.grad_norm == pytest.approx(factor, rel=1e-3)
        assert update.clip_factor == pytest.approx(factor, rel=1e-3)
        assert update.expected_clip_factor == pytest.approx(min(1.0, max_norm / update.grad_norm), rel=1e-3)
        assert update.clip_scale == scale
        assert [m.weight for m in update.micro_batches] == pytest.approx([1] * update.accumulated, rel=1e-3)
    assert [f.pitfall for f in ak.audit(trace).findings] == ["clip-before-unscale"]


def test_a_clip_by_value_that_cut_every_entry_still_tells_the_true_length():
    accumulated = torch.tensor([3.0, -5.0, 9.0, -2.0], dtype=torch.float64)
    at_step = accumulated.clamp(-0.5, 0.5) / 1024
    settled = settle(accumulated, at_step, 1 / 1024, None, torch.ones(2), by_value=True)
    assert torch.equal(settled.made, accumulated / 1024)
    assert settled.strange == 0.0
    assert settled.clip_factor == pytest.approx((at_step.norm() / settled.made.norm()).item())
    some = accumulated.clamp(-4, 4) / 1024 / 7  # divided by hand too: entries below the limit tell
    settled = settle(accumulated, some, 1 / 1024, None, torch.ones(2), by_value=True)
    assert torch.allclose(settled.made, accumulated / 1024 / 7)


def test_clips_that_never_bit_are_told_but_change_no_update(monkeypatch):
    monkeypatch.setattr(loops, "clip_grad_norm_", lambda p, _: nn.utils.clip_grad_norm_(p, 50.0))
    verdict = ak.audit(images().watch(loops.clip_every))
    assert (verdict.status, verdict.ok) == ("equivalent", False)
    (finding,) = verdict.findings
    assert (finding.pitfall, finding.affects) == ("clip-every-micro-batch", "record")
    assert "none of them changed anything" in finding.evidence


def test_fresh_scalers_that_skipped_nothing_change_no_update():
    verdict = ak.audit(images().watch(loops.fresh_scaler))  # float64 does not overflow
    assert (verdict.status, verdict.ok) == ("equivalent", False)
    assert [(f.pitfall, f.affects) for f in verdict.findings] == [("missing-scaler-update", "record")]


def test_two_faults_are_both_named():
    def both(model, loader, optimizer, steps, scheduler):
        scaler = loops.scaler_of()
        for (x, y), size, last in loops.windows(loader, steps):
            scaler.scale(nn.functional.cross_entropy(model(x), y) / size).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            if last:
                scaler.step(optimizer)
                optimizer.zero_grad()
            scaler.update()

    verdict = ak.audit(images().watch(both))
    assert [f.pitfall for f in verdict.findings] == ["clip-every-micro-batch", "scale-changed-in-window"]


# what the trace holds for the rules
def test_the_trace_holds_scales_scalers_and_updates():
    trace = images().watch(loops.scale_changed)
    assert [m.scale for m in trace.updates[0].micro_batches] == [65536.0, 65536.0, 32768.0]
    assert [e.value for e in trace.events if e.kind == "scaler update"][:2] == [32768.0, 32768.0]
    assert {u.scaler for u in trace.updates} == {0}
    assert trace.scalers == [f"amp_loops.py:{inspect.getsourcelines(loops.scaler_of)[1] + 1}"]
    assert {m.scale for m in images().watch(faulty_loops.plain).micro_batches} == {None}


def test_a_scaler_made_before_the_watch_has_no_line():
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def loop(model, loader, optimizer, steps, scheduler):
        for (x, y), size, last in loops.windows(loader, steps):
            scaler.scale(nn.functional.cross_entropy(model(x), y) / size).backward()
            if last:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()

    trace = images().watch(loop)
    assert trace.scalers == [None]
    assert ak.audit(trace).ok


def test_another_models_scaler_is_not_this_models():
    other = tasks.mlp(hidden=8, dtype=torch.float64)
    own = torch.optim.SGD(other.parameters(), lr=0.1)

    def loop(model, loader, optimizer, steps, scheduler):
        scaler = loops.scaler_of()
        for (x, y), size, last in loops.windows(loader, steps):
            scaler.scale(nn.functional.cross_entropy(other(x), y)).backward()
            (nn.functional.cross_entropy(model(x), y) / size).backward()
            scaler.step(own)
            scaler.update()
            own.zero_grad()
            if last:
                optimizer.step()
                optimizer.zero_grad()

    trace = images().watch(loop)
    assert (trace.scalers, trace.count_of("scaler update")) == ([], 0)
    assert {m.scale for m in trace.micro_batches} == {None}
    assert ak.audit(trace).ok


@pytest.mark.parametrize("loop", [loops.amp, loops.clip_before_unscale, loops.summed_in_grad, loops.sums_aside()])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_watching_changes_nothing(loop, dtype):
    results = []
    for watched in (False, True):
        torch.manual_seed(0)
        problem = images(64, dtype=dtype)
        optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.05, momentum=0.9)
        if watched:
            problem.watch(loop, 4, optimizer=optimizer)
        else:
            scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=100)  # as the watch's problem has
            loop(problem.model, problem.loader, optimizer, 4, scheduler)
        results.append([*(p.detach() for p in problem.model.parameters()),
                        *(s["momentum_buffer"] for s in optimizer.state.values())])  # fmt: skip
        assert not any(p._backward_hooks for p in problem.model.parameters()), "the hooks are taken away"
    assert all(map(torch.equal, *results))
    for method in (torch.amp.GradScaler.update, torch.amp.GradScaler.__init__):
        assert method.__globals__["__name__"].startswith("torch."), "torch's own again, not a stand-in of the kit's"


def test_every_rule_of_this_lesson_is_in_the_table():
    assert {pitfall for _, pitfall, *_ in TABLE} | {"low-precision-sum"} == OURS
