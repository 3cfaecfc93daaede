"""The exercises of lesson 03: other right answers pass, odd ones get a clear text, and the feedback fits."""

from __future__ import annotations

import base64
import math
import re

import numpy as np
import pytest
import torch

from accumkit.checks import boundary_mend, boundary_mystery, schedule_plan, trace_reading, validation_between
from accumkit.checks.attempts import attempted
from accumkit.checks.mystery import told
from accumkit.checks.problem import but


def said(exercise, source: str) -> str:
    """Return what a check says of an answer in source, on one line."""
    return " ".join(repr(attempted(exercise.PROBLEM, source)).split())


def writing(html: str) -> list[str]:
    """Return what is written in each picture of a page, and around them."""
    pictures = [base64.b64decode(source).decode() for source in re.findall(r"base64,([^\"]*)", html)]
    assert pictures
    texts = [" ".join(re.findall(r">([^<>]*)</text>", picture)) for picture in pictures]
    return [" ".join(re.findall(r">([^<>]+)<", figure)) + " " + text
            for figure, text in zip(html.split("<figure")[1:], texts, strict=True)]  # fmt: skip


def given(exercise, **values):
    """Return an answer with the right values and these."""
    namespace: dict = {}
    exec(exercise.PROBLEM.solution_source, namespace)
    return namespace["answer"] | values


def of(exercise, **values) -> str:
    return " ".join(repr(exercise.check(given(exercise, **values))).split())


# 03a, a loop to mend -------------------------------------------------------------------------------------------------

COUNTED_FROM_0 = but(
    but(boundary_mend.MENDED, "enumerate(loader, 1)", "enumerate(loader)"),
    "i % accumulation_steps == 0 or i == len(loader)",
    "(i + 1) % accumulation_steps == 0 or i + 1 == len(loader)",
)
MENDED_OTHERWISE = {
    "counted from 0": COUNTED_FROM_0,
    "the last one by its remainder": COUNTED_FROM_0.replace(
        "(i + 1) % accumulation_steps == 0", "i % accumulation_steps == accumulation_steps - 1"),
    "what is left comes after the loop": boundary_mend.AFTER,
    "cleared at the start of a window": boundary_mend.MENDED.replace("            optimizer.zero_grad()\n", "").replace(
        "        F.cross", "        if count == 0:\n            optimizer.zero_grad()\n        F.cross"),
    "a list of windows": """\
def train(model, loader, optimizer, scheduler, accumulation_steps):
    batches = list(loader)
    for begin in range(0, len(batches), accumulation_steps):
        window = batches[begin : begin + accumulation_steps]
        count = sum(len(labels) for _, labels in window)
        optimizer.zero_grad(set_to_none=False)
        for images, labels in window:
            (F.cross_entropy(model(images), labels, reduction="sum") / count).backward()
        optimizer.step()
        scheduler.step()
""",
    "a step and its schedule in a function": """\
def train(model, loader, optimizer, scheduler, accumulation_steps):
    def update(count):
        for p in model.parameters():
            p.grad.div_(count)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

    count = waiting = 0
    for images, labels in loader:
        F.cross_entropy(model(images), labels, reduction="sum").backward()
        count, waiting = count + len(labels), waiting + 1
        if waiting == accumulation_steps:
            update(count)
            count = waiting = 0
    if waiting:
        update(count)
""",
}  # fmt: skip


@pytest.mark.parametrize("name", MENDED_OTHERWISE)
def test_another_mended_loop_is_right(name):
    assert said(boundary_mend, MENDED_OTHERWISE[name]).startswith("Right: a window ends when it is full")


def test_the_loop_as_given_is_not_attempted_and_each_of_its_faults_is_named_when_one_is_left():
    assert said(boundary_mend, boundary_mend.GIVEN).startswith("Not attempted: `train` is still as it is given.")
    renamed = boundary_mend.GIVEN.replace("count", "examples")
    text = said(boundary_mend, renamed)
    assert "there are 3 things to mend" in text
    for fault in ("off-by-one", "tail-leaked", "scheduler-every-micro-batch"):
        assert f"({fault})" in text


