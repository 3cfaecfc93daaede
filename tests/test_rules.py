"""Each rule fires on real loops that have its fault, at the line that has it, and on no other's."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch

import accumkit as ak
from tests import faulty_loops as faulty
from tests.problems import CLASS_WEIGHT, images, lines, unequal_images, weighted_images

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # torch's own, on that fault


def unequal_tail():
    """Equal micro-batches but for the last one, as a DataLoader makes them: windows of 12, 12 and 7 examples."""
    return images(31)


# (loop, its data, the one finding, numbers and words that its evidence must hold)
TABLE = [
    (faulty.missing_division, images, "missing-division", "weighs 2 to 3"),
    (faulty.divided_by_window_twice, images, "double-division", "weighs 0.333"),
    (faulty.divided_mean_by_count, images, "double-division", "weighs 0.25"),
    (faulty.divided_by_hand_again, images, "double-division", "multiplied by 0.333"),
    (
        faulty.tail_divisor,
        images,
        "tail-divisor",
        r"and 6\) have 2 micro-batches and are divided by 3: .* 0.667",
    ),
    (faulty.tail_divisor_of_sums, images, "tail-divisor", "weighs 0.667"),
    (faulty.tail_divisor_of_sums, unequal_tail, "tail-divisor", "have 7 examples and are divided by the 12 of a full"),
    (faulty.tail_cleared, images, "tail-dropped", "last 2 micro-batches of 2 passes .* 16 examples weigh 0"),
    (faulty.tail_never_run, images, "tail-dropped", "last 2 micro-batches of 2 passes never had a backward"),
    (faulty.tail_leaked, images, "tail-leaked", "update 3 adds up 5 micro-batches instead of 3"),
    (faulty.off_by_one, images, "off-by-one", "windows of 1, 3, 3, 1, 1, 3, 3 and 1 .* means 3, 3 and 2"),
    (faulty.one_too_many, images, "off-by-one", "a step after every 4 micro-batches"),
    (faulty.inverted, images, "off-by-one", "the condition is inverted"),
    (faulty.step_every, images, "step-every-micro-batch", "16 steps for 16 micro-batches"),
    (faulty.step_every_zero_once, images, "step-every-micro-batch", "16 steps for 16 micro-batches"),
    (faulty.zero_every, images, "zero-every-micro-batch", "10 of 16 micro-batches .* in update 1, 2 of 3 weigh 0"),
    (faulty.zero_every_by_hand, images, "zero-every-micro-batch", "10 of 16 micro-batches"),
    (faulty.zero_before_step, images, "zero-every-micro-batch", "in update 1, 3 of 3 weigh 0"),
    (faulty.stale, images, "stale-gradients", r"updates 2 to 6 still hold .* zero_grad\(\) was never called"),
    (faulty.stale_within_a_pass, images, "stale-gradients", "updates 2, 3, 5 and 6 still hold"),
    (faulty.mean_of_means, unequal_images, "mean-of-means", "1 to 6 examples: .* weighs 0.611 to 3.67 in update 1"),
    (faulty.mean_of_token_means, lines, "token-weighting", "47 to 90 tokens: .* weighs 0.733 to 1.4 in update"),
    (faulty.tokens_with_padding, lines, "token-weighting", "divided by 200 where its window has 187 tokens with a tar"),
    (faulty.tokens_with_padding_each, lines, "token-weighting", "by 64 tokens, of which 62 have a target"),
    (faulty.tokens_by_lines, lines, "token-weighting", "47 to 90 tokens"),
    (faulty.mean_of_class_means(CLASS_WEIGHT), weighted_images, "class-weighting", "3.33 to 6.83 class weights"),
    (
        faulty.classes_by_examples(CLASS_WEIGHT),
        weighted_images,
        "class-weighting",
        "by 12 where .* 18.2 class",
    ),
    (faulty.scheduler_every, images, "scheduler-every-micro-batch", "16 scheduler steps for 6 updates: 10 of them"),
]
NAMES = [re.sub(r"<locals>\.", "", loop.__qualname__) for loop, *_ in TABLE]
NO_LINE = ("zero_every_by_hand",)  # gradients set to None by hand: no call whose line could be told


def marked_line(loop) -> str:
    source, first = inspect.getsourcelines(loop)
    (offset,) = (i for i, line in enumerate(source) if "# HERE" in line)
    return f"faulty_loops.py:{first + offset}"


@pytest.mark.parametrize(("loop", "data", "pitfall", "evidence"), TABLE, ids=NAMES)
def test_fires_on_its_fault_and_no_other_does(loop, data, pitfall, evidence):
    verdict = ak.audit(data().watch(loop))
    assert [finding.pitfall for finding in verdict.findings] == [pitfall]
    (finding,) = verdict.findings
    assert re.search(evidence, finding.evidence), finding.evidence
    if loop.__name__ not in NO_LINE:
        assert finding.location == marked_line(loop)
    assert finding.fix
    assert finding.lesson
    assert finding.affects in ("gradient", "update")
    assert verdict.status == "not equivalent"
    assert not verdict.ok


def test_every_rule_has_a_loop():
    from accumkit.audit.rules import RULES

    tables = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*rules*.py"))
    assert [rule for rule in RULES if f'"{rule.__name__.replace("_", "-")}"' not in tables] == []


@pytest.mark.parametrize("steps", [2, 3, 4])
@pytest.mark.parametrize("micro_batches", [5, 7, 11])
def test_the_table_holds_for_other_sizes(steps, micro_batches):
    if micro_batches % steps == 0:
        micro_batches += 1  # the tail's faults need a tail
    for loop, data, pitfall, _ in TABLE:
        if data is images:
            verdict = ak.audit(images(4 * micro_batches).watch(loop, steps))
            assert {f.pitfall for f in verdict.findings} == {pitfall}, (loop.__name__, verdict)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("loop", "pitfall"),
    [
        (faulty.missing_division, "missing-division"),
        (faulty.divided_by_window_twice, "double-division"),
        (faulty.tail_divisor, "tail-divisor"),
        (faulty.tail_leaked, "tail-leaked"),
        (faulty.zero_every, "zero-every-micro-batch"),
        (faulty.stale, "stale-gradients"),
    ],
)
def test_fires_in_lower_precision(loop, pitfall, dtype):
    verdict = ak.audit(images(dtype=dtype).watch(loop))
    found = [finding.pitfall for finding in verdict.findings]
    assert [name for name in found if name != "low-precision-sum"] == [pitfall]
    assert dtype.itemsize == 2 or found == [pitfall]  # a sum held in two bytes is a fault of its own, and rightly named


@pytest.mark.parametrize(
    ("loop", "pitfall"),
    [
        (faulty.tail_cleared, "tail-dropped"),
        (faulty.tail_leaked, "tail-leaked"),
        (faulty.off_by_one, "off-by-one"),
        (faulty.step_every, "step-every-micro-batch"),
        (faulty.zero_every, "zero-every-micro-batch"),
        (faulty.stale, "stale-gradients"),
        (faulty.scheduler_every, "scheduler-every-micro-batch"),
    ],
)
def test_events_alone_are_enough_for_boundaries(loop, pitfall):
    verdict = ak.audit(images().watch(loop, objective=None))
    assert [finding.pitfall for finding in verdict.findings] == [pitfall]
    assert verdict.status == "not equivalent"


def test_faults_that_come_together_are_all_named():
    def named(loop, data, **how):
        return [finding.pitfall for finding in ak.audit(data.watch(loop, **how)).findings]

    # a mean over N, on micro-batches of unequal size and with a tail: 1/3 each of 4 and 3 examples weighs 0.58, 0.78
    data = unequal_images((4, 4, 4, 4, 3))
    trace = data.watch(faulty.tail_divisor)
    assert [round(m.weight, 2) for m in trace.updates[1].micro_batches] == [0.58, 0.78]
    assert [f.pitfall for f in ak.audit(trace).findings] == ["tail-divisor", "mean-of-means"]
    # the mean never divided, on the same data: 7/4 and 7/3 in the tail
    assert named(faulty.missing_division, unequal_images((4, 4, 4, 4, 3))) == ["missing-division", "mean-of-means"]
    # the first micro-batch alone, the last ones never: after mending the condition a tail would still leak
    assert named(faulty.first_batch_alone, images(32)) == ["off-by-one", "tail-leaked"]
    # where N divides the pass, mending it mends both
    assert named(faulty.first_batch_alone, images(36)) == ["off-by-one"]


def test_a_condition_from_a_manual_is_wrong_three_ways():
    """``i % 8 != 0`` accumulates, as a framework's pages had it: windows of 1, 8 and 8, and 3 left over."""
    verdict = ak.audit(images(80).watch(faulty.as_in_a_manual, 8))
    assert [f.pitfall for f in verdict.findings] == ["off-by-one", "tail-dropped", "missing-division"]
    off, dropped, scale = verdict.findings
    assert "windows of 1, 8 and 8" in off.evidence
    assert "the last 3 micro-batches of the pass" in dropped.evidence
    assert "weighs 8" in scale.evidence


