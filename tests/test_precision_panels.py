"""Pictures and panels of mixed precision: what is drawn, what is said, and what the controls do."""

from __future__ import annotations

import itertools
import math

import ipywidgets as widgets
import matplotlib.pyplot as plt
import pytest

from accumkit import panels
from accumkit.figures import palette
from accumkit.figures.precision import draw_order, draw_sums, order_picture, sums_picture
from accumkit.figures.precision_words import describe_order, describe_sums
from accumkit.panels.precision import GROWS, SAME, SHORT
from accumkit.studies import precision

RIGHT = ("unscale", "clip", "step", "update")
EARLY = ("clip", "unscale", "step", "update")


@pytest.fixture(autouse=True)
def pyplot_knows_nothing():
    yield
    assert plt.get_fignums() == []


@pytest.fixture(scope="module")
def sums():
    return precision.sums()


def drawn(draw, *args):
    figure = palette.new_figure(9, 3.75)
    axes = palette.bare_axes(figure, 0, 0, 648, 270)
    draw(axes, *args)
    return axes


def texts(axes, gid):
    return [t.get_text() for t in sorted(axes.texts, key=lambda t: t.get_position()[0]) if t.get_gid() == gid]


def of(artists, gid):
    return [a for a in artists if (a.get_gid() or "") == gid]


# pictures
def test_hatched_is_where_a_scale_is_in_the_gradients():
    axes = drawn(draw_order, precision.run_order(EARLY, windows=2))
    assert len(of(axes.patches, "scaled")) == 2 * 5  # four backward calls and the clip, in each window
    assert {p.get_hatch() for p in of(axes.patches, "scaled")} == {"//"}
    assert len(of(axes.lines, "mark scaled")) == 10
    assert len(of(axes.lines, "mark true")) == 6
    assert {m.get_marker() for m in of(axes.lines, "mark scaled")} == {"D"}
    assert {m.get_marker() for m in of(axes.lines, "mark true")} == {"o", "^"}  # the step is a triangle
    assert texts(axes, "call") == list(EARLY) * 2
    assert texts(axes, "update") == ["update x 1/65,536"] * 2
    assert texts(axes, "title") == ["window 1", "window 2"]
    assert texts(axes, "number") == ["1", "2", "3", "4"] * 2


def test_heights_are_lengths_on_a_logarithmic_scale():
    order = precision.run_order(RIGHT, windows=1)
    axes = drawn(draw_order, order)
    (path,) = of(axes.lines, "order")
    ys = path.get_ydata()
    logs = [math.log10(m.norm) for m in order.moments]
    steps = [(a - b) / (c - d) for a, b, c, d in zip(ys, ys[1:], logs, logs[1:], strict=False) if abs(c - d) > 0.05]
    assert max(steps) == pytest.approx(min(steps), rel=1e-6)
    (true,) = of(axes.lines, "true 0")
    assert true.get_ydata()[0] == pytest.approx(ys[4]), "after unscale the length is the true one"
    (limit,) = of(axes.lines, "limit")
    assert limit.get_ydata()[0] == pytest.approx(ys[5], abs=1e-3), "and after the clip it is max_norm"
    assert texts(axes, "update") == ["update right"]


def test_a_refusal_is_drawn_where_it_came():
    axes = drawn(draw_order, precision.run_order(("unscale", "clip", "update", "step"), windows=2))
    assert len(of(axes.lines, "refused")) == 1
    assert texts(axes, "word")[0] == "refused"
    assert texts(axes, "call") == ["unscale", "clip", "update", "step", "unscale"]


@pytest.mark.parametrize("calls", list(itertools.permutations(precision.CALLS)), ids=", ".join)
def test_every_order_fits_and_has_words(calls):
    for settings in ({}, {"max_norm": math.inf, "accumulation_steps": 8}, {"scale": 2.0**24, "accumulation_steps": 1},
                     {"precision": "float16 autocast", "scale": 2.0**24}):  # fmt: skip
        order = precision.run_order(calls, windows=2, **settings)
        axes = drawn(draw_order, order)
        for text in axes.texts:
            x, y = text.get_position()
            assert 0 <= x <= 648 and 0 <= y <= 270, text.get_text()
        assert len(describe_order(order)) > 40


def test_words_say_what_was_seen():
    assert describe_order(precision.run_order(EARLY, windows=1)) == (
        "Window 1: clipping saw a length of 47,035, where the true one is 0.718; the update has 1/65,536 times the "
        "right length."
    )
    skipped = precision.run_order(EARLY, windows=1, precision="float16 autocast", scale=2.0**24)
    assert describe_order(skipped) == (
        "Window 1: clipping saw a length that is not finite; the step was skipped, as a gradient was not finite."
    )
    late = describe_order(precision.run_order(("unscale", "step", "clip", "update"), windows=1))
    assert "the clip comes after the step, which it cannot change; the update has 2.9 times" in late
    refused = describe_order(precision.run_order(("update", *EARLY[:3]), windows=1))
    assert refused == "Torch refuses update in window 1: No inf checks were recorded prior to update."