ODD_LOOPS = {
    "counts scheduler steps by hand": (
        boundary_mend.MENDED.replace("scheduler.step()", "scheduler.step(); scheduler.step()"),
        ["(scheduler-miscounted)", "12 scheduler steps for 6 updates", "learner.py:"],
    ),
    "one step too many in the last window": (
        boundary_mend.MENDED + "    scheduler.step()\n",
        ["(scheduler-miscounted)", "8 scheduler steps for 6 updates"],
    ),
    "raises": (boundary_mend.MENDED.replace("p.grad /= count", "p.grad /= counted"), ["NameError", "learner.py:"]),
    "never ends": (
        boundary_mend.MENDED.replace("    count = 0  #", "    while True:\n        pass\n    count = 0  #"),
        ["was still running after 2 seconds"],
    ),
    "other arguments": (
        "def train(model, loader, optimizer, accumulation_steps):\n    optimizer.step()\n",
        ["is called as train(model, loader, optimizer, scheduler, accumulation_steps): give it these five arguments"],
    ),
    "no function": ("train = 5\n", ["the answer is a function train(model, loader, optimizer, scheduler,", "given: 5"]),
    "its own schedule": (
        boundary_mend.MENDED.replace(
            "    count = 0  #", "    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)\n    count = 0  #"),
        ["(not-the-given-scheduler)", "0 of 6 scheduler steps are of the scheduler that was given"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD_LOOPS)
def test_odd_loops_get_a_clear_text(name, monkeypatch):
    monkeypatch.setattr(boundary_mend, "SECONDS", 2)
    source, parts = ODD_LOOPS[name]
    text = said(boundary_mend, source)
    assert text.startswith("Not yet: ")
    assert [part for part in parts if part not in text] == [], text


_MENDED = boundary_mend.MENDED
_UPDATE = """\
    for p in model.parameters():
        p.grad /= count
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
"""
_TAIL = boundary_mend._NO_TAIL + _UPDATE
TYPICAL = {
    "the step stands after the loop": (
        _MENDED[: _MENDED.index("        if i")] + _UPDATE,
        ["(one-update-a-pass)", "inside the loop", "learner.py:"],
    ),
    "no brackets": (
        COUNTED_FROM_0.replace("(i + 1) % acc", "i + 1 % acc"),
        ["(one-update-a-pass)", "put brackets: `%` comes before `+`"],
    ),
    "one too early": (
        _MENDED.replace("i % acc", "(i + 1) % acc"),
        ["(first-window-short)", "windows of 3, 4 and 4 micro-batches", "one micro-batch too early"],
    ),
    "one too late": (
        COUNTED_FROM_0.replace("(i + 1) % acc", "i > 0 and i % acc"),
        ["(first-window-long)", "windows of 5, 4 and 2 micro-batches", "one micro-batch too late"],
    ),
    "a second case that is never so": (
        COUNTED_FROM_0.replace("i + 1 == len", "i == len"),
        ["(tail-leaked)", "you do ask for that", "counted from 0, `i` ends at `len(loader) - 1`"],
    ),
    "a second case that comes too early": (
        _MENDED.replace("i == len", "i + 1 == len"),
        ["(tail-leaked)", "it is not so at the last micro-batch", "counted from 1, at `len(loader)`"],
    ),
    "a tail without a guard": (
        _TAIL,
        ["with a short last window all is right, but not where the data end with a full one (8 micro-batches). There "
         "is one thing to mend.", "(empty-update)", "The function raised TypeError", "nothing is left after it"],
    ),
    "a tail without a guard, on zeros": (
        _TAIL.replace("zero_grad()", "zero_grad(set_to_none=False)"),
        ["(empty-update)", "6 optimizer steps for 4 windows", "divided by a count of 0"],
    ),
    "a number in the place of N": (
        _MENDED.replace("i % accumulation_steps", "i % 4"),
        ["with accumulation_steps=4 all is right, but not with 3. There is one thing to mend.",
         "(fixed-accumulation-steps)", "windows of 4 and 4 micro-batches", "with 3 they are 3, 3 and 2"],
    ),
    "a schedule at every micro-batch": (
        _MENDED.replace("            scheduler.step()\n", "") + "        scheduler.step()\n",
        ["so the learning rate falls faster than planned", "(scheduler-every-micro-batch)"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TYPICAL)
def test_typical_faults_of_a_boundary_are_told_as_they_are(name):
    source, parts = TYPICAL[name]
    text = said(boundary_mend, source)
    assert text.startswith("Not yet: ")
    assert [part for part in parts if part not in text] == [], text
    for untrue in ("declare", "one inside the other", "nested", "needs a second case", "times as many", ", The "):
        assert untrue not in text, text


def test_a_boundary_without_a_second_case_is_told_that_it_needs_one():
    assert "the condition needs a second case" in said(boundary_mend, boundary_mend._NO_TAIL)


def test_feedback_on_the_boundary_does_not_write_the_line():
    for wrong in boundary_mend.PROBLEM.wrong_answers:
        text = said(boundary_mend, wrong.source)
        assert not [line for line in ("i == len(loader)", "enumerate(loader, 1)", "ak.") if line in text], text


def test_torch_s_own_warning_on_a_scheduler_that_comes_first_is_not_an_error(recwarn):
    wrong = next(w for w in boundary_mend.PROBLEM.wrong_answers if w.fault == "scheduler-before-step")
    assert "(scheduler-before-step)" in said(boundary_mend, wrong.source)
    assert not [w for w in recwarn if "lr_scheduler" in str(w.message)]


def test_a_lambda_or_one_cycle_schedule_of_that_length_agrees():
    """The exercise says that the schedule has one step for each update: other schedulers count so too."""
    wrong, right = 22, 6
    for made, fits in ((right, True), (wrong, False)):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=right)
        try:
            for _ in range(made):
                optimizer.step()
                scheduler.step()
        except ValueError:
            assert not fits
        else:
            assert fits


# 03b, a schedule to plan ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {"updates_a_pass": math.ceil(21 / 4), "updates": 3 * 6.0},
        {"warm_up": np.int64(6), "fall": torch.tensor(12)},
        {"counted_in_micro_batches": "Still Rising", "rounded_down": "rises_again"},
        {"more": 1},
    ],
)
def test_right_values_in_another_form(values):
    assert of(schedule_plan, **values).startswith("Right: six updates a pass")


def test_the_counts_and_the_ends_are_measured():
    assert schedule_plan._trained() == (6, 18)
    right = schedule_plan.rates(6, 12)
    assert len(right) == 19 and right[5] < right[6] == 0.1 == max(right) and right[-1] == 0 < right[-2]
    assert max(schedule_plan.rates(21, 42)) < 0.1
    turned = schedule_plan.rates(5, 10)
    assert turned[15] == 0 < turned[16] < turned[17]


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"updates_a_pass": 5, "updates": 15, "warm_up": 5, "fall": 10},
         ["2 of 6 are right", "(tail-dropped)", "(tail-dropped-each-pass)", "(warm-up-rounded-down)",
          "(goes-with-updates) That is your 15 updates less your warm_up of 5, as it should be.",
          "first at its full 0.1 at update 6; when the run is over it is 0.0206"]),
        ({"updates": 63 / 4}, ["15.75 (not-rounded)"]),
        ({"updates": 6}, ["6 (one-pass-only)"]),
        ({"warm_up": 21 / 4, "fall": 42 / 4}, ["5.25 (not-rounded)", "10.5 (not-rounded)"]),
        ({"warm_up": 82 / 16}, ["5.125 (not-rounded)"]),
        ({"warm_up": 5.5}, ["5.5 is given, and a whole number is asked for"]),
        ({"warm_up": 5}, ["5 (one-short)", "full 0.1 at update 6;", "full at the first update of the second pass, "]),
        ({"warm_up": 7, "fall": 11}, ["11 (goes-with-warm-up) With your warm_up of 7 that makes up the run",
                                      "at its full 0.1 at update 8; when the run is over it is 0."]),
        ({"updates": 16, "fall": 10}, ["10 (goes-with-updates) That is your 16 updates less your warm_up of 6",
                                       "at its full 0.1 at update 7; when the run is over it is 0.0095"]),
        ({"updates": 63, "warm_up": 21, "fall": 42}, ["42 (goes-with-updates)", "never gets to its full 0.1"]),
        ({"warm_up": 7, "fall": 10}, ["10 (zero-too-early)", "at its full 0.1 at update 8;"]),
        ({"fall": 11}, ["11 (zero-too-early)", "at its full 0.1 at update 7; when the run is over it is 0.002."]),
        ({"fall": 10}, ["10 (fall-rounded-down) Those are two passes of 5 updates.", "full 0.1 at update 7"]),
        ({"warm_up": 21, "fall": -3}, ["`fall`: -3 How many steps"]),
        ({"warm_up": 0, "fall": -1}, ["`warm_up`: 0 How many steps", "`fall`: -1 How many"]),
        ({"fall": 10**9}, ["`fall`: 1000000000 How many"]),
        ({"warm_up": 21}, ["(horizon-in-micro-batches)", "never gets to its full 0.1"]),
        ({"fall": ...}, ["`fall`: still open Put a whole number in its place."]),
        ({"warm_up": "6"}, ["'6' is given, and a whole number is asked for, without quotes"]),
        ({"rounded_down": "rising"}, ["'rising' is not among the answers"]),
        ({"rounded_down": "still rising"}, ["Where does a cosine go after its lowest point?"]),
        ({"counted_in_micro_batches": True}, ["True is given, and one of 'reaches zero'"]),
        ({"warm_up": math.nan}, ["nan is given"]),
    ],
)  # fmt: skip
def test_what_is_said_of_a_plan(values, parts):
    text = of(schedule_plan, **values)
    assert text.startswith("Not yet: ")
    assert [part for part in parts if part not in text] == [], text
    tried = any("full 0.1" in part for part in parts)
    assert ("What your plan does" in text) == tried, "only where it can be tried out"


