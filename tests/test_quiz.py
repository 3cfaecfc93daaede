"""The quiz: well-formed, true (each fact is run for real), and a panel that keeps answers and tells nothing early."""

from __future__ import annotations

import re
import statistics
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from problems import unequal_images
from torch.nn.utils import clip_grad_norm_, parameters_to_vector
from torch.optim import SGD, Adam

import accumkit as ak
from accumkit import panels, tasks
from accumkit.checks import recording
from accumkit.checks.quiz import DO_NOT_KNOW, QUESTIONS, UNSURE, changed, score, told
from accumkit.studies import norms
from accumkit.studies.nets import net

RIGHT = {question.slug: question.right.key for question in QUESTIONS}


@pytest.fixture(autouse=True)
def learners_folder(tmp_path, monkeypatch):
    """An own folder, as the course lays it, and nothing in memory."""
    (tmp_path / ".accumkit").mkdir()
    monkeypatch.chdir(tmp_path)
    recording.forget()
    yield tmp_path
    recording.forget()


# ---------------------------------------------------------------- the questions as data


def test_eight_questions_over_the_lessons():
    assert len(QUESTIONS) == 8
    assert {question.lesson for question in QUESTIONS} == {"01", "02", "03", "04", "05"}
    assert [question.lesson for question in QUESTIONS] == sorted(question.lesson for question in QUESTIONS)


def test_texts_are_said_once():
    texts = [question.text for question in QUESTIONS] + [c.why for q in QUESTIONS for c in q.choices]
    texts += [f"{question.slug} {choice.text}" for question in QUESTIONS for choice in question.choices]
    assert len(set(texts)) == len(texts)
    assert len({question.slug for question in QUESTIONS}) == 8


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.slug)
def test_one_choice_is_right_and_every_other_one_is_explained(question):
    assert 3 <= len(question.choices) <= 4
    assert len({choice.key for choice in question.choices} | {UNSURE}) == len(question.choices) + 1
    assert [choice.right for choice in question.choices].count(True) == 1
    for choice in question.choices:
        assert choice.text.endswith(".") and choice.text != DO_NOT_KNOW
        # A wrong one says first what one would see if it were true.
        assert choice.right or re.match(r"Then .*\. .+\.$", choice.why), choice.why
        assert not choice.right or not choice.why.startswith("Then")


def test_the_place_and_the_length_of_the_right_choice_give_nothing_away():
    places = [question.choices.index(question.right) for question in QUESTIONS]
    assert max(map(places.count, places)) <= 3 and len(set(places)) >= 3
    longest = [question for question in QUESTIONS if max(question.choices, key=lambda c: len(c.text)).right]
    assert len(longest) <= 2


def test_scores():
    assert score({}) == 0
    assert score(RIGHT) == 8
    assert score(RIGHT | {"warm-up": UNSURE, "batchnorm": "divided"}) == 6
    assert score({"a question of another version": "four", "warm-up": "early"}) == 1


def test_what_is_said_of_each_kind_of_answer():
    question = QUESTIONS[1]
    assert told(question, "four")[:2] == ("right", "")
    verdict, against, why = told(question, "averaged")
    assert verdict == "not right" and against.startswith("Then calling backward() twice")
    assert why.startswith("Right is: 4: the four mean losses are added up. ") and why.endswith("Lesson 02 shows it.")
    for nothing in (None, UNSURE, "a key that is gone"):
        assert told(question, nothing) == ("not known", "", why)


def test_the_difference_in_words():
    before = {"missing-division": "four", "warm-up": "late"}
    assert changed(before, before).endswith("Right now: 1 of 8. That is as many.")
    said = changed(before, {"warm-up": "early", "batchnorm": "turned", "clip-scaled": "tiny"})
    assert said == (
        "Right before: 1 of 8. Right now: 3 of 8. That is 2 more. Right now and not before: 6, 7 and 8. "
        "Right before and not now: 2."
    )
    assert "That is 7 fewer. Right before and not now: 1, 3, 4, 5, 6, 7 and 8." in changed(RIGHT, before)


# ---------------------------------------------------------------- the facts, each run for real


