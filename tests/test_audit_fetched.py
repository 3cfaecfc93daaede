"""Batches fetched and not trained on, runs that stop, and what could not be seen: verdicts say what is true."""

from __future__ import annotations

import re
from itertools import islice

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import accumkit as ak
from accumkit.audit.offered import batches_of
from tests import faulty_loops as faulty
from tests.problems import Problem, images, unequal_images

STATES = ("tail-dropped", "skipped-micro-batch")


def digits(steps, loop, tail="step", data=None, objective=...):
    """Return the verdict on a loop over six micro-batches, the last one smaller."""
    data = data or images(23)
    return ak.audit(data.watch(loop, steps, tail, objective))


def skipping(*skipped, at_the_end=True, passes=1, smallest=0, after_forward=False, stop=None):
    """Return a loop that counts what it fetches, and passes over some batches and what stands behind."""

    def loop(model, loader, optimizer, steps, scheduler):
        for _ in range(passes):
            for i, (pixels, labels) in enumerate(loader, 1):
                if i == stop:
                    break
                left_out = i in skipped or len(labels) < smallest
                if left_out and not after_forward:
                    continue
                loss = F.cross_entropy(model(pixels), labels, reduction="sum") / 9
                if left_out:
                    continue
                loss.backward()
                if i % steps == 0 or (at_the_end and i == len(loader)):
                    optimizer.step()
                    optimizer.zero_grad()

    return loop


def names(verdict):
    return [finding.pitfall for finding in verdict.findings]


@pytest.mark.parametrize("loop", [skipping(smallest=4), skipping(6, after_forward=True), skipping(stop=6)])
@pytest.mark.parametrize("objective", [..., None])
def test_a_step_left_out_with_the_last_batch(loop, objective):
    verdict = digits(4, loop, objective=objective)
    (finding,) = verdict.findings
    assert (finding.pitfall, verdict.status) == ("tail-dropped", "not equivalent")
    assert "the last micro-batch of the pass that had a backward made no update: 4 examples weigh 0" in finding.evidence
    assert "1 of 6 batches fetched had no backward, the one after which the step was due" in finding.evidence
    assert "let every batch reach the condition" in finding.fix
    assert "len(loader)" not in finding.fix  # that stands there
    assert "ended after" not in verdict.reason


def test_a_step_left_out_with_the_last_batch_of_each_pass():
    (finding,) = digits(4, skipping(smallest=4, passes=2)).findings
    assert finding.pitfall == "tail-leaked"
    assert "The step was due after batch 6 of each pass, which had no backward" in finding.evidence
    assert "let every batch reach the condition" in finding.fix


def test_a_tail_that_is_dropped_as_declared():
    verdict = digits(4, skipping(smallest=4), tail="drop", data=images(23))
    assert "ended after" not in verdict.reason
    assert "1 of the 6 batches fetched had no backward." in verdict.reason
    assert "1 micro-batch in short last windows was dropped, as declared." in verdict.reason


def test_a_step_left_out_in_the_middle():
    verdict = digits(4, skipping(4))
    assert verdict.status == "not equivalent"
    assert "No step was made after batch 4, where one was due: that batch was fetched and had no" in verdict.reason
    assert "nested" not in repr(verdict)
    twice = digits(4, skipping(4, passes=2))
    assert "off-by-one" not in names(twice)
    assert "after batch 4 of each pass, where one was due: those batches were fetched" in twice.reason
    never = digits(3, skipping(3, 6, at_the_end=False))
    assert names(never) == []
    assert "after batches 3 and 6, where one was due" in never.reason
    assert "4 micro-batches had a backward, but no optimizer step was seen." in never.reason


