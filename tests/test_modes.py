"""What a notebook has left on changes nothing in what a check or a simulation finds, and is on again afterwards."""

from __future__ import annotations

import contextlib

import pytest
import torch

from accumkit import check_loop, pitfalls
from accumkit.checks import mystery, mystery_weights, problems, scaler_mystery, scaler_runs, stalled_sum, window_loop
from accumkit.checks.attempts import attempted
from accumkit.checks.outcome import RIGHT, Outcome
from accumkit.checks.problem import Problem
from accumkit.modes import as_new
from accumkit.tasks import _all_digits


@contextlib.contextmanager
def default(kind, get, put, value):
    before = get()
    put(value)
    try:
        yield
    finally:
        put(None if kind == "device" else before)


MODES = {
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "anomaly": lambda: default(
        "anomaly", torch.is_anomaly_enabled, lambda on: torch.autograd.set_detect_anomaly(on, check_nan=on), True
    ),
    "bfloat16": lambda: default("dtype", torch.get_default_dtype, torch.set_default_dtype, torch.bfloat16),
    "meta": lambda: default("device", torch.get_default_device, torch.set_default_device, "meta"),
    "a device for a while": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


def now() -> tuple:
    """What is set."""
    return (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled(),
        torch.get_default_dtype(), torch.get_default_device(), torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"), torch.ones(1).device,
    )  # fmt: skip


NEW = (True, False, False, torch.float32, torch.device("cpu"), False)


@pytest.fixture
def nothing_kept():
    """Clear what exercises have found before, so that they find it again."""
    for cached in (scaler_runs.logged, stalled_sum.measured, mystery._simulated, _all_digits):
        cached.cache_clear()


@pytest.mark.parametrize("name", MODES)
def test_modes_are_as_new_inside_and_as_they_were_afterwards(name):
    with MODES[name]():
        before = now()
        assert before[:6] != NEW
        with as_new():
            assert now()[:6] == NEW and now()[-1] == torch.device("cpu")
        assert now() == before
        with pytest.raises(ZeroDivisionError), as_new():
            _ = 1 / 0
        assert now() == before


@pytest.mark.parametrize("name", MODES)
def test_a_judge_finds_modes_as_new(name):
    found = []

    def judge(answer):
        found.append(now()[:6])
        return Outcome(RIGHT, "yes.")

    problem = Problem("00a", "t", "predict", 1, "easy", "answer", "", (), judge)
    with MODES[name]():
        assert problem.check({"a": 1}).status == RIGHT
    assert found == [NEW]


@pytest.mark.parametrize("name", ["no gradients", "inference", "anomaly", "bfloat16", "meta"])
def test_right_is_right_whatever_is_on(name, nothing_kept):
    each = problems()
    with MODES[name]():
        said = {key: each[key].examine(answer) for key, answer in ANSWERS.items()}
    assert {key: outcome.status for key, outcome in said.items()} == dict.fromkeys(ANSWERS, RIGHT), said


def answer_of(name):
    names = {}
    exec(f"{problems()[name].imports}\n{problems()[name].solution_source}", names)
    return names[problems()[name].asks]


ANSWERS = {name: answer_of(name) for name in ("window_loop", "stalled_sum", "scaler_mystery", "mystery_weights")}


@pytest.mark.parametrize("name", ["no gradients", "meta"])
def test_pictures_and_logs_can_be_looked_at_whatever_is_on(name, nothing_kept):
    with MODES[name]():
        shown = repr(mystery_weights.show()), repr(scaler_mystery.runs())
        assert pitfalls.simulate("missing-division", examples=8).shows
    mystery._simulated.cache_clear()
    scaler_runs.logged.cache_clear()
    assert shown == (repr(mystery_weights.show()), repr(scaler_mystery.runs()))


def test_check_loop_finds_modes_as_new():
    with torch.inference_mode():
        assert check_loop(ANSWERS["window_loop"]).ok


def test_what_was_found_under_a_mode_is_not_kept_for_the_session(nothing_kept):
    with MODES["bfloat16"]():
        assert problems()["stalled_sum"].examine(ANSWERS["stalled_sum"]).status == RIGHT
    wrong = {**ANSWERS["stalled_sum"], "autocast": False}
    assert problems()["stalled_sum"].examine(wrong).status != RIGHT
    assert attempted(window_loop.PROBLEM, window_loop.PROBLEM.solution_source).status == RIGHT
