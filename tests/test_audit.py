"""Verdicts: what they say of right loops, of odd ones, and of what cannot be judged."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import accumkit as ak
from accumkit.audit import Finding, Verdict
from accumkit.audit import verdict as verdict_module
from accumkit.audit.findings import named, number, several, span
from accumkit.trace.record import MicroBatch, Trace, Update
from tests import faulty_loops as faulty
from tests import right_loops as right
from tests.problems import Problem, images, lines, unequal_images

GOLDEN = Path(__file__).parent / "golden"

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")

EQUIVALENT = [
    right.six_lines,
    right.train_epoch,
    right.unbuffered,
    right.collected,
    right.running_mean,
    right.augmented,
    right.clipped_by_hand,
    right.averaged_and_evaluated,
    right.closure,
    right.two_optimizers,
    right.flushed_once_more,
    right.watched_copy,
    right.broken_off,
    right.straddling,
    faulty.plain,
]


@pytest.mark.parametrize("loop", EQUIVALENT, ids=lambda loop: loop.__name__)
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_right_loops_are_equivalent(loop, steps):
    trace = unequal_images().watch(loop, steps)
    verdict = ak.audit(trace)
    assert verdict.findings == ()
    assert verdict.status == "equivalent", verdict
    assert verdict.ok
    weights = [m.weight for update in trace.updates for m in update.micro_batches]
    assert all(abs(weight - 1) <= 1e-6 for weight in weights)


@pytest.mark.parametrize("loop", EQUIVALENT, ids=lambda loop: loop.__name__)
def test_right_loops_in_float32(loop):
    trace = unequal_images(dtype=torch.float32).watch(loop)
    assert ak.audit(trace).ok
    assert all(abs(m.weight - 1) <= 1e-3 for update in trace.updates for m in update.micro_batches)


@pytest.mark.parametrize("loop", [right.six_lines, faulty.plain, faulty.mean], ids=lambda loop: loop.__name__)
def test_right_loops_in_bfloat16(loop):
    assert ak.audit(images(dtype=torch.bfloat16).watch(loop)).ok


def test_the_mean_idiom_is_right_for_equal_micro_batches():
    assert ak.audit(images().watch(faulty.mean)).ok
    assert ak.audit(images().watch(right.straddling_means)).ok


def test_more_micro_batches_than_parameters():
    model = nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(4), nn.Linear(4, 10, dtype=torch.float64))
    data = images(70, 1, model=model)
    assert sum(p.numel() for p in model.parameters()) == 50 < 60
    trace = data.watch(right.six_lines, 60)
    assert ak.audit(trace).ok
    assert all(abs(m.weight - 1) <= 1e-6 for update in trace.updates for m in update.micro_batches)


def test_late_in_training_in_float32():
    data = images(dtype=torch.float32)
    optimizer = torch.optim.Adam(data.model.parameters(), lr=0.02)
    for _ in range(400):
        for pixels, labels in data.loader:
            optimizer.zero_grad()
            F.cross_entropy(data.model(pixels), labels).backward()
            optimizer.step()
    optimizer.zero_grad()
    loss = F.cross_entropy(data.model(pixels), labels).item()
    assert loss < 1e-4
    assert ak.audit(data.watch(faulty.plain)).ok
    assert ak.audit(data.watch(faulty.mean)).ok
    assert [f.pitfall for f in ak.audit(data.watch(faulty.missing_division)).findings] == ["missing-division"]


def test_tokens_and_class_weights_by_the_window():
    data = lines(3)

    def loop(model, loader, optimizer, steps, scheduler):
        ak.train_epoch(model, loader, optimizer, ak.next_token(), accumulation_steps=steps)

    assert ak.audit(data.watch(loop)).ok
    objective = ak.classification(class_weight=torch.linspace(0.1, 2, 10, dtype=torch.float64))

    def weighted(model, loader, optimizer, steps, scheduler):
        ak.train_epoch(model, loader, optimizer, objective, accumulation_steps=steps)

    assert ak.audit(unequal_images(objective=objective).watch(weighted)).ok


def test_dropout_is_no_fault():
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8, dtype=torch.float64), nn.Dropout(0.3), nn.Linear(8, 10, dtype=torch.float64)
    )
    assert ak.audit(images(model=model).watch(right.six_lines)).ok


def batch_norm() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10)
    ).double()  # fmt: skip


def test_batch_norm_is_said_and_no_loop_accused():
    verdict = ak.audit(images(model=batch_norm()).watch(right.six_lines))
    assert [finding.pitfall for finding in verdict.findings] == ["batchnorm-statistics", "batchnorm-momentum"]
    assert verdict.status == "not equivalent"
    assert "BatchNorm (layer 2) normalises each micro-batch by itself" in verdict.findings[0].evidence
    assert ak.audit(images(model=batch_norm()).watch(right.six_lines, 1)).ok  # one micro-batch an update: no fault
    assert ak.audit(images(model=batch_norm().eval()).watch(right.six_lines)).ok  # frozen


def test_a_scaler_that_skips_its_first_steps():
    verdict = ak.audit(unequal_images(dtype=torch.float32).watch(right.scaled))
    assert verdict.ok
    assert "The scaler skipped 3 steps (updates 1 to 3)" in verdict.reason


# odd on purpose: accused of nothing, and not called equivalent either
ODD = [
    (right.warm_up, "cannot tell", "they grow, as in a warm-up"),
    (right.summed, "equivalent up to scale", "its loss is summed and never divided"),
    (right.third_of_a_loss, "equivalent up to scale", "weighs 0.3 instead of 1, the same over the whole run"),
    (right.other_loss, "cannot tell", "not those of the declared objective"),
    (right.adversary, "cannot tell", "backward calls at several lines"),
]


@pytest.mark.parametrize(("loop", "status", "reason"), ODD, ids=lambda value: getattr(value, "__name__", ""))
def test_odd_loops_are_not_accused(loop, status, reason):
    verdict = ak.audit(unequal_images().watch(loop))
    assert verdict.findings == ()
    assert verdict.status == status
    assert reason in verdict.reason
    assert not verdict.ok


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_an_adversary_is_accused_at_no_n(steps):
    verdict = ak.audit(unequal_images().watch(right.adversary, steps))
    assert (verdict.status, verdict.findings) == ("cannot tell", ())


def test_micro_batches_of_one_say_both():
    verdict = ak.audit(images(8, 1).watch(faulty.missing_division))
    assert (verdict.status, verdict.findings) == ("equivalent up to scale", ())
    assert "summed on purpose and a missing division (missing-division) are the same thing" in verdict.reason


def test_events_alone_cannot_tell():
    verdict = ak.audit(images().watch(right.six_lines, objective=None))
    assert (verdict.status, verdict.findings) == ("cannot tell", ())
    assert "No objective was given" in verdict.reason


def test_an_objective_that_raises_cannot_tell():
    def loss(output, batch):
        raise KeyError("labels")

    objective = ak.Objective(loss=loss, count=lambda batch: len(batch[1]))
    verdict = ak.audit(images(objective=objective).watch(right.six_lines))
    assert (verdict.status, verdict.findings) == ("cannot tell", ())
    assert "KeyError" in verdict.reason


def test_no_step_and_no_backward():
    def nothing(model, loader, optimizer, steps, scheduler):
        pass

    def no_step(model, loader, optimizer, steps, scheduler):
        for pixels, labels in loader:
            F.cross_entropy(model(pixels), labels).backward()

    assert "nothing was trained" in ak.audit(images().watch(nothing)).reason
    verdict = ak.audit(images().watch(no_step))
    assert verdict.status == "cannot tell"
    assert "8 micro-batches had a backward, but no optimizer step was seen" in verdict.reason


def test_what_no_rule_explains_is_still_not_equivalent():
    def half_of_the_first(model, loader, optimizer, steps, scheduler):
        for i, (pixels, labels) in enumerate(loader):
            (F.cross_entropy(model(pixels), labels) / steps * (0.5 if i % steps == 0 else 1)).backward()
            if (i + 1) % steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    verdict = ak.audit(images(36).watch(half_of_the_first))
    assert (verdict.status, verdict.findings) == ("not equivalent", ())
    assert "One example weighs 0.5 to 1 in updates 1 to 3" in verdict.reason


def test_clipping_inside_the_window_is_seen():
    def clipping(model, loader, optimizer, steps, scheduler):
        for window in ak.windows(loader, steps, ak.classification()):
            optimizer.zero_grad()
            for pixels, labels in window:
                (F.cross_entropy(model(pixels), labels, reduction="sum") / window.count).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()

    verdict = ak.audit(images().watch(clipping))
    assert verdict.status == "not equivalent"
    assert [finding.pitfall for finding in verdict.findings] == ["clip-every-micro-batch"]
    assert re.fullmatch(r"test_audit.py:\d+", verdict.findings[0].location)


def test_gradients_changed_before_the_step_are_seen():
    def noisy(model, loader, optimizer, steps, scheduler):
        for window in ak.windows(loader, steps, ak.classification()):
            optimizer.zero_grad()
            for pixels, labels in window:
                (F.cross_entropy(model(pixels), labels, reduction="sum") / window.count).backward()
            for p in model.parameters():
                p.grad += 0.1 * torch.randn_like(p.grad)
            optimizer.step()

    verdict = ak.audit(images().watch(noisy))
    assert verdict.findings == ()
    assert verdict.status in ("not equivalent", "cannot tell")


def test_a_validation_that_clears_a_window_is_not_blamed_on_zero_grad_every_micro_batch():
    def validated(model, loader, optimizer, steps, scheduler):
        for i, (pixels, labels) in enumerate(loader):
            (F.cross_entropy(model(pixels), labels) / steps).backward()
            if i == 4:
                model.eval()
                with torch.no_grad():
                    model(pixels)
                model.train()
                optimizer.zero_grad()
            if (i + 1) % steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    verdict = ak.audit(images(36).watch(validated))
    assert [finding.pitfall for finding in verdict.findings] == ["validation-erases"]
    assert verdict.status == "not equivalent"
    assert "2 micro-batches had a backward and made no update" in verdict.findings[0].evidence


def test_a_gradient_from_before_the_watch_is_said_and_no_loop_accused():
    data = unequal_images()
    pixels, labels = next(iter(data.loader))
    F.cross_entropy(data.model(pixels), labels).backward()
    verdict = ak.audit(data.watch(faulty.plain))
    assert (verdict.status, verdict.findings) == ("not equivalent", ())
    assert "Update 1 began with a gradient that was there before the watch" in verdict.reason


def test_notes_change_no_status():
    straddling = ak.audit(images().watch(right.straddling_means))
    assert straddling.ok
    assert "Windows go on across the end of a pass (update 3)" in straddling.reason
    assert "1 micro-batch at the end of the run made no update." in straddling.reason
    dropped = ak.audit(images().watch(right.full_windows_only, tail="drop"))
    assert dropped.ok
    assert "4 micro-batches in short last windows were dropped, as declared." in dropped.reason
    stepped = ak.audit(images().watch(faulty.plain, tail="drop"))
    assert stepped.ok
    assert 'tail="drop" was declared, but short last windows had a step.' in stepped.reason
    assert "The last pass ended after 3 of 8 micro-batches." in ak.audit(images().watch(right.broken_off)).reason


def hand_made(*, weights=(1.0, 1.0), precision="float64", **update) -> Trace:
    members = tuple(
        MicroBatch(i, 0, 4, 4, weight / len(weights), 1 / len(weights), "kept", "train.py:9")
        for i, weight in enumerate(weights)
    )
    trace = Trace(len(weights), unit="examples", precision=precision, epoch_sizes=[len(weights)])
    values = {"gradient_ratio": 1.0, "cosine": 1.0, "relative_error": 0.0, "unexplained": 0.0, **update}
    trace.updates.append(Update(0, 0, members, 4 * len(weights), location="train.py:11", **values))
    return trace


def test_tolerance_follows_the_precision_and_the_measured_rounding():
    assert ak.audit(hand_made(weights=(1 + 5e-7, 1))).ok
    assert not ak.audit(hand_made(weights=(1 + 5e-6, 1))).ok
    assert ak.audit(hand_made(weights=(1 + 5e-4, 1), precision="float32")).ok
    assert not ak.audit(hand_made(weights=(1 + 5e-3, 1), precision="float32")).ok
    assert ak.audit(hand_made(weights=(1 + 5e-3, 1), precision="float32", floor=8e-3)).ok
    assert ak.audit(hand_made(weights=(1.015, 1), precision="bfloat16")).ok
    assert not ak.audit(hand_made(weights=(1.05, 1), precision="bfloat16", floor=0.5)).ok


def test_clip_factor_and_once_an_update_term_count():
    wrong = ak.audit(hand_made(clip_factor=1.5e-5, expected_clip_factor=0.3))
    assert wrong.status == "not equivalent"
    assert "asks for 0.3" in wrong.reason
    assert ak.audit(hand_made(clip_factor=0.3, expected_clip_factor=0.3)).ok
    often = ak.audit(hand_made(auxiliary=4.0, relative_error=0.5))
    assert often.status == "not equivalent"
    assert "counted 4 times instead of once" in often.reason


def test_an_update_that_was_not_measured_cannot_be_told():
    trace = hand_made()
    members = tuple(
        MicroBatch(2 + i, 0, 4, 4, None, 0.5, "kept", "train.py:9")
        for i in range(2)
    )  # fmt: skip
    trace.updates.append(Update(1, 0, members, 8, location="train.py:11", why="the gradient is not finite"))
    trace.epoch_sizes[0] = 4
    verdict = ak.audit(trace)
    assert verdict.status == "cannot tell"
    assert "Update 2 could not be measured: the gradient is not finite." in verdict.reason


# texts
def golden(name: str, text: str) -> None:
    """Hold a text against its file; ACCUMKIT_WRITE_GOLDEN=1 writes the files anew."""
    text = re.sub(r"(\w+_loops\.py):\d+", r"\1:LINE", text) + "\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("ACCUMKIT_WRITE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "loop", "data"),
    [
        ("right", faulty.plain, unequal_images),
        ("missing_division", faulty.missing_division, images),
        ("tail_divisor", faulty.tail_divisor, images),
        ("tail_leaked", faulty.tail_leaked, images),
        ("off_by_one", faulty.off_by_one, images),
        ("mean_of_means", faulty.mean_of_means, unequal_images),
        ("two_findings", faulty.first_batch_alone, images),
        ("summed", right.summed, unequal_images),
        ("warm_up", right.warm_up, unequal_images),
    ],
)
def test_the_table_reads_as_written(name, loop, data):
    text = repr(ak.audit(data().watch(loop)))
    assert all(len(line) <= 100 for line in text.splitlines())
    assert text.isascii()
    golden(name, text)


def test_html_comes_from_the_renderer_or_is_the_table(monkeypatch):
    verdict = ak.audit(hand_made())
    monkeypatch.setattr(verdict_module, "html_renderer", None)
    html = Verdict("cannot tell", False, ("a < b & c",), (), None)._repr_html_()
    assert html == "<pre>updates cannot tell\nbecause a &lt; b &amp; c</pre>"
    monkeypatch.setattr(verdict_module, "html_renderer", lambda given: f"<p>{given.status}</p>")
    assert verdict._repr_html_() == "<p>equivalent</p>"


def test_audit_of_something_else():
    with pytest.raises(ak.AccumkitError, match=r"of type Problem; it needs the trace of a watched loop"):
        ak.audit(Problem(None, None, None))


def test_a_finding_affects_something_known():
    with pytest.raises(ak.AccumkitError, match="affects='loss'"):
        Finding("missing-division", "", None, "", "loss")


def test_numbers_are_said_as_they_are_read():
    assert [number(x) for x in (4.000001, 0.25, 7 / 3, 65536, 1.5e-5, 0, 12, 0.9999999)] == [
        "4", "0.25", "2.33", "65,536", "1.5e-05", "0", "12", "1",
    ]  # fmt: skip
    assert span([1.75, 7 / 3]) == "1.75 to 2.33"
    assert span([1.0, 1.0000001]) == "1"
    assert several(1, "micro-batch") == "1 micro-batch"
    assert several(2, "micro-batch") == "2 micro-batches"
    assert named([0]) == "update 1"
    assert named([0, 1, 2, 6]) == "updates 1 to 3 and 7"
    assert named([0, 1]) == "updates 1 and 2"
    assert named(range(0, 20, 2)) == "10 updates, from update 1 on"