def test_no_step_where_its_condition_was_passed_over():
    verdict = digits(4, skipping(1, 4, at_the_end=False))  # perhaps it fetches one ahead: nothing is said of places
    assert (names(verdict), verdict.status) == ([], "cannot tell")
    assert "4 micro-batches had a backward, but no optimizer step was seen." in verdict.reason
    assert "2 of the 6 batches fetched had no backward. Does a `continue` stand before" in verdict.reason
    few = digits(4, skipping(2, 4, 5, at_the_end=False))  # 3 had one, of a pass that has a full window
    assert names(few) == []
    assert "No step was made after batch 4" in few.reason


def test_a_window_that_has_its_micro_batches_misses_no_step():
    verdict = digits(4, skipping(2, 4))  # 1, 3, 5 and 6: a loop that counts what it trains on
    assert "No step was made" not in verdict.reason
    assert "2 of the 6 batches fetched had no backward." in verdict.reason


def test_what_is_left_out_is_told_once():
    assert "1 of the 6 batches fetched had no backward." in digits(4, skipping(5)).reason
    verdict = digits(4, faulty.left_out_and_counted)
    assert set(names(verdict)) & set(STATES)
    assert "fetched had no backward" not in verdict.reason
    both = digits(4, skipping(5, 6))  # a loop that passes over what it cannot use leaves the same trace
    assert (names(both), both.status) == ([], "cannot tell")
    assert "No window was made of the last 2 batches of the pass" in both.reason


def small(micro_batches):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(3 * micro_batches, 4), torch.randint(0, 3, (3 * micro_batches,)))
    return Problem(nn.Linear(4, 3), DataLoader(data, 3), ak.classification())


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
@pytest.mark.parametrize("at_the_end", [True, False])
@pytest.mark.parametrize("after_forward", [True, False])
def test_whatever_is_passed_over(steps, at_the_end, after_forward):
    """No lost micro-batch is called right while the data are over, and what is said of batches is so."""
    for bits in range(32):
        skipped = {i + 1 for i in range(5) if bits >> i & 1}
        loop = skipping(*skipped, at_the_end=at_the_end, after_forward=after_forward)
        trace = small(5).watch(loop, steps)
        verdict = ak.audit(trace)
        said = " ".join(repr(verdict).split())
        assert not (trace.lost and (verdict.ok or verdict.status.startswith("equivalent"))), skipped
        assert "ended after" not in said
        if found := re.search(r"No step was made after batch(?:es)? ([\d, and]+)", said):
            assert set(map(int, re.findall(r"\d+", found[1]))) <= skipped
        if found := re.search(r"(\d) of (?:the )?5 batches fetched had no backward", said):
            assert int(found[1]) == len(skipped), skipped
        if found := re.search(r"the last (?:(\d) micro-batches|micro-batch) of the pass (was|were) fetched", said):
            assert set(range(6 - int(found[1] or 1), 6)) <= skipped


