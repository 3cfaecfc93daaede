"""The rules about data, evaluations, terms, schedules and graphs: each fires on its fault, at its line, and alone."""

from __future__ import annotations

import inspect
import random
import re

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import accumkit as ak
from accumkit.audit.offered import left_out
from accumkit.audit.rules import RULES
from accumkit.trace.record import Event, MicroBatch, Trace, Update
from tests import faulty_loops as faulty
from tests import right_loops as right
from tests.problems import Problem, images, lines, unequal_images

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")

simulate, CATALOG = ak.pitfalls.simulate, ak.pitfalls.CATALOG


def penalised(data=images, **how) -> Problem:
    """Digits, and a penalty that counts once an update."""
    plain = ak.classification()
    return data(objective=ak.Objective(loss=plain.loss, count=plain.count, per_update=faulty.penalty), **how)


def one_line_empty(which=1) -> Problem:
    """Lines of text; one micro-batch, by default the second, has no target."""
    data = lines(3)
    batches = [(tokens, labels.clone()) for tokens, labels in data.loader]
    batches[which][1][:] = -100
    return Problem(data.model, DataLoader(batches, batch_size=None), data.objective)


def twenty() -> Problem:
    """Twenty micro-batches of four."""
    return images(80)


# (loop, its data, the one finding, what its evidence must say, what the updates are)
TABLE = [
    (faulty.evaluation_clears, images, "validation-erases", "2 micro-batches had .* In update 2, 1 of 3 weigh 0", ""),
    (faulty.evaluation_clears_afterwards, images, "validation-erases", "In updates 2 and 5", ""),
    (faulty.penalty_in_each_loss, penalised, "repeated-auxiliary-loss", "counts 2 to 3 times: .* 3 of them in up", ""),
    (faulty.penalty_by_itself, penalised, "repeated-auxiliary-loss", "counts 2 to 3 times", ""),
    (faulty.left_out_and_counted, images, "skipped-micro-batch", "6 micro-batches were .* weighs 0.5 to 0.66", ""),
    (faulty.left_out_and_counted, unequal_images, "skipped-micro-batch", "one example weighs 0.5 to 0.909", ""),
    (faulty.left_out_of_means, images, "skipped-micro-batch", "6 micro-batches .* weighs 0.5 to 0.66", ""),
    (
        faulty.means_of_nothing,
        one_line_empty,
        "empty-micro-batch",
        "micro-batch 2 has 3 examples and not one .* NaN",
        "",
    ),
    (
        faulty.average_every,
        images,
        "ema-every-micro-batch",
        "16 times for 6 updates: 10 of them .* power of 3",
        "equal",
    ),
    (faulty.planned_in_micro_batches, twenty, "horizon-in-micro-batches", "for 40 steps, .* 14 steps, 35 % of", ""),
    (faulty.same_batch_again, images, "data-reused", "32 micro-batches had the inputs of .* in update 1, 2 of 3", ""),
    (faulty.first_batch_again, images, "data-reused", "in update 1, 2 of 3", ""),
    (faulty.first_window_again, images, "data-reused", "begun 5 times, .* its first 3 of 8 .* other 5 never train", ""),
    (faulty.losses_kept, images, "graph-kept", "14 graphs of 14 were still there when the next update", "equal"),
    (faulty.graphs_retained, images, "graph-kept", "16 of 16 backward calls had retain_graph=True", "equal"),
    (faulty.nested, twenty, "nested-accumulation", "windows of 9, 9, 2, 9, 9 and 2 .* weighs 0.66.* where both", ""),
]
IDS = [f"{loop.__name__}-{data.__name__}" for loop, data, *_ in TABLE]


def marked_line(loop) -> str:
    source, first = inspect.getsourcelines(loop)
    (offset,) = (i for i, line in enumerate(source) if "# HERE" in line)
    return f"faulty_loops.py:{first + offset}"