@pytest.mark.parametrize("objective", [..., None])
def test_accelerate_divides_its_tail_by_n(objective):
    accelerate = pytest.importorskip("accelerate")

    def loop(model, loader, optimizer, steps, scheduler):
        accelerator = accelerate.Accelerator(gradient_accumulation_steps=steps, cpu=True)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for _ in range(2):
            for pixels, labels in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(torch.nn.functional.cross_entropy(model(pixels), labels))
                    optimizer.step()
                    optimizer.zero_grad()

    verdict = ak.audit(images(dtype=torch.float32).watch(loop, objective=objective))
    assert [f.pitfall for f in verdict.findings] == (["tail-divisor"] if objective is ... else [])


def test_a_declared_drop_is_no_finding_but_full_windows_are():
    assert ak.audit(images().watch(faulty.tail_cleared, tail="drop")).ok
    assert ak.audit(images().watch(faulty.tail_never_run, tail="drop")).ok

    def only_first_window(model, loader, optimizer, steps, scheduler):
        for _ in range(2):
            optimizer.zero_grad()
            for i, (pixels, labels) in enumerate(loader, 1):
                (torch.nn.functional.cross_entropy(model(pixels), labels) / steps).backward()
                if i == steps:
                    optimizer.step()
                    optimizer.zero_grad()

    verdict = ak.audit(images().watch(only_first_window, tail="drop"))
    assert [finding.pitfall for finding in verdict.findings] == ["tail-dropped"]


def test_a_pass_shorter_than_a_window_that_is_never_stepped():
    verdict = ak.audit(images(8).watch(faulty.tail_cleared, steps=4))
    assert [finding.pitfall for finding in verdict.findings] == ["tail-dropped"]
    assert "no update at all" in verdict.findings[0].evidence