def same_gradient():
    for size in (1, 2, 4, 12):
        model, objective = tasks.mlp(dtype=torch.float64), ak.classification()
        data = tasks.loader(tasks.digits(12, dtype=torch.float64), size)
        with ak.watch(model, objective, accumulation_steps=12 // size) as trace:
            ak.train_epoch(model, data, SGD(model.parameters(), lr=0.1), objective, accumulation_steps=12 // size)
        [update] = trace.updates
        assert update.relative_error < 1e-12
    undivided = ak.pitfalls.simulate("missing-division", accumulation_steps=3, examples=12).trace.updates[0]
    assert [round(m.weight, 9) for m in undivided.micro_batches] == [3, 3, 3]


def missing_division():
    update = ak.pitfalls.simulate("missing-division", accumulation_steps=4).trace.updates[0]
    assert [round(m.weight, 9) for m in update.micro_batches] == [4, 4, 4, 4]
    model, (images, labels) = tasks.mlp(dtype=torch.float64), tasks.digits(8, dtype=torch.float64)[:]
    gradients = []
    for _ in range(2):
        F.cross_entropy(model(images), labels).backward()
        gradients.append(parameters_to_vector(p.grad for p in model.parameters()).clone())
    assert torch.allclose(gradients[1], 2 * gradients[0], rtol=1e-12)
    twice = ak.pitfalls.simulate("double-division", accumulation_steps=4).trace.updates[0]
    assert round(twice.gradient_ratio, 9) == 0.25
    erased = ak.pitfalls.simulate("zero-every-micro-batch", accumulation_steps=4).trace.updates[0]
    assert [m.fate for m in erased.micro_batches] == ["erased"] * 3 + ["kept"]
    assert [m.weight for m in erased.micro_batches][:3] == [0, 0, 0]


def adam_hides():
    def trained(optimizer_for, divisor, passes=10, max_norm=float("inf")):
        model = tasks.mlp(dtype=torch.float64)
        optimizer = optimizer_for(model.parameters())
        for _ in range(passes):
            for i, (images, labels) in enumerate(tasks.loader(tasks.digits(64, dtype=torch.float64), 4), 1):
                (F.cross_entropy(model(images), labels) / divisor).backward()
                if i % 4 == 0:
                    clip_grad_norm_(model.parameters(), max_norm)
                    optimizer.step()
                    optimizer.zero_grad()
        return parameters_to_vector(model.parameters()).detach()

    def apart(optimizer_for, **more):
        start, right = (trained(optimizer_for, 4, passes, **more) for passes in (0, 10))
        return float((trained(optimizer_for, 1, **more) - right).norm() / (right - start).norm())

    adam = partial(Adam, lr=0.01)
    assert apart(adam) < 1e-3 < 1e-2 < apart(adam, max_norm=1.0)
    assert apart(partial(Adam, lr=0.01, weight_decay=0.01)) > 0.1
    watched = ak.pitfalls.simulate("missing-division", accumulation_steps=4, optimizer="adam")
    assert [round(m.weight, 9) for m in watched.trace.updates[0].micro_batches] == [4, 4, 4, 4]
    assert watched.named == ("missing-division",)


def small_micro_batch():
    def loop(model, loader, optimizer, steps, scheduler):
        for images, labels in loader:
            (F.cross_entropy(model(images), labels) / 3).backward()
        optimizer.step()

    [update] = unequal_images((8, 8, 2)).watch(loop).updates
    shares = [m.share for m in update.micro_batches]
    assert shares == pytest.approx([1 / 3] * 3)
    weights = [m.weight for m in update.micro_batches]
    assert weights == pytest.approx([0.75, 0.75, 3.0]) and weights[2] == pytest.approx(4 * weights[0])
    assert update.cosine < 0.999  # it points elsewhere, so that no learning rate mends it


def tail_leaks():
    def loop(at_the_beginning):
        def run(model, loader, optimizer, steps, scheduler):
            for _ in range(2):
                for i, (images, labels) in enumerate(loader):
                    if at_the_beginning and i % steps == 0:
                        optimizer.zero_grad()
                    (F.cross_entropy(model(images), labels) / steps).backward()
                    if (i + 1) % steps == 0:
                        optimizer.step()
                        if not at_the_beginning:
                            optimizer.zero_grad()

        return run

    trace = unequal_images((2,) * 10).watch(loop(at_the_beginning=False), steps=4)
    assert [update.accumulated for update in trace.updates] == [4, 4, 6, 4]  # two updates a pass
    assert [m.fate for m in trace.updates[2].micro_batches] == ["leaked"] * 2 + ["kept"] * 4
    trace = unequal_images((2,) * 10).watch(loop(at_the_beginning=True), steps=4)
    assert [sum(m.fate == "kept" for m in update.micro_batches) for update in trace.updates] == [4, 4, 4, 4]
    assert sum(m.fate in ("lost", "erased") for m in trace.micro_batches) == 4  # two of each pass


def warm_up():
    def updates_until_over(planned, per_update):
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = SGD([weight], lr=0.1)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=planned)
        for update in range(1, 1000):
            optimizer.step()
            for _ in range(per_update):
                before = optimizer.param_groups[0]["lr"]
                scheduler.step()
                if update < 5:
                    assert optimizer.param_groups[0]["lr"] > before  # at every call, update or not
            if optimizer.param_groups[0]["lr"] == pytest.approx(0.1, rel=1e-9):
                return update

    assert updates_until_over(100, per_update=4) == 25
    assert updates_until_over(100, per_update=1) == 100
    assert updates_until_over(4 * 100, per_update=1) == 400
    simulation = ak.pitfalls.simulate("scheduler-every-micro-batch", examples=64)
    assert {round(m.weight, 9) for m in simulation.trace.micro_batches} == {1}
    assert simulation.verdict.status == "not equivalent"


def batchnorm():
    found = {row.norm: row for row in norms.compare(("batch", "group"), (2, 64), seeds=3).rows}
    assert min(found["group"].cosines[0]) > 1 - 1e-9
    assert statistics.mean(found["batch"].cosines[0]) < 0.5
    batch, gradients = tasks.digits(64, dtype=torch.float64)[:], []
    for momentum in (0.1, 1 - 0.9 ** (1 / 32)):
        model = net("batch", "mlp", 0)
        for module in model.modules():
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                module.momentum = momentum
        gradients.append(norms.gradient(model, batch, 2))
    assert torch.equal(*gradients)


def clip_scaled():
    weight = torch.nn.Parameter(torch.zeros(4, dtype=torch.float32))
    optimizer = SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    scaler.scale(weight.sum()).backward()  # a gradient of four ones: its length is 2
    assert float(clip_grad_norm_([weight], 1.0)) == 2 * 65536
    scaler.unscale_(optimizer)
    assert float(weight.grad.norm()) == pytest.approx(1 / 65536, rel=1e-4)
    scaler.step(optimizer)  # and nothing was refused
    scaler.update()
    assert float(weight.detach().norm()) == pytest.approx(1 / 65536, rel=1e-4)
    assert "clip-before-unscale" in ak.pitfalls.simulate("clip-before-unscale").named


FACTS = {
    "same-gradient": same_gradient,
    "missing-division": missing_division,
    "adam-hides": adam_hides,
    "small-micro-batch": small_micro_batch,
    "tail-leaks": tail_leaks,
    "warm-up": warm_up,
    "batchnorm": batchnorm,
    "clip-scaled": clip_scaled,
}


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.slug)
def test_what_a_question_says_is_true(question):
    FACTS[question.slug]()


