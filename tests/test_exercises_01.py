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
        ({"divisor": 30}, "(tail-divisor) So many examples a full window has. The last window has 3 micro-batches"),
        ({"divisor": 18}, "(short-micro-batch-counted-full)"),
        ({"divisor": 74}, "(whole-pass) All 74 examples are in the pass, not in the window."),
        ({"micro_batches": 12}, "(short-micro-batch-dropped) 12 micro-batches of 6 hold 72 examples."),
        ({"micro_batches": 74 / 6}, "(short-micro-batch-dropped) A micro-batch is there or it is not."),
        ({"updates": 5}, "(n-is-no-number-of-updates)"),
        ({"examples": [5, 5, 3]}, "(micro-batches-not-examples)"),
        ({"examples": [30, 30, 18]}, "That makes 78 examples, and there are 74."),
        ({"examples": [30, 30]}, "That makes 60 of 74 examples"),
        ({"examples": [30, 30, 13]}, "All of them together must be 74."),
        ({"share": 2}, "(own-count) That is its count."),
        ({"share": 1}, "(weight-not-share)"),
        ({"share": 2 / 74}, "(whole-pass)"),
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


def test_01b_shows_the_picture_with_the_right_answer_only():
    assert update_sizes.PROBLEM.examine(RIGHT).trace is not None
    assert update_sizes.PROBLEM.examine(RIGHT | {"divisor": 5}).trace is None


def test_01b_a_dict_that_lacks_a_name_or_is_none():
    assert "the answer has no 'updates'" in said(update_sizes, {"micro_batches": 13})
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