@pytest.mark.parametrize(("loop", "data", "pitfall", "evidence", "updates"), TABLE, ids=IDS)
def test_fires_on_its_fault_and_no_other_does(loop, data, pitfall, evidence, updates):
    verdict = ak.audit(data().watch(loop))
    assert [finding.pitfall for finding in verdict.findings] == [pitfall]
    (finding,) = verdict.findings
    assert re.search(evidence, finding.evidence), finding.evidence
    assert finding.location == marked_line(loop)
    assert finding.title == CATALOG[pitfall].title
    assert finding.lesson == CATALOG[pitfall].lesson
    assert finding.affects == CATALOG[pitfall].affects
    assert verdict.status == ("equivalent" if updates else "not equivalent"), verdict
    assert not verdict.ok
    assert all(len(line) <= 100 for line in repr(verdict).splitlines())


def test_every_rule_is_of_the_catalog_and_every_pitfall_has_a_rule():
    assert {rule.__name__.replace("_", "-") for rule in RULES} == set(CATALOG)


@pytest.mark.parametrize(
    ("loop", "data", "pitfall"),
    [(loop, data, pitfall) for loop, data, pitfall, *_ in TABLE if data is not unequal_images],
    ids=[name for name in IDS if "unequal" not in name],
)
def test_fires_in_float32(loop, data, pitfall):
    problem = data()
    problem.model.float()
    if data is not one_line_empty:
        problem.loader.dataset.tensors = tuple(
            t.float() if t.is_floating_point() else t for t in problem.loader.dataset.tensors
        )
    assert [finding.pitfall for finding in ak.audit(problem.watch(loop)).findings] == [pitfall]


@pytest.mark.parametrize(
    "loop",
    [
        faulty.evaluation_clears,
        faulty.evaluation_clears_afterwards,
        faulty.average_every,
        faulty.graphs_retained,
    ],
)
def test_events_alone_are_enough_for_some(loop):
    pitfall = next(row[2] for row in TABLE if row[0] is loop)
    assert [f.pitfall for f in ak.audit(images().watch(loop, objective=None)).findings] == [pitfall]


@pytest.mark.parametrize("steps", [2, 3, 5])
@pytest.mark.parametrize("micro_batches", [7, 10, 13])
def test_the_table_holds_for_other_sizes(steps, micro_batches):
    for loop, data, pitfall, *_ in TABLE:
        if data is not images or loop is faulty.first_window_again or micro_batches < 2 * steps:
            continue
        if pitfall == "validation-erases" and steps == 2:
            continue  # every fourth micro-batch ends a window
        verdict = ak.audit(images(4 * micro_batches).watch(loop, steps))
        assert [f.pitfall for f in verdict.findings] == [pitfall], (loop.__name__, verdict)


# right, or right for what they are meant to be: accused of nothing
RIGHT = [
    right.evaluated_inside,
    right.leaving_out,
    right.leaving_out_of_windows,
    right.every_fourth_to_evaluate,
    right.scheduled_in_micro_batches,
    right.first_of_many_passes,
    right.duplicates,
    right.two_backwards,
]


@pytest.mark.parametrize("loop", RIGHT, ids=lambda loop: loop.__name__)
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
@pytest.mark.parametrize("data", [images, unequal_images, twenty], ids=lambda data: data.__name__)
def test_right_loops_are_equivalent(loop, steps, data):
    verdict = ak.audit(data().watch(loop, steps))
    assert verdict.findings == ()
    assert verdict.status == "equivalent", verdict
    assert ak.audit(data().watch(loop, steps, objective=None)).findings == ()


@pytest.mark.parametrize("loop", [right.penalised, right.penalised_in_parts], ids=lambda loop: loop.__name__)
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_a_penalty_once_an_update_is_right(loop, steps):
    assert ak.audit(penalised(unequal_images).watch(loop, steps)).ok
    assert ak.audit(penalised(images, dtype=torch.float32).watch(loop, steps)).ok