# ---------------------------------------------------------------- the panel


def answer(panel, answers):
    for question, radios in zip(QUESTIONS, panel.choices, strict=True):
        radios.value = answers.get(question.slug)


def hear(panel):
    return panel.answered.sentence


def test_a_quiz_of_another_time_is_refused():
    with pytest.raises(ak.AccumkitError, match='give "before"'):
        panels.quiz("later")


def test_answers_are_kept_as_they_are_given_and_found_again():
    panel = panels.quiz("before", strict=True)
    assert hear(panel) == "0 of 8 answered." and recording.kept().progress.quiz == {}
    panel.choices[1].value, panel.choices[5].value = "quarter", UNSURE
    panel.choices[1].value = "four"
    record = recording.kept().progress.quiz["before"]
    assert record.answers == {"missing-division": "four", "warm-up": UNSURE}
    assert (record.score, record.asked, record.finished) == (1, 8, None)
    again = panels.quiz("before", strict=True)
    assert [radios.value for radios in again.choices] == [None, "four", None, None, None, UNSURE, None, None]
    assert hear(again) == "2 of 8 answered."


def test_a_quiz_is_handed_in_whole():
    panel = panels.quiz("before", strict=True)
    answer(panel, {slug: key for slug, key in RIGHT.items() if slug not in ("warm-up", "batchnorm")})
    panel.hand_in.click()
    assert hear(panel) == (
        "6 of 8 answered. Still open: questions 6 and 7. Where you do not know, choose “I do not know yet.”"
    )
    assert recording.kept().progress.quiz["before"].finished is None
    panel.choices[5].value = UNSURE
    assert "Still open: question 7." in hear(panel)
    panel.choices[6].value = UNSURE
    assert hear(panel) == "8 of 8 answered."
    panel.hand_in.click()
    assert hear(panel).startswith("Handed in: your answers are kept.")
    assert recording.kept().progress.quiz["before"].score == 6