def test_curves_of_sums(sums):
    axes = drawn(draw_sums, sums, 64)
    for field in ("in_grad", "one_rounding", "in_float32"):
        (line,) = of(axes.lines, field)
        ys = line.get_ydata()
        errors = [getattr(row, field) for row in sums.rows]
        order = sorted(range(len(errors)), key=lambda i: max(errors[i], 1e-9))
        assert [ys[i] for i in order] == sorted(ys)
    assert texts(axes, "n") == [str(row.micro_batches) for row in sums.rows]
    assert len(of(axes.texts, "error")) == 1
    said = describe_sums(sums, 64)
    assert said.startswith("After 64 micro-batches the sum in bfloat16 is off by 0.008 of its length, ")
    assert "in float32 by less than 1e-6" in said
    assert describe_sums(sums, 1).startswith("After 1 micro-batch the sum in bfloat16 is off by 0 of its length; in")


def test_pictures_have_their_words_as_alternative_text(sums):
    html = order_picture().html(precision.run_order(RIGHT, windows=1))
    assert 'alt="Window 1: clipping saw a length of 0.718, which is the true one' in html
    assert "base64" in sums_picture().html((sums, 16))


# panels
def calls_of(panel):
    return tuple(sorted(precision.CALLS, key=lambda call: panel.controls[call].value))


def put(panel, calls):
    for place, call in enumerate(calls):
        panel.controls[call].value = place


def test_a_call_that_moves_makes_the_others_move_up():
    panel = panels.call_order(strict=True)
    assert calls_of(panel) == RIGHT
    panel.controls["unscale"].value = 3  # in one jump, as a drag may be
    assert calls_of(panel) == ("clip", "step", "update", "unscale")
    for place in (2, 1, 0):  # step by step, as the arrow keys go
        panel.controls["unscale"].value = place
    assert calls_of(panel) == RIGHT
    panel.controls["update"].value = 1
    assert calls_of(panel) == ("unscale", "update", "clip", "step")
    assert sorted(panel.controls[call].value for call in precision.CALLS) == [0, 1, 2, 3]
    assert panel.answered.sentence == (
        "unscale, update, clip, step at scale 65,536, N = 4: refused by torch, but only in the second window."
    )


def test_every_order_can_be_reached_and_says_what_the_study_says():
    panel = panels.call_order(strict=True)
    said = {
        "right": "right.",
        "refused": "refused by torch.",
        "refused later": "refused by torch, but only in the second window.",
        "not clipped": "accepted, and nothing is clipped.",
        "silent": "accepted in silence, and wrong.",
    }
    for calls in itertools.permutations(precision.CALLS):
        put(panel, calls)
        assert calls_of(panel) == calls
        kind = precision.run_order(calls, windows=2).kind
        assert panel.answered.sentence == f"{', '.join(calls)} at scale 65,536, N = 4: {said[kind]}"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("scale", 1.0, "at scale 1, N = 4: right."),
        ("scale", 2.0**24, "scale 16,777,216"),
        ("max_norm", math.inf, "right."),
        ("steps", 8, "N = 8: right."),
        ("steps", 1, "N = 1: right."),
        ("precision", "bfloat16 autocast", "right."),
    ],
)
def test_controls(name, value, says):
    panel = panels.call_order(strict=True)
    before = panel.pictures.value
    panel.controls[name].value = value
    assert says in panel.answered.sentence
    assert panel.pictures.value != before


def test_float16_with_too_large_a_scale_is_skipped():
    panel = panels.call_order(strict=True)
    panel.controls["precision"].value = "float16 autocast"
    panel.controls["scale"].value = 2.0**24
    assert "every step is skipped" in panel.answered.sentence


def tree(widget):
    yield widget
    for child in getattr(widget, "children", ()):
        yield from tree(child)


@pytest.mark.parametrize("make", [panels.call_order, panels.low_sums])
def test_core_widgets_each_with_its_description_and_a_still(make):
    panel = make(strict=True)
    for widget in tree(panel):
        assert widget._model_module in ("@jupyter-widgets/base", "@jupyter-widgets/controls")
        assert "description" not in widget.keys or isinstance(widget, widgets.HTML) or widget.description
    still = panel.still()
    assert panel.answered.sentence in still["text/plain"]
    assert 'alt="' in still["text/html"]


def test_the_prediction_on_order_waits_for_a_scaled_clip():
    panel = panels.call_order(strict=True)
    (prediction,) = [w for w in tree(panel) if isinstance(w, panels.Prediction)]
    prediction.choices.value = SAME
    assert prediction.said == f"You predict: {SAME}. Now put clip before unscale."
    panel.controls["clip"].value = 0
    assert (
        prediction.said
        == f"At scale 65,536 the update had 1/65,536 times the right length, not what you predicted ({SAME})."
    )
    prediction.choices.value = SHORT
    assert prediction.said.endswith("as you predicted.")


def test_the_prediction_on_sums_waits_for_three_values():
    panel = panels.low_sums(strict=True)
    (prediction,) = [w for w in tree(panel) if isinstance(w, panels.Prediction)]
    prediction.choices.value = GROWS
    assert prediction.said.endswith("Now move N to a few values.")
    for n in (16, 1024):
        panel.controls["n"].value = n
    assert prediction.said == (
        "For N = 16, 64 and 1024 the sum in bfloat16 is off by 0.005, 0.008 and 0.2: it grows, as you predicted."
    )
    panel.controls["dtype"].value = "float16"
    assert panel.answered.sentence.startswith("1,024 gradients added up in float16: off by 0.004")
    panel.controls["n"].value = 1
    assert panel.answered.sentence == "1 gradient added up in float16: off by 0; in float32: below 1e-6."
