"""Exercises 01b and 01c: other right answers pass, odd ones get a clear text, and no text gives the answer away."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

from accumkit.checks.attempts import attempted
from accumkit.checks.exercises import fitting_settings, update_sizes, window_loop
from accumkit.checks.problem import but

RIGHT = {"micro_batches": 13, "updates": 3, "examples": [30, 30, 14], "divisor": 14, "share": 2 / 14}


def said(problem, answer) -> str:
    return " ".join(repr(problem.PROBLEM.examine(answer)).split())


def test_01a_micro_batches_cut_into_smaller_pieces_are_as_right():
    whole = window_loop.PROBLEM.solution_source
    split = "          for images, labels in zip(images.split(1), labels.split(1)):\n            loss"
    pieces = but(whole, "            loss", split)
    assert attempted(window_loop.PROBLEM, pieces).status == "right"
    for divisor in ("(count + 1)", "len(window)", "len(labels)"):
        assert attempted(window_loop.PROBLEM, but(pieces, "/ count", f"/ {divisor}")).status == "not yet"
    left_out = but(pieces, "            loss", "            if labels == 0: continue\n            loss")
    assert attempted(window_loop.PROBLEM, left_out).status == "not yet"


# 01a: what a learner's loop does besides, each in words that fit.

FROM_ZERO, FROM_ONE = "enumerate(loader)", "enumerate(loader, 1)"
COUNTING = """\
def train(model, loader, optimizer, accumulation_steps):
    optimizer.zero_grad()
    count = 0
    for i, (images, labels) in {counted}:
        F.cross_entropy(model(images), labels, reduction="sum").backward()
        count += len(labels)
        if {condition}:
            for p in model.parameters():
                p.grad /= count
            count = 0
            optimizer.step()
            optimizer.zero_grad()
