"""check_loop: the audit on a learner's function, which may do anything."""

from __future__ import annotations

import codecs
import copy
import inspect
import io
import random
import sys
import threading
import time
import warnings
from itertools import islice

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.optim.optimizer import _global_optimizer_post_hooks as optimizer_hooks

import accumkit as ak
from accumkit.checks import guarded, window_loop
from accumkit.checks.audited import CALLS, PASSES, in_micro_batches
from accumkit.checks.check_loop import unequal


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
        loader = in_micro_batches(ak.tasks.digits(sum(unequal(steps)), torch.float64), unequal(steps))
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


def test_an_exception_that_cannot_be_read():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no")

    def raises(model, loader, optimizer, n):
        raise Mute

    verdict = ak.check_loop(raises)
    assert "raised Mute: (its text cannot be read: __str__ raised RuntimeError)" in verdict.reason
    assert line_of(raises, "raise Mute") in verdict.reason


def test_a_text_that_takes_for_ever_is_the_functions_time():
    class Slow(Exception):
        def __str__(self):
            while True:
                pass

    def raises(model, loader, optimizer, n):
        raise Slow

    assert "still running after 0.2 seconds" in ak.check_loop(raises, seconds=0.2).reason


class Odd:
    """A callable that answers no question about itself."""

    def __init__(self, train):
        self.__dict__["train"] = train

    def __call__(self, *arguments):
        return self.__dict__["train"](*arguments)

    def __getattr__(self, name):
        raise RuntimeError(f"no {name}")

    def __repr__(self):
        raise RuntimeError("no repr")


def test_a_callable_that_raises_over_its_attributes():
    assert ak.check_loop(Odd(right)).ok
    assert not ak.check_loop(Odd(lambda *arguments: None)).ok
    assert window_loop.check(Odd(right)).status == "right"
    with pytest.raises(ak.AccumkitError, match="given: a NoRepr"):
        ak.check_loop(type("NoRepr", (), {"__repr__": lambda self: 1 / 0})())


OVER = threading.Event()  # set by the test at its end: a thread that went on would slow down all tests after it


def stuck(model, loader, optimizer, n):
    while True:
        pass


def stuck_and_stubborn(model, loader, optimizer, n):
    while not OVER.is_set():
        try:
            while not OVER.is_set():
                pass
        except:  # noqa: E722 what a learner may well write
            pass


@pytest.mark.parametrize("function", [stuck, stuck_and_stubborn])
def test_a_function_that_never_ends(function):
    OVER.clear()
    try:
        verdict = ak.check_loop(function, seconds=0.3)
    finally:
        OVER.set()
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


def test_one_backward_a_window_is_a_matter_of_memory_alone():
    def one(model, loader, optimizer, n):
        batches = iter(loader)
        while window := list(islice(batches, n)):
            optimizer.zero_grad()
            losses = [F.cross_entropy(model(images), labels, reduction="sum") for images, labels in window]
            (sum(losses) / sum(len(labels) for _, labels in window)).backward()
            optimizer.step()

    verdict = ak.check_loop(one)
    assert (verdict.ok, verdict.status, [f.pitfall for f in verdict.findings]) == (False, "equivalent", ["graph-kept"])
    assert "22 forward calls and 6 backward calls" in verdict.findings[0].evidence
    assert verdict.findings[0].location == line_of(one, ".backward()")


def test_a_window_put_back_together_is_no_accumulation():
    def together(model, loader, optimizer, n):
        batches = iter(loader)
        while window := list(islice(batches, n)):
            images, labels = (torch.cat(parts) for parts in zip(*window, strict=True))
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()

    verdict = ak.check_loop(together)
    assert (verdict.ok, verdict.status, verdict.findings) == (False, "cannot tell", ())
    assert "over 10 to 16 examples at once: you put the window back together" in verdict.reason
    assert ak.check_loop(together, 1).ok, "with N = 1 a window is a micro-batch"


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
    torch.optim.SGD([torch.zeros(1)], lr=0.1)  # the first of its class: torch wraps the step of that
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


def test_methods_and_classes_of_torch_are_as_they_were():
    linear, name, inherited = torch.nn.Linear.forward, torch.nn.Linear, torch.nn.Tanh.__call__
    adam, dataset = torch.optim.Adam.step, torch.utils.data.TensorDataset.__getitem__

    def meddles(model, loader, optimizer, n):
        torch.nn.Linear.forward = lambda self, x: x.sum(1, keepdim=True)
        torch.nn.Tanh.__call__ = torch.nn.Tanh.extra = lambda self, x: x  # the first was inherited, the other is new
        torch.nn.Linear = torch.nn.Identity
        torch.optim.Adam.step = torch.utils.data.TensorDataset.__getitem__ = lambda *arguments: None

    assert not ak.check_loop(meddles).ok
    assert not hasattr(torch.nn.Tanh, "extra")
    assert (torch.nn.Linear, torch.nn.Linear.forward) == (name, linear)
    assert (torch.nn.Tanh.__call__, "__call__" in vars(torch.nn.Tanh)) == (inherited, False)
    assert torch.optim.Adam.step is adam
    assert torch.utils.data.TensorDataset.__getitem__ is dataset
    assert ak.check_loop(right).ok