@pytest.mark.parametrize(("warm_up", "fall"), [(7, 11), (5, 13), (3, 15)])
def test_a_length_that_goes_with_a_wrong_one_is_not_called_too_short(warm_up, fall):
    text = of(schedule_plan, warm_up=warm_up, fall=fall)
    assert "(goes-with-warm-up)" in text and "zero-too-early" not in text
    assert "when the run is over it is 0." in text, "and it is so"


def test_the_last_hint_on_the_schedule_leaves_something_to_find():
    """A frame, not the lines themselves."""
    hint = schedule_plan.PROBLEM.hints[-1]
    assert "..." in hint and "ceil" not in hint and "updates - warm_up" not in hint


def test_a_right_plan_with_another_fault_is_not_tried_out():
    assert "What your plan does" not in of(schedule_plan, updates=16)


def test_wrong_counts_do_not_give_the_right_ones_away():
    text = of(schedule_plan, updates_a_pass=9, updates=99, warm_up=99, fall=99)
    text = text.replace("2 of 6 are right", "")
    assert not [number for number in (" 6 ", " 18", " 12") if number in text], text


# 03c, loops that are not shown ---------------------------------------------------------------------------------------


def test_the_loops_differ_from_each_other_and_from_the_right_one():
    shown = boundary_mystery.LOOPS
    texts = {repr(boundary_mystery.Pictures([loop], True, names=False)).partition(".")[2] for loop in shown}
    assert len(texts) == len(shown) == len({loop.slug for loop in shown})
    assert {loop.slug for loop in shown} < set(boundary_mystery.CHOICES)
    assert len({loop.setting for loop in shown}) == 1, "the same data for all"