def everything(panel):
    return "".join([panel.sentence.value, panel.status.value, panel.pictures.value, *panel.still().values()])


def test_before_the_lessons_nothing_is_told():
    panel = panels.quiz("before", strict=True)
    whys = [choice.why for question in QUESTIONS for choice in question.choices]
    for _ in range(2):
        said = everything(panel)
        assert not [why for why in whys if why in said] and "right before" not in said.lower()
        answer(panel, RIGHT)
        panel.hand_in.click()
    assert hear(panel).startswith("Handed in: your answers are kept.")


def test_what_was_handed_in_stays():
    first, second = (panels.quiz("before", strict=True) for _ in range(2))  # two tabs
    answer(first, RIGHT)
    first.hand_in.click()
    kept = recording.kept().progress.quiz["before"]
    answer(second, dict.fromkeys(RIGHT, UNSURE))
    second.hand_in.click()
    assert recording.kept().progress.quiz["before"] == kept
    assert panels.quiz("before")._asked.layout.display == "none"


def test_after_the_lessons_all_is_told_and_compared():
    before, after = panels.quiz("before", strict=True), panels.quiz("after", strict=True)
    answer(before, dict.fromkeys(RIGHT, UNSURE) | {"warm-up": "early"})
    before.hand_in.click()
    answer(after, RIGHT | {"missing-division": "last", "batchnorm": UNSURE})
    assert after.pictures.value == ""
    after.hand_in.click()
    assert hear(after) == (
        "Handed in. Right before: 1 of 8. Right now: 6 of 8. That is 5 more. "
        "Right now and not before: 1, 3, 4, 5 and 8."
    )
    shown = after.pictures.value
    assert shown.count("<li") == 8 and shown.count("<strong>Right.") == 6
    assert shown.count("<strong>Not right.") == shown.count("<strong>Not known.") == 1
    assert "Then three of the four micro-batches would pull nothing." in shown
    assert panels.quiz("after").pictures.value == shown, "it is all there again on another day"
    assert {when: one.score for when, one in recording.kept().progress.quiz.items()} == {"before": 1, "after": 6}


def test_after_without_before():
    panel = panels.quiz("after", strict=True)
    answer(panel, RIGHT)
    panel.hand_in.click()
    assert hear(panel).startswith("Handed in. Right: 8 of 8. There is nothing to compare it with")


def test_before_after_after_is_refused_calmly():
    opened, after = panels.quiz("before", strict=True), panels.quiz("after", strict=True)  # two tabs
    answer(after, RIGHT)
    after.hand_in.click()
    answer(opened, RIGHT)
    opened.hand_in.click()
    for panel in (opened, panels.quiz("before", strict=True)):
        assert hear(panel).startswith("The quiz after the lessons is handed in, and it said what is right.")
        assert panel._asked.layout.display == "none"
    assert "before" not in recording.kept().progress.quiz
    assert "There is nothing to compare it with" in hear(panels.quiz("after", strict=True))


def test_where_nothing_can_be_kept_the_panel_says_so(learners_folder):
    (learners_folder / ".accumkit").rmdir()
    panel = panels.quiz("before", strict=True)
    assert panel.answered.note == ""
    panel.choices[0].value = "same"
    assert panel.answered.note.startswith("Your answers are kept for this session only; ak.progress() says why")
    assert panels.quiz("before").choices[0].value == "same"


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_still_is_the_same_whatever_was_answered(when):
    panel = panels.quiz(when, strict=True)
    still = panel.still()
    answer(panel, RIGHT)
    panel.hand_in.click()
    assert panel.still() == panels.quiz(when).still() == still
    assert all(question.text.split("'")[0] in still["text/html"] for question in QUESTIONS)
    assert still["text/html"].count("What is right, and why") == (8 if when == "after" else 0)


def test_radios_have_names_and_core_widgets_only():
    panel = panels.quiz("after", strict=True)
    for number, (radios, question) in enumerate(zip(panel.choices, QUESTIONS, strict=True), 1):
        assert radios.description == f"Answer {number}" and radios.tooltip == question.text
        assert [label for label, _ in radios.options] == [c.text for c in question.choices] + [DO_NOT_KNOW]
        assert radios._model_module == "@jupyter-widgets/controls"