class Stream(IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        yield from self.rows


def stream(micro_batches=6):
    problem = small(micro_batches)
    problem.loader = DataLoader(Stream(list(problem.loader.dataset)), 3)
    return problem


def test_a_stream_may_have_been_stopped_or_over():
    for loop in (skipping(6, at_the_end=False), skipping(stop=6, at_the_end=False)):
        verdict = digits(4, loop, data=stream())
        assert (names(verdict), verdict.status) == ([], "cannot tell")
        assert (
            "If the loop was stopped there, inside a window, that is no fault; if the data were over" in verdict.reason
        )
        assert "ended after" not in verdict.reason
    stopped = ak.audit(stream().watch(at_the_count(stop=5), 4))  # one more was fetched, and not trained on
    assert stopped.ok
    assert stopped.reason == "1 of the 5 batches fetched had no backward."


def at_the_count(stop):
    """Return a right loop that is stopped once it has fetched a batch more than it trains on."""

    def loop(model, loader, optimizer, steps, scheduler):
        for i, (pixels, labels) in enumerate(loader, 1):
            if i == stop:
                break
            (F.cross_entropy(model(pixels), labels) / steps).backward()
            if i % steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    return loop


def test_a_run_that_is_broken_off_is_right_so_far():
    verdict = ak.audit(small(8).watch(at_the_count(stop=7), 4))
    assert verdict.ok
    assert verdict.reason == "The last pass ended after 6 of 8 micro-batches; 2 of them waited for a step."


def test_a_loop_that_fetches_a_window_may_have_been_stopped_inside_it():
    def loop(model, loader, optimizer, steps, scheduler):
        done = 0
        for window in ak.windows(loader, steps, ak.classification()):
            for pixels, labels in window:
                if done == 5:
                    return
                (F.cross_entropy(model(pixels), labels, reduction="sum") / window.count).backward()
                done += 1
            optimizer.step()
            optimizer.zero_grad()

    verdict = ak.audit(small(6).watch(loop, 4))
    assert (names(verdict), verdict.status) == ([], "cannot tell")
    assert "1 micro-batch at the end of the run made no update, and 1 of the 6 batches fetched" in verdict.reason


def whole_windows(leave_out, cut=False):
    """Return a loop with one backward for a window; its second batch is left out, or cut off from the graph."""

    def loop(model, loader, optimizer, steps, scheduler):
        batches = iter(loader)
        while window := list(islice(batches, steps)):
            count, total = sum(len(labels) for _, labels in window), 0.0
            for i, (pixels, labels) in enumerate(window):
                if i == 1 and leave_out:
                    continue
                loss = F.cross_entropy(model(pixels), labels, reduction="sum") / count
                total = total + (loss.detach() if i == 1 and cut else loss)
            total.backward()
            optimizer.step()
            optimizer.zero_grad()

    return loop


def test_batches_that_share_a_backward_are_not_left_out():
    verdict = digits(4, whole_windows(False))
    assert verdict.ok
    assert "had no backward" not in verdict.reason
    for loop in (whole_windows(True), whole_windows(False, cut=True)):
        (finding,) = digits(4, loop).findings
        assert finding.pitfall == "skipped-micro-batch"
        assert "2 micro-batches were fetched and brought no gradient" in finding.evidence


def test_a_model_called_twice_for_a_batch():
    def loop(model, loader, optimizer, steps, scheduler):
        for i, (pixels, labels) in enumerate(loader, 1):
            (F.cross_entropy(model(pixels), labels) + F.cross_entropy(model(pixels), labels)).backward()
            if i % steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    assert set(batches_of(small(6).watch(loop, 3)).values()) == {1}


def test_the_mean_of_joined_means_is_a_guess_that_is_offered():
    def loop(model, loader, optimizer, steps, scheduler):
        batches = iter(loader)
        while window := list(islice(batches, steps)):
            torch.stack([F.cross_entropy(model(x), y) for x, y in window]).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    verdict = digits(4, loop, data=unequal_images())
    assert verdict.status == "cannot tell"
    assert "One backward was for several forward calls there: a mean of their means" in verdict.reason


def test_a_finding_hides_no_reason_why_nothing_was_measured():
    def loop(model, loader, optimizer, steps, scheduler):
        for i, (pixels, labels) in enumerate(list(zip(*[t.split(4) for t in loader.dataset.tensors], strict=True)), 1):
            F.cross_entropy(model(pixels), labels).backward()
            if i % steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    verdict = ak.audit(images(20).watch(loop, 2))
    assert names(verdict) == ["tail-dropped"]
    assert "Updates 1 and 2 could not be measured: " in verdict.reason
    assert "weighs 0 in 1 micro-batch, 4 were not measured" in " ".join(repr(verdict).split())


def test_steps_without_a_backward_are_said():
    def loop(model, loader, optimizer, steps, scheduler):
        for pixels, labels in loader:
            loss = F.cross_entropy(model(pixels), labels)
            for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
                p.grad = g
            optimizer.step()

    said = ak.audit(small(3).watch(loop, 1)).reason
    assert said.startswith("3 optimizer steps were made, but no backward was seen: only what `.backward()` adds")
    assert "nothing was trained" not in said


def test_layers_frozen_after_the_watch_began():
    def loop(model, loader, optimizer, steps, scheduler):
        next(model.parameters()).requires_grad_(False)
        skipping()(model, loader, optimizer, steps, scheduler)

    reason = ak.audit(small(4).watch(loop, 2)).reason
    assert "the parameters that require a gradient are others than when the watch began" in reason
    assert "RuntimeError" not in reason


def test_windows_of_another_number_need_no_condition():
    def loop(model, loader, optimizer, steps, scheduler):
        for window in ak.windows(loader, 3, ak.classification()):
            for pixels, labels in window:
                (F.cross_entropy(model(pixels), labels, reduction="sum") / window.count).backward()
            optimizer.step()
            optimizer.zero_grad()

    (finding,) = digits(4, loop).findings
    assert finding.pitfall == "off-by-one"
    assert finding.fix.startswith("end a window after every 4 micro-batches")
    assert "or is the one given to `ak.windows` or `islice`" in finding.fix


def test_a_sum_over_a_constant_says_why_weights_differ():
    verdict = digits(4, skipping())
    assert verdict.status == "equivalent up to scale"
    assert "Every example counts the same over the whole run, and its loss counts 0.111 times" in verdict.reason
    assert (
        "Weights differ only because each is measured against the mean of its own update, and updates" in verdict.reason
    )
    assert "Weights differ" not in digits(4, skipping(), data=small(8)).reason


def test_how_often_statistics_move_where_windows_differ():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)).double()

    def loop(model, loader, optimizer, steps, scheduler):
        ak.train_epoch(model, loader, optimizer, ak.classification(), accumulation_steps=steps)

    moved = digits(4, loop, data=images(24, model=model)).findings[1]
    assert "move 3 times an update on average: their" in moved.evidence