def test_every_fault_that_may_be_guessed_can_show_on_these_data():
    for choice in boundary_mystery.CHOICES:
        assert boundary_mystery.LOOPS[0].as_if(choice)[1] == ""


def test_pictures_name_no_fault_and_say_the_same_in_words():
    pictures = boundary_mystery.loops()
    html = pictures._repr_html_()
    assert html.count("<figure") == 2 * len(pictures.loops) == html.count("alt=")
    for choice in set(boundary_mystery.CHOICES) - {"right"}:
        assert choice not in repr(pictures) and choice not in html


def test_no_other_answer_fits_what_is_shown():
    for loop in boundary_mystery.LOOPS:
        own = told(loop.trace, timeline=True, names=False)
        others = [choice for choice in boundary_mystery.CHOICES if choice != loop.slug]
        assert all(told(loop.as_if(choice)[0], timeline=True, names=False) != own for choice in others)


NAMING = ("lost", "leak", "erase", "left over", "stale", "dropped", "epoch before")


def test_the_question_does_not_name_what_is_to_be_found():
    """Neither its words, nor the legends in its pictures."""
    pictures = boundary_mystery.loops()
    shown = " ".join([repr(pictures), *writing(pictures._repr_html_())])
    assert len(writing(pictures._repr_html_())) == 10 and "zero_grad" in shown
    assert [word for word in NAMING if word in shown.lower()] == []
    named = boundary_mystery.loops(names=True)
    assert [word for word in NAMING if word not in " ".join(repr(named).split())] == ["stale", "dropped"], (
        "the same runs, in other words"
    )
    assert any("leaked from the epoch before" in text for text in writing(named._repr_html_()))


