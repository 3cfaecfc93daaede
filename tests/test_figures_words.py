"""What the pictures say in words."""

from __future__ import annotations

import pytest

from accumkit import figures
from accumkit.figures.numbers import grouped, number
from tests import hand_traces as hand
from tests.hand_traces import trace_of

WEIGHTS = {
    "RIGHT": "Every example weighs 1, which is fair: 12 examples in update 1 and 7 in update 2.",
    "MISSING": "In update 1 one example weighs 3 instead of 1; in update 2 one example weighs 1.75 in a micro-batch of "
    "4 and 2.33 in a micro-batch of 3.",
    "TAIL": "In update 1 every example weighs 1, which is fair; in update 2 one example weighs 0.583 in a micro-batch "
    "of 4 and 0.778 in a micro-batch of 3.",
    "DROPPED": "Every example in an update weighs 1, which is fair: 12 examples in update 1; 7 of 19 examples "
    "(micro-batches 4 and 5) are lost: they are in no update.",
    "LEAKED": "In updates 1 and 3 every example weighs 1, which is fair; in update 2 one example weighs 0.5 instead of "
    "1, and micro-batches 4 and 5 leaked in from the epoch before, one of their examples weighing 1.5.",
    "ERASED": "In update 1 one example weighs 1, and the 8 examples of micro-batches 1 and 2 are erased before the "
    "step and weigh 0; in update 2 one example weighs 1, and the 4 examples of micro-batch 4 are erased before the "
    "step and weigh 0.",
    "TINY": "In updates 1 and 2 one example weighs 0.00002 instead of 1.",
    "HUGE": "In update 1 one example weighs 65,536 instead of 1; in update 2 one example weighs 3 in a micro-batch of "
    "4 and 0.00002 in a micro-batch of 3.",
    "UNMEASURED": "In updates 1 and 2 the weights were not measured.",
    "NARROW": "In update 1 one example weighs between 1 and 1.25; in updates 2 and 3 every example weighs 1, which is "
    "fair.",
    "MANY": "In updates 1 to 299 every example weighs 1, which is fair; in update 300 one example weighs 0.5 instead "
    "of 1.",
    "TOKENS": "In update 1 one token weighs 0.7 in a micro-batch of 310, 1.4 in a micro-batch of 120 and 1.02 in a "
    "micro-batch of 212; in update 2 every token weighs 1, which is fair.",
    "NOTHING": "No micro-batch was seen, so there is nothing to weigh.",
}

TIMELINES = {
    "RIGHT": "Backward runs for 5 micro-batches; the optimizer steps after micro-batches 3 and 5, at the end of "
    "windows of 3 and 2; zero_grad runs twice.",
    "DROPPED": "Backward runs for 5 micro-batches; the optimizer steps after micro-batch 3, at the end of a window of "
    "3; zero_grad runs once; micro-batches 4 and 5 are in no update.",
    "MANY": "Backward runs for 1,198 micro-batches; the optimizer steps 300 times, at the end of windows of 4 (299 "
    "times) and 2 (once); zero_grad runs 300 times.",
    "NOTHING": "No backward was seen, so there is no timeline.",
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_in_words(name):
    assert figures.describe_weights(getattr(hand, name)) == WEIGHTS[name]


@pytest.mark.parametrize("name", TIMELINES)
def test_timeline_in_words(name):
    assert figures.describe_timeline(getattr(hand, name)) == TIMELINES[name]


def test_many_different_windows_are_summed_up():
    said = figures.describe_weights(trace_of([[(4, 1 + i / 10)] for i in range(20)], steps=1))
    assert said == "1 of 20 updates are fair; in updates 2 to 20 one example weighs between 1.1 and 2.9."


def test_many_fair_windows_of_different_sizes():
    said = figures.describe_weights(trace_of([[(4, 1)] * 2] * 9 + [[(3, 1)]], steps=2))
    assert said == "Every example weighs 1, which is fair: 3 to 8 examples in each of 10 updates."


def test_a_constant_chosen_on_purpose_is_stated():
    said = figures.describe_weights(trace_of([[(4, 8), (4, 8)]]), up_to_scale=True)
    assert said.endswith("the weights differ from 1 by a constant, not from each other.")


def test_why_weights_were_not_measured():

    trace = trace_of([[(4, None)]])
    trace.updates[0] = trace.updates[0]._replace(why="no objective was given")
    assert figures.describe_weights(trace) == "In update 1 the weights were not measured (no objective was given)."


def test_a_half_reads_the_same_whatever_its_last_bits():
    assert {number(1.875 + error) for error in (0, 1e-12, -1e-12, -1e-7)} == {"1.88"}


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ([3] * 16, "16 updates of 3 examples each"),
        ([5] * 9 + [3], "10 updates: 9 of 5 examples and 1 of 3"),
        ([12, 7], "2 updates, of 12 and 7 examples"),
        ([8, 8, 1], "3 updates: 2 of 8 examples and 1 of 1"),
        ([4], "1 update of 4 examples"),
        ([1], "1 update of 1 example"),
    ],
)
def test_groups_as_one_would_say_them(sizes, said):
    assert grouped(sizes, "updates", "examples") == said
