"""check_loop: the audit on a learner's function, which may do anything."""

from __future__ import annotations

import inspect
import random
import sys
import threading
import time
from itertools import islice

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import accumkit as ak
from accumkit.checks import guarded
from accumkit.checks.check_loop import CALLS, PASSES, _loader


def right(model, loader, optimizer, accumulation_steps):
    batches = iter(loader)
    while window := list(islice(batches, accumulation_steps)):
        count = sum(len(labels) for _, labels in window)
        optimizer.zero_grad()
        for images, labels in window:
            (F.cross_entropy(model(images), labels, reduction="sum") / count).backward()
        optimizer.step()


def line_of(function, text: str) -> str:
    source, first = inspect.getsourcelines(function)
    return f"test_check_loop.py:{first + next(i for i, line in enumerate(source) if text in line)}"


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7, 50])
def test_a_right_loop_passes(steps):
    verdict = ak.check_loop(right, steps)
    assert verdict.ok, verdict
    assert verdict.trace.accumulation_steps == steps


def test_the_data_have_a_tail_and_unequal_micro_batches():
    for steps in range(2, 129):
        loader = _loader(steps)
        assert len(loader) > 2 * steps
        assert len(loader) % steps
        sizes = [len(chunk) for chunk in loader.batch_sampler.chunks]
        for start in range(0, len(sizes), steps):
            window = sizes[start : start + steps]
            assert len(window) == 1 or len(set(window)) > 1, (steps, window)


def test_leaks_and_drops_both_show():
    def leaks(model, loader, optimizer, n):
        for i, (images, labels) in enumerate(loader, 1):
            (F.cross_entropy(model(images), labels, reduction="sum") / 15).backward()
            if i % n == 0:
                optimizer.step()
                optimizer.zero_grad()

    def drops(model, loader, optimizer, n):
        optimizer.zero_grad()
        leaks(model, loader, optimizer, n)

    assert "tail-leaked" in [finding.pitfall for finding in ak.check_loop(leaks).findings]
    assert "tail-dropped" in [finding.pitfall for finding in ak.check_loop(drops).findings]


def test_a_function_that_raises():
    def raises(model, loader, optimizer, n):
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels.float())
            loss.backward()

    verdict = ak.check_loop(raises)
    assert (verdict.ok, verdict.status) == (False, "cannot tell")
    assert "raised RuntimeError: expected target dtype" in verdict.reason
    assert line_of(raises, "labels.float()") in verdict.reason


@pytest.mark.parametrize(
    "error", [SystemExit("bye"), KeyboardInterrupt(), NotImplementedError(), ValueError("two\nlines")]
)
def test_whatever_it_raises(error):
    def raises(model, loader, optimizer, n):
        raise error

    verdict = ak.check_loop(raises)
    assert not verdict.ok
    assert f"raised {type(error).__name__}" in verdict.reason
    assert "lines" not in verdict.reason


def stuck(model, loader, optimizer, n):
    while True:
        pass


def stuck_and_stubborn(model, loader, optimizer, n):
    while True:
        try:
            while True:
                pass
        except:  # noqa: E722 what a learner may well write
            pass


@pytest.mark.parametrize("function", [stuck, stuck_and_stubborn])
def test_a_function_that_never_ends(function):
    start = time.monotonic()
    verdict = ak.check_loop(function, seconds=0.3)
    assert time.monotonic() - start < 10
    assert (verdict.ok, verdict.status) == (False, "cannot tell")
    assert "still running after 0.3 seconds at test_check_loop.py:" in verdict.reason
    assert "does its loop end?" in verdict.reason


def test_a_function_that_never_ends_in_a_thread_of_the_caller():
    verdicts = []
    thread = threading.Thread(target=lambda: verdicts.append(ak.check_loop(stuck, seconds=0.2)))
    thread.start()
    thread.join(20)
    assert "still running" in verdicts[0].reason


def test_a_call_that_cannot_be_stopped_is_left_behind(monkeypatch):
    monkeypatch.setattr(guarded, "GRACE", 0.1)
    woken = threading.Event()

    def waits(model, loader, optimizer, n):
        woken.wait(5)

    try:
        verdict = ak.check_loop(waits, seconds=0.1)
        assert "still running after 0.1 seconds" in verdict.reason
    finally:
        woken.set()