def test_a_loop_that_never_clears_is_told_so():
    assert "zero_grad never runs." in repr(boundary_mystery.Pictures(boundary_mystery.LOOPS[:1], True, names=False))


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"A": "tail-dropped"}, "(not-tail-dropped)"),
        ({"B": "right"}, "The right loop, run on the same data, gives this"),
        ({"C": ...}, "`C`: still open"),
        ({"C": "batchnorm"}, "'batchnorm' is not among the answers; they are 'off-by-one'"),
        ({"D": 4}, "4 is given, and one of 'off-by-one'"),
        ({"E": "tail_droped"}, "'tail_droped' is not among the answers; the nearest is 'tail-dropped'"),
    ],
)
def test_what_is_said_of_a_guess(values, part):
    assert part in of(boundary_mystery, **values)


def test_a_guess_may_be_spelt_freely():
    assert of(boundary_mystery, A="Stale gradients", C=" OFF-BY-ONE", E="tail_leaked").startswith("Right")


# 03d, a trace to read ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {"lost": (14, 13), "weight": torch.tensor(0.5)},
        {"lost": {13, 14}, "examples": 4 + 2 + 4},
        {"lost": np.array([13, 14]), "mixed": 3.0},
        {"condition": "i%4==0", "first": "Shorter", "weight": 1 / 2},
    ],
)
def test_a_trace_read_rightly(values):
    assert of(trace_reading, **values).startswith("Right: you read it as it was.")


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"lost": [6, 7, 13, 14]}, "(two-of-them-came-late)"),
        ({"lost": []}, "(overlooked)"),
        ({"lost": 13}, "13 is given, and a list of numbers is asked for"),
        ({"lost": [13]}, "The table says how many they are"),
        ({"lost": [13, ...]}, "a part of it is still open"),
        ({"examples": 3}, "(micro-batches)"),
        ({"weight": 1}, "(another-bar)"),
        ({"weight": 2}, "Find micro-batch 7 under `weights`"),
        ({"third": "turned"}, "(ratio-overlooked)"),
        ({"first": "as it should be"}, "`ratio` and `cosine` are both 1 for a right gradient"),
        ({"condition": "i % 4 != 0"}, "Say it aloud for i = 0"),
        ({"condition": "i % 4"}, "they are 'i % 4 == 0', 'i % 4 != 0', '(i + 1) % 4 == 0'"),
    ],
)
def test_a_trace_read_wrongly(values, part):
    text = of(trace_reading, **values)
    assert text.startswith("Not yet: 6 of 7 are right.")
    assert part in text, text


def test_what_is_shown_does_not_answer_what_is_asked():
    shown = " ".join([repr(trace_reading.seen()), *writing(trace_reading.seen()._repr_html_())])
    assert [word for word in (*NAMING, "13", "14", "micro-batches 6 and 7") if word in shown.lower()] == [], shown
    assert "in no update: 2 micro-batches, 6 examples" in shown


def test_what_is_asked_is_measured_and_shown():
    seen = trace_reading.seen()
    assert repr(seen).startswith("update  micro-batches") and "<img alt=" in seen._repr_html_()
    assert [update.accumulated for update in seen.trace.updates] == [1, 4, 3, 4]
    assert given(trace_reading)["weight"] == pytest.approx(seen.trace.micro_batches[6].weight)


# 03e, a validation that is due inside a window -----------------------------------------------------------------------