"""
RIGHT_LOOP = window_loop.PROBLEM.solution_source
LOSS = 'F.cross_entropy(model(images), labels, reduction="sum")'
BEFORE, STEP = "    micro_batches = iter(loader)\n", "        optimizer.step()\n"
BY_HAND = "        for p in model.parameters():\n            p.grad /= {}\n"


def counting(counted: str, condition: str) -> str:
    return COUNTING.format(counted=counted, condition=condition)


def told_of(source: str) -> str:
    return " ".join(repr(attempted(window_loop.PROBLEM, source)).split())


def first(line: str) -> str:
    return but(RIGHT_LOOP, BEFORE, f"    {line}\n{BEFORE}")


SAID_OF_WINDOWS = {
    "step outside the loop": (
        but(RIGHT_LOOP, STEP, "    optimizer.step()\n"),
        ["(one-update-a-pass)", "each pass of 11 micro-batches had one update", "makes 3 of them", "inside the loop"],
    ),
    "step outside the loop, of means": (
        "def train(model, loader, optimizer, accumulation_steps):\n    optimizer.zero_grad()\n"
        "    for images, labels in loader:\n"
        "        (F.cross_entropy(model(images), labels) / accumulation_steps).backward()\n    optimizer.step()\n",
        ["there are 2 things to mend", "1. One update for a whole pass", "2. A mean of means"],
    ),
    "no brackets": (
        counting(FROM_ZERO, "i + 1 % accumulation_steps == 0 or i + 1 == len(loader)"),
        ["(one-update-a-pass)", "at learner.py:", "put brackets", "`i + (1 % accumulation_steps)`"],
    ),
    "no brackets, no last": (
        counting(FROM_ZERO, "i + 1 % accumulation_steps == 0"),
        ["(never-stepped)", "22 micro-batches had a backward, and no optimizer step", "put brackets"],
    ),
    "counted from 1, and 1 more": (
        counting(FROM_ONE, "(i + 1) % accumulation_steps == 0 or i + 1 == len(loader)"),
        ["(first-window-short)", "windows of 3, 4, 3 and 1 micro-batches in a pass of 11", "counts from 1"],
    ),
    "counted from 1, and 1 more, the end right": (
        counting(FROM_ONE, "(i + 1) % accumulation_steps == 0 or i == len(loader)"),
        ["(first-window-short)", "windows of 3, 4 and 4"],
    ),
    "not at 0": (
        counting(FROM_ZERO, "i > 0 and i % accumulation_steps == 0 or i + 1 == len(loader)"),
        ["(first-window-long)", "windows of 5, 4 and 2 micro-batches", "needs no case for 0"],
    ),
    "not at 0, and no end": (
        counting(FROM_ZERO, "i > 0 and i % accumulation_steps == 0"),
        ["1. The first window is one micro-batch too long", "2. Micro-batches that train nothing (tail-dropped)"],
    ),
    "one more": (
        counting(FROM_ONE, "i % (accumulation_steps + 1) == 0 or i == len(loader)"),
        ["(other-number)", "windows of 5, 5 and 1"],
    ),
    "twice as long": (
        counting(FROM_ONE, "i % (2 * accumulation_steps) == 0 or i == len(loader)"),
        ["(other-windows)", "windows of 8 and 3"],
    ),
    "two steps": (
        but(RIGHT_LOOP, STEP, STEP + STEP),
        ["(stepped-twice)", "12 steps for 6 windows", "leave out one of the two"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID_OF_WINDOWS)
def test_01a_where_windows_end_is_said_in_words_of_the_exercise(name):
    source, parts = SAID_OF_WINDOWS[name]
    text = told_of(source)
    assert text.startswith("Not yet:")
    assert [part for part in parts if part not in text] == [], text
    assert not re.search("declare the one that is meant|one inside the other|nested|off-by-one|stale", text), text


def test_01a_the_classic_off_by_one_keeps_its_name():
    text = told_of(counting(FROM_ZERO, "i % accumulation_steps == 0 or i + 1 == len(loader)"))
    assert "(off-by-one)" in text


def with_loss(other: str) -> str:
    return but(RIGHT_LOOP, LOSS, other)


SAID_OF_THE_REST = {
    "4 written down": (
        but(RIGHT_LOOP, "islice(micro_batches, accumulation_steps)", "islice(micro_batches, 4)"),
        ["with accumulation_steps=4 all is right. With accumulation_steps=3", "(n-written-down)", "of 4, 4 and 1"],
    ),
    "places written down": (
        counting(FROM_ONE, "i in (4, 8, 11)"),
        ["With accumulation_steps=3, and 9 micro-batches", "windows of 4 and 4 micro-batches"],
    ),
    "a rest that is not there": (
        counting(FROM_ONE, "i % accumulation_steps == 0")
        + "    for p in model.parameters():\n        p.grad /= count\n    optimizer.step()\n",
        ["With accumulation_steps=3", "TypeError", "Nothing is left there"],
    ),
    "two passes": (
        but(RIGHT_LOOP, "iter(loader)", "(batch for _ in range(2) for batch in loader)"),
        ["went through the loader twice in one call"],
    ),
    "two passes, one after the other": (
        but(but(RIGHT_LOOP, BEFORE, f"    for _ in range(2):\n     {BEFORE.lstrip()}"), "    while", "     while"),
        ["went through the loader twice in one call"],
    ),
    "an optimizer of its own": (
        first("optimizer = torch.optim.SGD(model.parameters(), lr=0.05)"),
        ["(another-optimizer)", "6 steps, none of them of the `optimizer` that is given"],
    ),
    "a larger step": (
        first("for group in optimizer.param_groups: group['lr'] *= accumulation_steps"),
        ["(changed-settings)", "lr=0.2 at a step, where lr=0.05 was given"],
    ),
    "eval mode": (first("model.eval()"), ["(eval-mode)", "leave out `model.eval()`"]),
    "autograd.grad": (
        but(
            RIGHT_LOOP,
            "            (loss / count).backward()\n",
            "            grads = torch.autograd.grad(loss / count, [*model.parameters()])\n"
            "            for p, g in zip(model.parameters(), grads):\n"
            "                p.grad = g if p.grad is None else p.grad + g\n",
        ),
        ["6 optimizer steps, but no backward", "only `.backward()` can be watched", "`torch.autograd.grad`"],
    ),
    "a copy": (first("import copy; model = copy.deepcopy(model)"), ["If a copy of the model was trained"]),
    "softmax": (
        with_loss('F.cross_entropy(model(images).softmax(1), labels, reduction="sum")'),
        ["(softmax-before-cross-entropy)", "takes another one by itself"],
    ),
    "nll of outputs": (with_loss('F.nll_loss(model(images), labels, reduction="sum")'), ["(no-softmax)"]),
    "nll of probabilities": (
        with_loss('F.nll_loss(model(images).softmax(1), labels, reduction="sum")'),
        ["(no-logarithm)"],
    ),
    "smoothed": (
        with_loss('F.cross_entropy(model(images), labels, reduction="sum", label_smoothing=0.1)'),
        ["(label-smoothing)"],
    ),
    "a penalty": (
        but(RIGHT_LOOP, "(loss / count)", "(loss / count + 0.01 * sum(p.square().sum() for p in model.parameters()))"),
        ["(another-loss)", "no term beside it"],
    ),
    "divided again by N": (
        but(RIGHT_LOOP, STEP, BY_HAND.format("accumulation_steps") + STEP),
        ["(double-division)", "leave out one of the two divisions", "as it was before the second division"],
    ),
    "divided again by the count": (
        but(RIGHT_LOOP, STEP, BY_HAND.format("count") + STEP),
        ["(double-division)", "as it was before the second division"],
    ),
    "some left out": (
        but(RIGHT_LOOP, "            loss", "            images, labels = images[1:] if len(labels) > 1 else images, "
            "labels[1:] if len(labels) > 1 else labels\n            loss"),
        ["(examples-left-out)", "62 of 82 examples had a part in a backward, micro-batch 1 with 3 of 4"],
    ),
    "some left out, and not counted": (
        but(
            but(RIGHT_LOOP, "sum(len(labels) for images, labels in window)",
                "sum((labels != 3).sum() for images, labels in window)"),
            "            loss",
            "            images, labels = images[labels != 3], labels[labels != 3]\n            loss",
        ),
        ["(examples-left-out)", "72 of 82 examples"],
    ),
    "one backward a pass": (
        "def train(model, loader, optimizer, accumulation_steps):\n    total = count = 0\n"
        "    for images, labels in loader:\n"
        "        total = total + F.cross_entropy(model(images), labels) * len(labels)\n        count += len(labels)\n"
        "    optimizer.zero_grad()\n    (total / count).backward()\n    optimizer.step()\n",
        ["(one-update-a-pass)", "each pass of 11 micro-batches had one update, at its end", "(graph-kept)"],
    ),
    "return": (
        but(RIGHT_LOOP, STEP, f"{STEP}        return\n"),
        ["Only 8 micro-batches of 22", "each call ended after the first 4.", "inside its loop?"],
    ),
    "next": (
        but(RIGHT_LOOP, "    while", "    next(micro_batches)\n    while"),
        ["Only 20 micro-batches of 22", "the first one was taken from the loader and not trained on", "`next(...)`"],
    ),
    "next for a window": (
        but(RIGHT_LOOP, "list(islice(micro_batches, accumulation_steps))",
            "[next(micro_batches) for _ in range(accumulation_steps)]"),
        ["StopIteration", "the last window of a pass may be shorter"],
    ),
    "next in a generator": (
        but(RIGHT_LOOP, "islice(micro_batches, accumulation_steps)",
            "next(micro_batches) for _ in range(accumulation_steps)"),
        ["generator raised StopIteration", "the last window of a pass may be shorter"],
    ),
    "a long error": (
        first("raise RuntimeError('thirteen letters ' * 40)"),
        ["thirteen letters thirteen [...] at learner.py:"],
    ),
    "graphs kept for nothing": (
        but(RIGHT_LOOP, ".backward()", ".backward(retain_graph=True)"),
        ["(graph-kept)", "leave out `retain_graph=True` if it is there", "where losses are added up to be shown"],
    ),
    "a mean behind a name": (
        but(with_loss("F.cross_entropy(model(images), labels, reduction=kind)"), "/ count", "/ len(window)").replace(
            BEFORE, f'{BEFORE}    kind = "mean"\n'
        ),
        ["(mean-of-means)", "`F.cross_entropy` divides by the count of its own micro-batch; let it sum"],
    ),
    "a mean, with a sum named beside it": (
        but(with_loss("F.cross_entropy(model(images), labels, reduction=kind)"), "/ count", "/ len(window)").replace(
            BEFORE, f'{BEFORE}    kind = "mean" if accumulation_steps else "sum"\n'
        ),
        ["(mean-of-means)", ': let the losses sum, `reduction="sum"`, and divide by the count of the whole window'],
    ),
    "softmax, a line before its backward": (
        with_loss('F.cross_entropy(model(images).softmax(1), labels, reduction="sum")'),
        ["To change, from the forward at learner.py:14 to the backward at learner.py:15: give the model's outputs"],
    ),
    "softmax, in the line of its backward": (
        but(counting(FROM_ONE, "i % accumulation_steps == 0 or i == len(loader)"), "(images)", "(images).softmax(1)"),
        ["To change, at learner.py:11: give the model's outputs"],
    ),
    "a mean of losses one by one": (
        but(with_loss('F.cross_entropy(model(images), labels, reduction="none").mean()'), "/ count", "/ len(window)"),
        ["(mean-of-means)", "a mean of the losses divides by the examples of its own micro-batch; take `.sum()`"],
    ),
}  # fmt: skip
UNTRUE = (
    "uneven-divisor|divided by different numbers|data-reused|The last pass ended|step-every-micro-batch|"
    "one division too many|which ones make an update. Measured"
)


@pytest.mark.parametrize("name", SAID_OF_THE_REST)
def test_01a_what_else_is_said(name):
    source, parts = SAID_OF_THE_REST[name]
    text = told_of(source)
    assert text.startswith("Not yet:")
    assert [part for part in parts if part not in text] == [], text
    assert not re.search(UNTRUE, text), text
    assert ("which ones make an update" in text) == (name == "4 written down"), text


RIGHT_TOO = {
    "logarithms by hand": with_loss('F.nll_loss(model(images).log_softmax(1), labels, reduction="sum")'),
    "training mode": first("model.train()"),
    "a rate set to what it was": first("optimizer.param_groups[0]['lr'] = 0.05"),
    "a step of nothing": counting(FROM_ONE, "i % accumulation_steps == 0")
    + "    for p in model.parameters():\n        if p.grad is not None:\n            p.grad /= count\n"
    "    optimizer.step()\n",
    "sizes looked at before": first("sizes = [len(labels) for _, labels in loader]"),
    "one list": but(RIGHT_LOOP, "iter(loader)", "iter(list(loader))"),
}


@pytest.mark.parametrize("name", RIGHT_TOO)
def test_01a_unusual_and_right(name):
    text = told_of(RIGHT_TOO[name])
    assert text.startswith("Right:"), text


def test_01a_a_name_in_quotes():
    assert "that is a name in quotes. Give what it stands for: `q.check(train)`" in said(window_loop, "train")


@pytest.mark.parametrize(
    "other",
    [
        {"share": 1 / 7},
        {"share": 0.143},
        {"share": 0.14},
        {"examples": (30, 30, 14)},
        {"examples": torch.tensor([30, 30, 14])},
        {"examples": np.array([30.0, 30.0, 14.0])},
        {"micro_batches": 13.0, "updates": np.int64(3), "divisor": torch.tensor(14)},
        {"beside": "what nobody asked for"},
    ],
)
def test_01b_other_ways_to_say_the_same_pass(other):
    assert update_sizes.PROBLEM.examine(RIGHT | other).status == "right"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"divisor": 5}, "`divisor`: 5 (divided-by-n) N = 5 is a number of micro-batches."),
        ({"divisor": 30}, "(tail-divisor) That is how many examples a full window has. The last window has fewer"),
        ({"divisor": 18}, "(short-micro-batch-counted-full)"),
        ({"divisor": 74}, "(whole-pass) All 74 examples are in the pass, not in the window."),
        ({"micro_batches": 12}, "(short-micro-batch-dropped) 12 micro-batches of 6 hold 72 examples."),
        ({"micro_batches": 74 / 6}, "(short-micro-batch-dropped) A micro-batch is there or it is not."),
        ({"updates": 5}, "(n-is-no-number-of-updates)"),
        ({"examples": [5, 5, 3]}, "(micro-batches-not-examples)"),
        ({"examples": [30, 30, 18]}, "That makes 78 examples, and there are 74."),
        ({"examples": [30, 30]}, "That makes 60 of 74 examples"),
        ({"examples": [30, 30, 13]}, "All of them together must be 74."),
        ({"share": 14.3}, "(percent) That is a percentage."),
        ({"examples": [30, 44]}, "It has 2 numbers, and another number of them is asked for."),
        ({"examples": ...}, "`examples`: still open Put a list of numbers in its place."),
        ({"share": 2}, "(own-count) That is its count."),
        ({"share": 1}, "(weight-not-share)"),
        ({"share": 2 / 74}, "(whole-pass)"),
        # a mean divided by N has the same share as a full micro-batch of a full window: either may be meant
        ({"share": 6 / 30}, "(tail-divisor) That is 1/5, the share of a full micro-batch in a full window; a mean"),
        ({"share": 6 / 30}, "the last micro-batch has fewer examples than the others."),
        ({"share": ...}, "`share`: still open Put a number in its place."),
        ({"examples": [30, 30, ...]}, "`examples`: cannot be read"),
        ({"updates": "three"}, "a whole number is asked for"),
        ({"share": math.nan}, "`share`: cannot be read"),
        ({"micro_batches": True}, "`micro_batches`: cannot be read"),
    ],
)
def test_01b_says_how_a_wrong_value_comes_about(given, told):
    text = said(update_sizes, RIGHT | given)
    assert text.startswith("Not yet: 4 of 5")
    assert told in text


def test_01b_values_are_those_of_loops_that_ran():
    right = update_sizes._ran()
    assert [u.examples for u in right.updates] == RIGHT["examples"]
    assert [u.examples for u in update_sizes._ran("off-by-one").updates] == [6, 30, 30, 8]
    assert all(question.right == pytest.approx(RIGHT[question.name]) for question in update_sizes._questions())


def test_01b_no_text_gives_a_value_away_and_no_slip_is_right():
    for question in update_sizes._questions():
        shown = {"micro_batches": r"\b13\b", "examples": r"30, 30, 14|\b14\b", "divisor": r"\b14\b", "share": r"0\.14"}
        for slip in question.slips:
            assert not question.same(slip.value, question.right)
            assert not re.search(shown.get(question.name, r"\bthree\b"), slip.says), slip
        assert not re.search(shown.get(question.name, r"\bthree\b"), question.why)


def test_01b_no_text_tells_how_many_updates_there_are():
    for question in update_sizes._questions():
        if question.name != "updates":
            texts = [question.why, *(slip.says for slip in question.slips)]
            assert not [text for text in texts if re.search(r"\b3\b|\bthree\b", text)], question.name
    assert "3" not in said(update_sizes, RIGHT | {"examples": ...}).replace("1 is", "")
    assert "3 numbers" not in said(update_sizes, RIGHT | {"examples": [30, 30, ...]})


def test_01b_shows_the_picture_with_the_right_answer_only():
    assert update_sizes.PROBLEM.examine(RIGHT).trace is not None
    assert update_sizes.PROBLEM.examine(RIGHT | {"divisor": 5}).trace is None


def test_01b_a_dict_that_lacks_a_name_or_is_none():
    missing = "the answer has no 'updates', 'examples', 'divisor' and 'share'."
    assert missing in said(update_sizes, {"micro_batches": 13})
    assert "the answer is a dict" in said(update_sizes, 13)


def settings(size, steps) -> dict:
    return {"micro_batch_size": size, "accumulation_steps": steps}


@pytest.mark.parametrize("given", [(15, 3), (15.0, 3), (torch.tensor(15), np.int64(3))])
def test_01c_the_right_settings_however_they_are_written(given):
    outcome = fitting_settings.PROBLEM.examine(settings(*given))
    assert outcome.status == "right"
    assert [u.examples for u in outcome.trace.updates] == [45] * 4


def test_01c_no_other_settings_pass():
    wanted = [(size, steps) for size in range(1, 52) for steps in range(1, 51) if 40 <= size * steps <= 50]
    assert len(wanted) == 57
    right = [
        pair for pair in wanted if pair[0] > 2 and fitting_settings.PROBLEM.examine(settings(*pair)).status == "right"
    ]
    assert right == [(15, 3)]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((16, 3), ["4 updates of 48 examples, the last of 36", "(tail)", "180 must be a multiple of 48"]),
        ((9, 5), ["(small-micro-batches)", "the pass has 20 micro-batches, and 12 would do"]),
        ((16, 3), ["The updates have 48, 48, 48 and 36 examples."]),
        ((16, 2), ["The last updates have 32, 32, 32 and 20 examples."]),
        ((180, 1), ["with 1 micro-batch in the pass"]),
        ((45, 1), ["(out-of-memory)", "It would hold 45 examples at a time, and 16 fit."]),
        ((45, 4), ["(out-of-memory)", "45 in 4 micro-batches is 180 an update", "(one-update)"]),
        ((20, 2), ["(out-of-memory)", "(tail)", "5 updates of 40 examples, the last of 20"]),
        ((15, 1), ["(step-every-micro-batch)", "With N = 1 every micro-batch is an update."]),
        ((15, 12), ["1 update of 180 examples", "(one-update)"]),
        ((12, 3), ["(update-too-small)", "12 * 3"]),
        ((16, 4), ["(update-too-large)", "(tail)"]),
    ],
)
def test_01c_says_what_is_not_met_with_what_the_loop_did(given, told):
    outcome = fitting_settings.PROBLEM.examine(settings(*given))
    text = " ".join(repr(outcome).split())
    assert outcome.status == "not yet"
    assert [part for part in told if part not in text] == [], text
    assert outcome.trace is not None
    assert 15 in given or not re.search(r"15 (a|examples)|\b15 \*", text), "the answer is not given away"


@pytest.mark.parametrize("odd", [0, -3, 2.5, "15", True, math.nan, math.inf, [15], ...])
def test_01c_what_is_no_whole_number_of_at_least_1_is_told(odd):
    text = said(fitting_settings, settings(odd, 3))
    assert text.startswith("Not yet: two whole numbers are asked for. 1. `micro_batch_size`")
    assert "accumulation_steps" not in text


@pytest.mark.parametrize("given", [(10**12, 3), (15, 10**12), (1, 1), (181, 1)])
def test_01c_numbers_out_of_all_proportion_are_run_all_the_same(given):
    assert fitting_settings.PROBLEM.examine(settings(*given)).status == "not yet"


def test_01c_a_dict_that_lacks_a_name_or_is_none():
    assert "the answer has no 'accumulation_steps'" in said(fitting_settings, {"micro_batch_size": 15})
    assert "the answer is a dict" in said(fitting_settings, (15, 3))