@pytest.mark.parametrize(
    ("loop", "status"),
    [
        (right.drawn_anew, "equivalent"),
        (right.more_steps_than_data, "equivalent"),
        (right.sharpness_aware, "cannot tell"),
        (right.two_heads, "cannot tell"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("steps", [2, 3, 5])
def test_data_that_come_again_on_purpose(loop, status, steps):
    verdict = ak.audit(images(32).watch(loop, 1 if loop is right.sharpness_aware else steps))
    assert verdict.findings == ()
    assert verdict.status == status, verdict


def test_a_missing_division_is_not_a_repeated_term():
    def undivided(model, loader, optimizer, steps, scheduler):
        for i, (pixels, labels) in enumerate(loader, 1):
            (torch.nn.functional.cross_entropy(model(pixels), labels) + faulty.penalty(model)).backward()
            if i % steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    verdict = ak.audit(penalised(images, examples=36).watch(undivided))
    assert [f.pitfall for f in verdict.findings] == ["missing-division"]


def test_a_repeated_term_is_named_beside_a_second_division():
    def both(model, loader, optimizer, steps, scheduler):
        for i, (pixels, labels) in enumerate(loader, 1):
            loss = torch.nn.functional.cross_entropy(model(pixels), labels) / steps**2
            (loss + faulty.penalty(model)).backward()
            if i % steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    verdict = ak.audit(penalised(images, examples=36).watch(both))
    assert [f.pitfall for f in verdict.findings] == ["double-division", "repeated-auxiliary-loss"]


def test_what_is_left_out_of_means_of_unequal_size():
    verdict = ak.audit(unequal_images().watch(faulty.left_out_of_means))
    assert [f.pitfall for f in verdict.findings] == ["mean-of-means", "skipped-micro-batch"]
    assert verdict.findings[1].updates == tuple(range(6))  # also where two unequal ones are left


def test_means_of_unequal_size_in_two_loops():
    verdict = ak.audit(unequal_images().watch(faulty.nested))  # one window of 8, divided by 3 and by 3 calls
    assert [f.pitfall for f in verdict.findings] == ["nested-accumulation", "mean-of-means"]


def test_a_graph_here_and_there_is_no_finding():
    """The first loss of each pass is held on to: that does not grow with every micro-batch."""
    trace = images().watch(right.first_losses_kept)
    assert trace.graphs_kept == 2
    assert ak.audit(trace).ok


def test_a_repeated_term_is_told_once():
    verdict = ak.audit(penalised().watch(faulty.penalty_in_each_loss))
    assert "once-an-update term" in verdict.findings[0].evidence
    assert "once-an-update term" not in verdict.reason


def test_a_window_with_something_left_out_is_no_short_one():
    verdict = ak.audit(images(36).watch(right.leaving_out, tail="drop"))  # 9 micro-batches, N = 3
    assert verdict.ok
    assert "short last windows" not in verdict.reason


@pytest.mark.parametrize("steps", [1, 2])
def test_an_adversary_that_is_evaluated_between_its_turns(steps):
    """A discriminator is looked at after the generator's turn, whose gradients are then cleared, as they should be."""
    verdict = ak.audit(unequal_images().watch(right.evaluated_adversary, steps))
    assert (verdict.status, verdict.findings) == ("cannot tell", ())


def test_what_may_be_meant_is_said_and_not_accused():
    plan = ak.audit(images(48).watch(faulty.planned_in_micro_batches))  # 2 passes of 12, N = 3: or of 6 passes
    assert (plan.findings, plan.status) == ((), "equivalent")
    assert "planned for 24 steps and has made 8: right for 6 passes" in plan.reason
    assert "of which 2 were watched" in plan.reason
    assert "(horizon-in-micro-batches)" in plan.reason
    part = ak.audit(images().watch(right.first_of_many_passes, 4))
    assert part.ok
    assert "right for 4 passes over the data, of which 1 was watched" in part.reason

    once = ak.audit(images(20).watch(faulty.first_window_again))  # 5 micro-batches: is it the tail that is left out?
    assert [f.pitfall for f in once.findings] == ["tail-dropped"]
    assert "begun 3 times and gave the first 3 of its 5 micro-batches each time" in once.reason
    assert "(data-reused)" in once.reason
    early = ak.audit(images().watch(right.first_windows))  # two passes, where one would have three windows
    assert (early.findings, early.status) == ((), "equivalent")
    assert "begun 2 times and gave the first 3 of its 8 micro-batches each time" in early.reason
    single = ak.audit(images().watch(faulty.first_window_again, 1))
    assert (single.findings, single.status) == ((), "equivalent")
    assert "gave the first one of its 8 micro-batches" in single.reason

    whole = ak.audit(images(36).watch(right.whole_passes))  # 9 micro-batches, N = 3
    assert (whole.findings, whole.status) == ((), "cannot tell")
    assert "(nested-accumulation), and so would one loop with another N" in whole.reason


def brightness(pixels):
    """Labels that a forward's inputs alone tell."""
    return (7 * pixels.flatten(1).sum(1)).long() % 10


BY_BRIGHTNESS = ak.Objective(
    loss=lambda output, batch: torch.nn.functional.cross_entropy(output, brightness(batch[0]), reduction="sum"),
    count=lambda batch: len(batch[0]),
)


@pytest.mark.parametrize("counted", [True, False])
def test_without_a_loader_forward_calls_show_what_was_left_out(counted):
    def loop(model, loader, optimizer, steps, scheduler):
        count = 0
        for i, pixels in enumerate(loader.dataset.tensors[0].split(4), 1):
            loss = torch.nn.functional.cross_entropy(model(pixels), brightness(pixels), reduction="sum")
            if not faulty.broken(i):
                loss.backward()
            if counted or not faulty.broken(i):
                count += len(pixels)
            if i % steps == 0:
                for p in model.parameters():
                    p.grad /= count
                optimizer.step()
                optimizer.zero_grad()
                count = 0

    verdict = ak.audit(images(36).watch(loop, objective=BY_BRIGHTNESS))
    assert [f.pitfall for f in verdict.findings] == ["skipped-micro-batch"] * counted
    assert verdict.ok != counted


def test_a_constant_factor_by_hand_is_said():
    def halved(model, loader, optimizer, steps, scheduler):
        for window in ak.windows(loader, steps, ak.classification()):
            optimizer.zero_grad()
            for pixels, labels in window:
                (torch.nn.functional.cross_entropy(model(pixels), labels, reduction="sum") / window.count).backward()
            for p in model.parameters():
                p.grad *= 0.4
            optimizer.step()

    verdict = ak.audit(images().watch(halved))
    assert (verdict.findings, verdict.status) == ((), "equivalent up to scale")
    assert "multiplied by 0.4 before every step" in verdict.reason


def test_one_batch_without_a_loader_is_said():
    def loop(model, loader, optimizer, steps, scheduler):
        pixels = loader.dataset.tensors[0]
        for _ in range(2):
            for _ in range(steps):
                (torch.nn.functional.cross_entropy(model(pixels), brightness(pixels)) / steps).backward()
            optimizer.step()
            optimizer.zero_grad()

    verdict = ak.audit(images(8).watch(loop, objective=BY_BRIGHTNESS))
    assert (verdict.findings, verdict.status) == ((), "equivalent")
    assert "No loader was seen" in verdict.reason
    assert "(data-reused)" in verdict.reason


def test_an_empty_micro_batch_is_blamed_only_for_its_own_nan():
    def nan_at(number):
        def loop(model, loader, optimizer, steps, scheduler):
            for i, (tokens, labels) in enumerate(loader):
                scores, targets = model(tokens)[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
                loss = torch.nn.functional.cross_entropy(scores, targets, reduction="sum")
                (loss + scores.sum() * (float("nan") if i == number else 0)).backward()
                if (i + 1) % steps == 0 or i + 1 == len(loader):
                    optimizer.step()
                    optimizer.zero_grad()

        return loop

    named = [[f.pitfall for f in ak.audit(one_line_empty().watch(nan_at(i))).findings] for i in range(3)]
    assert named == [[], ["empty-micro-batch"], []]


@pytest.mark.parametrize("which", [0, 1, 2, 4])
def test_an_empty_micro_batch_anywhere_in_its_window(which):
    (finding,) = ak.audit(one_line_empty(which).watch(faulty.means_of_nothing)).findings
    assert finding.pitfall == "empty-micro-batch"
    assert f"micro-batch {which + 1} has 3 examples" in finding.evidence
    assert finding.updates[0] == which // 3


def test_a_skipped_step_with_an_empty_micro_batch():
    def loop(model, loader, optimizer, steps, scheduler):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
        for i, (tokens, labels) in enumerate(loader, 1):
            targets = labels[:, 1:]
            mask = targets != -100
            chosen = model(tokens)[:, :-1].log_softmax(2).gather(2, targets.clamp(min=0)[:, :, None])[:, :, 0]
            scaler.scale(-(chosen * mask).sum() / mask.sum()).backward()
            if i % steps == 0 or i == len(loader):
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()

    problem = one_line_empty()
    problem.model.float()
    verdict = ak.audit(problem.watch(loop))
    (finding,) = (f for f in verdict.findings if f.pitfall == "empty-micro-batch")
    assert finding.updates == (0,)
    assert "from then on" not in finding.evidence


def trace_with(kinds: str, fetched=None, steps=2) -> Trace:
    """Return a trace of events written as letters: b(atch), f(orward), w (a forward and its backward), s(tep)."""
    trace, members, number = Trace(steps), [], 0
    for kind in kinds:
        line = {"b": "t.py:1", "e": "t.py:9"}.get(kind, "t.py:2")
        if kind in "be":
            trace.events.append(Event("batch", number, line))
        elif kind == "f":
            trace.events.append(Event("forward", number, line))
        elif kind == "w":
            trace.events += [Event("forward", number, line), Event("backward", number, line)]
            members.append(MicroBatch(number, 0, 4, None, None, None, "kept", line))
            number += 1
        else:
            trace.events.append(Event("step", number - 1, line))
            trace.updates.append(Update(len(trace.updates), 0, tuple(members), None))
            members = []
    trace.lost += members
    trace.epoch_sizes = [number]
    trace.fetched_sizes = [kinds.count("b") if fetched is None else fetched]
    return trace


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("bwbwsbwbws", {}),
        ("bbwwsbbwws", {}),  # windows collected first
        ("bbwbwsbwbws" + "ws", {}),  # a batch fetched ahead, and its window at the end
        ("bwbsbwbws", {0: 1}),
        ("bwbsbbws", {0: 1, 1: 1}),
        ("bwbwsbbwsb", {1: 1}),  # one after the last step belongs to no window
        ("bbwsbbws", {0: 1, 1: 1}),
        ("bwfsbwbws", {}),  # a forward for nothing is no batch
        ("ebwbsbwbws", {0: 1}),  # another loader's batch, that no forward used
    ],
)
def test_what_was_left_out(kinds, expected):
    assert left_out(trace_with(kinds)) == expected


def test_what_was_left_out_is_not_guessed():
    assert left_out(trace_with("bwbsbwbws", fetched=7)) == {}  # batches that are not those of these passes


OWN = ("nested-accumulation", "validation-erases", "repeated-auxiliary-loss", "skipped-micro-batch",
       "ema-every-micro-batch", "horizon-in-micro-batches", "data-reused", "graph-kept")  # fmt: skip
PAIRS = [(a, b) for a in OWN for b in CATALOG if a != b and ak.pitfalls.compatible(a, b)]


@pytest.mark.parametrize("steps", [3, 4])
def test_faults_that_come_together_are_both_named(steps):
    assert len(PAIRS) >= 40
    for pair in random.Random(steps).sample(PAIRS, 12):
        if steps == 3 and "validation-erases" in pair:
            continue  # every third micro-batch ends a window
        simulation = simulate(pair, accumulation_steps=steps, examples=80, epochs=2)
        assert simulation.missed == (), pair
        assert simulation.mistaken == (), pair
        assert simulation.right_verdict.findings == (), pair


def test_a_short_windows_gradient_multiplied_by_its_part_of_a_full_one_is_no_clip():
    def shrinks(model, loader, optimizer, steps, scheduler):
        for window in ak.windows(loader, steps, ak.classification()):
            optimizer.zero_grad()
            for x, y in window:
                (F.cross_entropy(model(x), y, reduction="sum") / window.count).backward()
            for p in model.parameters():
                p.grad *= len(window) / steps
            optimizer.step()

    trace = images().watch(shrinks)
    short = [u for u in trace.updates if u.accumulated < trace.accumulation_steps]
    assert short and all(u.clip_factor is None for u in trace.updates)
    for update in trace.updates:
        part = update.accumulated / trace.accumulation_steps
        assert [m.weight for m in update.micro_batches] == pytest.approx([part] * update.accumulated)
        assert update.gradient_ratio == pytest.approx(part)
    assert ak.audit(trace).status == "not equivalent"