OWN_LOOP = """\
def train(model, loader, validate, optimizer, accumulation_steps, validate_every):
    batches, seen = list(loader), 0
    for begin in range(0, len(batches), accumulation_steps):
        model.train()
        window = batches[begin : begin + accumulation_steps]
        for images, labels in window:
            loss = F.cross_entropy(model(images), labels, reduction="sum")
            (loss / sum(len(labels) for _, labels in window)).backward()
        optimizer.step()
        optimizer.zero_grad()
        before, seen = seen, seen + len(window)
        if seen // validate_every > before // validate_every:
            validate(model)
"""
NEXT_WINDOW = """\
def train(model, loader, validate, optimizer, accumulation_steps, validate_every):
    due = False
    for i, window in enumerate(ak.windows(loader, accumulation_steps, objective)):
        if due:
            validate(model)
            due = False
        model.train()
        optimizer.zero_grad()
        for batch in window:
            (objective.total(model, batch) / window.count).backward()
        optimizer.step()
        ends = range(i * accumulation_steps + 1, i * accumulation_steps + len(window) + 1)
        due = any(n % validate_every == 0 for n in ends)
    if due:
        validate(model)
"""
NO_GRADIENTS = """\
def train(model, loader, validate, optimizer, accumulation_steps, validate_every):
    kept = validation = 0
    parameters = list(model.parameters())
    for i, (images, labels) in enumerate(loader, 1):
        F.cross_entropy(model(images), labels, reduction="sum").backward()
        kept += len(labels)
        validation += i % validate_every == 0
        if i % accumulation_steps and i < len(loader):
            continue
        torch._foreach_div_([p.grad for p in parameters], kept)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if validation:
            mode = model.training
            validate(model=model)
            model.train(mode)
        kept = validation = 0
"""


@pytest.mark.parametrize(
    "source",
    [validation_between.FLAG, OWN_LOOP, NEXT_WINDOW, NO_GRADIENTS],
    ids=["flag", "list", "next window", "mode"],
)
def test_another_loop_that_validates_between_windows_is_right(source):
    assert said(validation_between, source).startswith("Right: due in the middle of a window")