def test_an_endless_iteration_over_the_loader_is_stopped_early():
    def endless(model, loader, optimizer, n):
        while True:
            for images, labels in loader:
                F.cross_entropy(model(images), labels).backward()

    verdict = ak.check_loop(endless)
    assert f"went over its data more than {PASSES} times" in verdict.reason
    assert line_of(endless, "for images") in verdict.reason


def test_wrong_arguments():
    def few(model, loader):
        pass

    verdict = ak.check_loop(few)
    assert (verdict.ok, verdict.trace) == (False, None)
    assert (
        f"few ({line_of(few, 'def few')}) takes (model, loader), and is called as train(model, loader,"
        in verdict.reason
    )

    def named_only(*, accumulation_steps, model, loader, optimizer):
        right(model, loader, optimizer, accumulation_steps)

    assert ak.check_loop(named_only).ok
    assert ak.check_loop(lambda *everything: right(*everything)).ok


def test_functions_whose_lines_do_not_run():
    def yields(model, loader, optimizer, n):
        yield from loader

    async def waits(model, loader, optimizer, n):
        pass

    assert "it has a yield" in ak.check_loop(yields).reason
    assert "async def" in ak.check_loop(waits).reason


def test_a_function_that_trains_nothing():
    def idle(model, loader, optimizer, n):
        for images, _ in loader:
            model(images)

    def no_step(model, loader, optimizer, n):
        for images, labels in loader:
            F.cross_entropy(model(images), labels).backward()

    assert "nothing was trained" in ak.check_loop(idle).reason
    assert "no optimizer step was seen" in ak.check_loop(no_step).reason


def test_a_function_that_returns_early():
    def early(model, loader, optimizer, n):
        batches = iter(loader)
        window = list(islice(batches, n))
        optimizer.zero_grad()
        for images, labels in window:
            (F.cross_entropy(model(images), labels, reduction="sum") / sum(len(t) for _, t in window)).backward()
        optimizer.step()

    verdict = ak.check_loop(early)
    assert (verdict.ok, verdict.status, verdict.findings) == (False, "not equivalent", ())
    assert f"Only 8 micro-batches of {CALLS * 11} had a backward" in verdict.reason


def test_a_flood_of_output_is_cut(capsys):
    def floods(model, loader, optimizer, n):
        for i in range(50_000):
            print("line", i)
        print("to stderr", file=sys.stderr)
        right(model, loader, optimizer, n)

    assert ak.check_loop(floods).ok
    shown = capsys.readouterr()
    assert shown.out.startswith("line 0\nline 1\n")
    assert len(shown.out) < 5_000
    assert "more characters were printed, and are not shown" in shown.out
    assert shown.err == "to stderr\n" * CALLS


def test_torch_and_randomness_are_as_they_were():
    before = (F.cross_entropy, torch.optim.SGD.step, torch.Tensor.backward, torch.nn.Module.__call__)

    def meddles(model, loader, optimizer, n):
        F.cross_entropy = torch.optim.SGD.step = torch.Tensor.backward = lambda *args, **kwargs: None
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(123)
        random.seed(123)
        np.random.seed(123)

    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert not ak.check_loop(meddles).ok
    assert before == (F.cross_entropy, torch.optim.SGD.step, torch.Tensor.backward, torch.nn.Module.__call__)
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    assert ak.check_loop(right).ok


def test_an_interrupt_of_the_caller_stops_the_function(monkeypatch):
    seen = []

    def interrupted(done, seconds):
        done.wait(0.2)
        raise KeyboardInterrupt

    def counts(model, loader, optimizer, n):
        while True:
            seen.append(1)
            time.sleep(0.01)

    monkeypatch.setattr(guarded, "_waited", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ak.check_loop(counts)
    length = len(seen)
    time.sleep(0.1)
    assert len(seen) == length > 0


def test_bad_arguments():
    with pytest.raises(
        ak.AccumkitError, match=r"check_loop needs a function train\(model, loader, optimizer, acc.*given: str"
    ):
        ak.check_loop("train")
    with pytest.raises(ak.AccumkitError, match="accumulation_steps needs a whole number"):
        ak.check_loop(right, 0)
    with pytest.raises(ak.AccumkitError, match="accumulation_steps=1000: 128 at most"):
        ak.check_loop(right, 1000)
    with pytest.raises(ak.AccumkitError, match="seconds=-1"):
        ak.check_loop(right, seconds=-1)