def test_one_lost_micro_batch_in_the_table_of_a_trace():
    trace = images(20).watch(skipping(at_the_end=False), 4)
    assert repr(trace).endswith("in no update: 1 micro-batch, 4 examples")


def verdict_of(loop, batches, steps, passes, tail="step"):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(2 * batches, 4), torch.randint(0, 3, (2 * batches,)))
    loader = DataLoader(data, batch_size=2)
    with ak.watch(model, ak.classification(), accumulation_steps=steps, tail=tail) as trace:
        for _ in range(passes):
            for i, (x, y) in enumerate(loop(loader), 1):
                (F.cross_entropy(model(x), y) / steps).backward()
                if i % steps == 0:
                    optimizer.step()
                    optimizer.zero_grad()
    return ak.audit(trace)


def without_the_first(loader):
    iterator = iter(loader)
    next(iterator)
    return iterator


def test_every_other_batch_is_not_the_same_window_again():
    verdict = verdict_of(lambda loader: (batch for i, batch in enumerate(loader) if i % 2 == 0), 8, 4, 3)
    assert verdict.ok and verdict.reason == "12 of the 24 batches fetched had no backward."


def test_a_first_batch_that_is_passed_over_is_not_called_the_last():
    verdict = verdict_of(without_the_first, 9, 4, 2)
    assert verdict.ok and verdict.reason == "2 of the 18 batches fetched had no backward."


def test_a_count_of_batches_that_may_be_more_says_so():
    def broken_off(loader):
        for i, batch in enumerate(loader):
            if i == 8:
                return
            yield batch

    verdict = verdict_of(broken_off, 10, 4, 2, tail="drop")
    assert verdict.ok and "At least 1 of the 18 batches fetched had no backward." in verdict.reason


def test_one_update_is_named_once():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.randn(n, 4), torch.randint(0, 3, (n,))) for n in (2, 2, 4, 2)]
    with ak.watch(model, ak.classification(), accumulation_steps=2) as trace:
        for i, (x, y) in enumerate(trace.batches(batches), 1):
            (F.cross_entropy(model(x), y) / 2).backward()
            if i % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
    (finding,) = ak.audit(trace).findings
    assert finding.evidence.count("update 2") == 1