FLAG = validation_between.FLAG
_DUE = FLAG[FLAG.index("            if due:") :]
_INSIDE = FLAG.replace(_DUE, "").replace(
    "        count += len(labels)\n",
    """\
        count += len(labels)
        if i % validate_every == 0:
            {}
""",
)
_BY_NUMBER = """\
def train(model, loader, validate, optimizer, accumulation_steps, validate_every):
    due = validate_every
    for k, window in enumerate(ak.windows(loader, accumulation_steps, objective){}):
        for batch in window:
            (objective.total(model, batch) / window.count).backward()
        optimizer.step()
        optimizer.zero_grad()
        if k * accumulation_steps >= due:
            due += validate_every
            validate(model)
            model.train()
"""
IN_THE_STEP = but(
    FLAG, "            optimizer.step()\n", "            if due: validate(model)\n            optimizer.step()\n"
)
VALIDATED = {
    "before the step": (IN_THE_STEP, ["(validation-erases)"]),
    "when six have gone by since the last": (
        but(but(FLAG, "due = due or i % validate_every == 0", "since += 1; due = since >= validate_every"),
            "due = False", "since = 0").replace("count, due = 0, False", "count, since = 0, 0"),
        ["(counted-from-the-last)", "after micro-batches 8, 16 and 24", "due after micro-batches 6, 12, 18 and 24",
         "window ends 8, 12, 20 and 24", "does not put off the next one"],
    ),
    "twice": (but(FLAG, "                validate(model)\n", "                validate(model); validate(model)\n"),
              ["(validated-elsewhere)"]),
    "at the end of the pass": (
        FLAG[: FLAG.index("            if due:")] + "    validate(model)\n    model.train()\n",
        ["(validated-once-a-pass)", "after micro-batch 26. It was due", "when the pass is over"],
    ),
    "after the loop as well": (
        FLAG + "    validate(model)\n    model.train()\n",
        ["(one-more-at-the-end)", "after micro-batches 8, 12, 20, 24 and 26.", "a validation after the loop"],
    ),
    "in the middle, with gradients kept": (
        _INSIDE.format("kept = [p.grad.clone() for p in model.parameters()]; validate(model); model.train()\n"
                       "            for p, old in zip(model.parameters(), kept): p.grad = old"),
        ["(validated-inside)", "it was validated after micro-batches 6, 12, 18 and 24.",
         "the step of the window was still to come", "remember that it is due"],
    ),
    "in the middle, of a copy": (
        "import copy\n" + _INSIDE.format("validate(copy.deepcopy(model))"),
        ["(validated-inside)", "it was validated after micro-batches 6, 12, 18 and 24."],
    ),
    "of a copy, before the step": (
        "import copy\n" + IN_THE_STEP.replace("validate(model)", "validate(copy.deepcopy(model))", 1).replace(_DUE, ""),
        ["(validated-inside)", "it was validated after micro-batches 8, 12, 16, 20, 24 and 26."],
    ),
    "next due counted from there": (
        validation_between.ANSWER.replace("due += validate_every", "due = done + validate_every"),
        ["(counted-from-the-last)", "after micro-batches 8, 16 and 24."],
    ),
    "micro-batches before the window": (_BY_NUMBER.format(""), ["(a-window-late)", "after micro-batches 12, 16, 24"]),
    "all windows as full ones": (
        _BY_NUMBER.format(", 1"),
        ["with accumulation_steps=4 and validate_every=6 all is right, but not with 3 and 7, on 20 micro-batches. "
         "There is one thing", "(one-more-at-the-end)", "after micro-batches 9, 15 and 20.",
         "the short last window counted as a full one"],
    ),
    "places written down": (
        _BY_NUMBER.format(", 1").replace("k * accumulation_steps >= due", "k in (2, 3, 5, 6)"),
        ["all is right, but not with 3 and 7", "(validated-elsewhere)", "after micro-batches 6, 9, 15 and 18.",
         "window ends 9 and 15"],
    ),
    "six written down": (
        validation_between.ANSWER.replace("validate_every, 0", "6, 0").replace("+= validate_every", "+= 6"),
        ["all is right, but not with 3 and 7", "after micro-batches 6, 12 and 18."],
    ),
    "four written down": (
        validation_between.ANSWER.replace("(loader, accumulation_steps", "(loader, 4"),
        ["all is right, but not with 3 and 7", "(fixed-accumulation-steps)", "windows of 4, 4, 4, 4 and 4"],
    ),
    "a step after the loop": (
        FLAG.replace("        if i % accumulation_steps == 0 or i == len(loader):\n", "        if i == len(loader):\n"),
        ["(one-update-a-pass)"],
    ),
    "once before anything": (FLAG.replace("    count, due", "    validate(model); model.train()\n    count, due"),
                             ["(validated-elsewhere)"]),
    "without training mode in between": (FLAG.replace("                model.train()\n", ""),
                                         ["(train-mode-forgotten)", "dropout was off", "learner.py:"]),
    "a mean of means as well": (
        FLAG.replace(', reduction="sum")', ") / accumulation_steps)").replace("F.cross", "(F.cross").replace(
            "            for p in model.parameters():\n                p.grad /= count\n", ""),
        ["(mean-of-means)"],
    ),
    "nothing trained": (FLAG[: FLAG.index("    count")] + "    validate(model)\n",
                        ["nothing was trained"]),
    "no function": ("train = 'loop'\n", ["the answer is a function train(model, loader, validate, optimizer,"]),
    "five arguments": ("def train(model, loader, validate, optimizer, accumulation_steps):\n    optimizer.step()\n",
                       ["give it these six arguments"]),
    "raises": (FLAG.replace("validate(model)", "validate(model, loader)"), ["TypeError", "learner.py:"]),
}  # fmt: skip


@pytest.mark.parametrize("name", VALIDATED)
def test_what_is_said_of_other_places_to_validate(name):
    source, parts = VALIDATED[name]
    text = said(validation_between, source)
    assert text.startswith("Not yet: ")
    assert [part for part in parts if part not in text] == [], text


def test_random_numbers_are_afterwards_as_they_were():
    before = torch.get_rng_state()
    said(validation_between, FLAG)
    assert torch.equal(torch.get_rng_state(), before)
