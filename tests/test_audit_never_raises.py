"""An audit gives a verdict on whatever a trace holds: nothing in it divides by 0, or takes the least of nothing."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import accumkit as ak
from accumkit.trace.record import EVENT_KINDS, FATES, Event, MicroBatch, RunningStatistics, Trace, Update

LINES = (None, "train.py:4", "train.py:9", "cell 3, line 2")
NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.25, 4.0, 1e-9, -1.4e-8, 1e12, nan, inf)

lines = st.sampled_from(LINES)
number = st.sampled_from(NUMBERS)
perhaps = st.none() | number
counts = st.none() | st.sampled_from((0, 0.0, 1, 2, 4, 7, 2.5, 1e-30, 1e30))


@st.composite
def traces(draw):
    """Any trace that the records can hold, whether a loop could make it or not."""
    steps = draw(st.integers(1, 4))
    measured = draw(st.booleans())
    trace = Trace(
        steps,
        tail=draw(st.sampled_from(("step", "drop"))),
        unit=draw(st.sampled_from(("examples", "tokens", "class weights", "values"))) if measured else None,
        precision=draw(st.sampled_from(("float64", "float32", "bfloat16"))),
    )
    passes = draw(st.integers(1, 3))
    ran = [0] * passes
    index = 0
    fair, plain = draw(st.booleans()), draw(st.booleans())  # else shares, and all the rest, are any numbers
    means = draw(st.booleans())  # each micro-batch counts alike

    def micro_batch(epoch, total, size):
        nonlocal index
        count = draw(counts) if not fair else size
        part = 0.5 if means else (count or 0) / (total or 1)
        share = draw(st.sampled_from((1.0, 1.0, 1.0, 4.0, 0.0))) * part if fair else draw(perhaps)
        made = MicroBatch(
            index=index, epoch=epoch, examples=draw(st.sampled_from((size, size, 0, 1, 5))),
            count=count if measured else None, share=share if measured else None,
            fair_share=(count / total if total and count is not None else draw(perhaps)) if measured else None,
            fate=draw(st.sampled_from(FATES[:3])) if draw(st.booleans()) else "kept", location=draw(lines),
            repeats=draw(st.none() | st.integers(0, index)) if index else None, scale=draw(st.none() | number),
            touched=draw(st.none() | number), touched_norm=draw(st.none() | number),
        )  # fmt: skip
        trace.events.extend(
            Event(kind, index, draw(lines), draw(perhaps))
            for kind in draw(st.lists(st.sampled_from(EVENT_KINDS), max_size=0 if plain else 4))
        )
        ran[epoch] += 1
        index += 1
        return made if not plain else made._replace(fate="kept", repeats=None, scale=None, touched=None)

    for number_ in range(draw(st.integers(0, 4))):
        epoch = min(passes - 1, number_ * passes // 4)
        sizes = draw(st.lists(st.sampled_from((0, 1, 4, 4, 4, 6)), max_size=2 * steps + 1))
        members = tuple(micro_batch(epoch, sum(sizes), size) for size in sizes)
        first = members[0].index if members else 0
        members = tuple(m if m.repeats is None or m.repeats >= first else m._replace(repeats=None) for m in members)
        trace.events.append(Event(draw(st.sampled_from(("step", "skipped step"))), index - 1, draw(lines)))
        update = Update(
                number_, epoch, members, draw(counts), draw(perhaps), draw(perhaps), draw(perhaps), draw(perhaps),
                auxiliary=draw(perhaps), carried=draw(number), grad_norm=draw(perhaps), clip_factor=draw(perhaps),
                expected_clip_factor=draw(perhaps), max_norm=draw(perhaps), clip_scale=draw(perhaps),
                hand_scaled=draw(perhaps), fed_again=draw(st.none() | st.booleans()),
            unused=draw(st.integers(0, 2)), drew=draw(st.integers(0, 4)),
                masks_repeated=draw(st.integers(0, 2)), skipped=draw(st.booleans()),
                scaler=draw(st.none() | st.integers(0, 1)), sum_error=draw(perhaps), one_rounding=draw(perhaps),
                floor=draw(perhaps), location=draw(lines), why=draw(st.none() | st.just("the gradient is not finite")),
        )  # fmt: skip
        if plain:
            update = Update(number_, epoch, members, sum(m.count or 0 for m in members), location=update.location)
        trace.updates.append(update)
    for _ in range(draw(st.integers(0, 3))):
        trace.lost.append(micro_batch(passes - 1, draw(counts), 4)._replace(fate="lost", repeats=None))
    trace.epoch_sizes = ran
    trace.fetched_sizes = [draw(st.integers(-1, 3)) + n for n in ran]
    trace.loader_sizes = [draw(st.sampled_from((-1, 0, n, n + 3))) for n in ran]
    trace.scalers = [None, "train.py:2"]
    if plain:
        return trace
    trace.graphs_kept, trace.graphs_retained = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    trace.coupled = draw(st.sampled_from(([], ["examples"], ["1"], [""])))
    trace.running = draw(st.sampled_from(([], [RunningStatistics("1", 0.1, 7)], [RunningStatistics("", None, 3)])))
    trace.reasons = draw(st.sampled_from(([], ["something was not seen"])))
    return trace


def of_windows(*windows, unit="examples", steps=2) -> Trace:
    """A trace of windows, each a list of (examples, count, share)."""
    trace, index = Trace(steps, unit=unit, precision="float64"), 0
    for number_, window in enumerate(windows):
        total = sum(count for _, count, _ in window)
        members = []
        for examples, count, share in window:
            fair = count / total if total else None
            members.append(MicroBatch(index, 0, examples, count, share, fair, "kept", "train.py:4"))
            index += 1
        trace.updates.append(Update(number_, 0, tuple(members), total))
    trace.epoch_sizes = trace.fetched_sizes = trace.loader_sizes = [index]
    return trace


@given(traces())
@settings(max_examples=300, deadline=None)
def test_whatever_the_trace(trace):
    verdict = ak.audit(trace)
    assert verdict.status in ("equivalent", "equivalent up to scale", "not equivalent", "cannot tell")
    assert repr(verdict)
    assert verdict.ok <= (verdict.status == "equivalent" and not verdict.findings)


@given(traces())
@settings(max_examples=30, deadline=None)
def test_whatever_is_drawn(trace):
    assert ak.audit(trace)._repr_html_()


@pytest.mark.parametrize("unit", ["examples", "tokens", "class weights"])
@pytest.mark.parametrize(
    "windows",
    [
        [[(0, 4, 0.5), (0, 4, 0.5)]],  # inputs whose examples cannot be counted
        [[(0, 4, 0.3), (0, 2, 0.7)]],
        [[(4, 4, 0.0), (4, 2, 0.0)], [(4, 4, 0.5), (2, 2, 0.5)]],
        [[(4, 4, 0.0), (4, 2, 1.0)]],
        [[(4, 0, 0.0), (4, 0, 0.0)]],
        [[(4, 0, 0.0)], [(4, 4, 1.0)]],
        [[(0, 0, 0.0), (0, 4, 0.9)]],
        [[]],
    ],
)
def test_nothing_to_divide_by(windows, unit):
    assert repr(ak.audit(of_windows(*windows, unit=unit)))