def test_settings_and_warning_filters_are_as_they_were():
    def meddles(model, loader, optimizer, n):
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = True
        warnings.simplefilter("ignore")
        warnings.showwarning = print
        right(model, loader, optimizer, n)

    filters, show = list(warnings.filters), warnings.showwarning
    assert ak.check_loop(meddles).ok
    assert torch.get_deterministic_debug_mode() == 0
    assert not torch.backends.cudnn.benchmark
    assert warnings.filters == filters
    assert warnings.showwarning is show


@pytest.mark.parametrize("capture", ["capsys", "capfd"])
def test_whatever_is_asked_of_the_output(capture, request):
    request.getfixturevalue(capture)

    def asks(model, loader, optimizer, n):
        for stream in (sys.stdout, sys.stderr):
            assert stream.fileno() > 0
            assert isinstance(stream.isatty(), bool)
            assert stream.writable()
            assert codecs.lookup(stream.encoding)
            assert stream.errors
            stream.buffer.write("é bytes\n".encode(stream.encoding))
            stream.buffer.flush()
            stream.writelines(["a line\n"])
        right(model, loader, optimizer, n)

    verdict = ak.check_loop(asks)
    assert verdict.ok, verdict
    shown = request.getfixturevalue(capture).readouterr()
    assert shown.out == shown.err == "é bytes\na line\n" * CALLS


def test_bytes_are_cut_as_text_is(capsys):
    def floods(model, loader, optimizer, n):
        sys.stdout.buffer.write(b"x" * 50_000)
        right(model, loader, optimizer, n)

    assert ak.check_loop(floods).ok
    assert "more characters were printed" in capsys.readouterr().out[3_000:5_000]


def test_a_stream_without_a_file_or_an_encoding():
    class Notebook(io.TextIOBase):  # as a notebook's: no file, no buffer
        def write(self, text):
            return len(text)

    stream = guarded._Limited(Notebook())
    assert stream.fileno() == sys.__stdout__.fileno()
    assert stream.encoding == "utf-8"
    assert stream.buffer.write(b"abc") == 3
    with pytest.raises(AttributeError):
        _ = stream.reconfigure


def test_two_passes_in_one_call():
    def twice(model, loader, optimizer, n):
        right(model, loader, optimizer, n)
        right(model, loader, optimizer, n)

    def in_a_list(model, loader, optimizer, n):
        right(model, list(loader) * 2, optimizer, n)

    def counts_first(model, loader, optimizer, n):
        assert sum(len(labels) for _, labels in loader) == 41
        right(model, loader, optimizer, n)

    verdict = ak.check_loop(twice)
    assert (verdict.ok, verdict.status, verdict.findings) == (False, "not equivalent", ())
    assert verdict.reason.startswith("The function went through the loader twice in one call: one pass a call was")
    verdict = ak.check_loop(in_a_list)
    assert not verdict.ok
    assert "trained on 164 examples in 2 calls, where a pass each has 82" in verdict.reason
    assert ak.check_loop(counts_first).ok


def test_the_second_call_alone_goes_over_the_data_twice():
    calls = []

    def more(model, loader, optimizer, n):
        calls.append(1)
        for _ in calls:
            right(model, loader, optimizer, n)

    assert "went through the loader 3 times in 2 calls" in ak.check_loop(more).reason


def test_split_micro_batches_are_no_second_pass():
    def splits(model, loader, optimizer, n):
        for images, labels in loader:
            optimizer.zero_grad()
            for part, target in zip(images.split(1), labels.split(1), strict=True):
                (F.cross_entropy(model(part), target, reduction="sum") / len(labels)).backward()
            optimizer.step()

    assert "one pass a call" not in ak.check_loop(splits).reason


def test_a_copy_of_the_model_is_not_the_model():
    def copies(model, loader, optimizer, n):
        model = copy.deepcopy(model)
        right(model, loader, torch.optim.SGD(model.parameters(), lr=0.1), n)

    verdict = ak.check_loop(copies)
    assert not verdict.ok
    assert "The model given was not trained: 6 steps (at test_check_loop.py:" in verdict.reason
    assert line_of(right, "optimizer.step()") in verdict.reason
    assert "nothing was trained" not in verdict.reason
    assert not optimizer_hooks


def test_an_optimizer_of_ones_own_is_fine():
    def own(model, loader, optimizer, n):
        right(model, loader, torch.optim.SGD(model.parameters(), lr=0.1), n)

    assert ak.check_loop(own).ok


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
