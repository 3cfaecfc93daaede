"""Panels: driven by setting values, as a slider does."""

from __future__ import annotations

import ipywidgets as widgets
import matplotlib.pyplot as plt
import pytest
import torch

from accumkit import panels
from accumkit.panels import base
from accumkit.panels.one_update import COARSE, MORE, compare

MAKERS = [panels.start_here, panels.one_update]


@pytest.fixture(autouse=True)
def pyplot_knows_nothing():
    yield
    assert plt.get_fignums() == []


def tree(widget):
    yield widget
    for child in getattr(widget, "children", ()):
        yield from tree(child)


@pytest.mark.parametrize("make", MAKERS)
def test_one_tree_of_core_widgets_each_control_with_its_description(make):
    panel = make(strict=True)
    for widget in tree(panel):
        assert widget._model_module in ("@jupyter-widgets/base", "@jupyter-widgets/controls")
        assert "description" not in widget.keys or isinstance(widget, widgets.HTML) or widget.description
    assert all(isinstance(widget, widgets.Widget) for widget in panel.controls.values())


@pytest.mark.parametrize("make", MAKERS)
def test_pictures_have_their_sentence_as_alternative_text(make):
    panel = make(strict=True)
    for picture in panel.answered.pictures:
        alt = picture.split('<img alt="')[1].split('"')[0]
        assert len(alt) > 20 and f">{alt}</figcaption>" in picture
    assert 'role="status"' in panel.sentence.value


def test_start_here_answers_its_slider():
    panel = panels.start_here(strict=True)
    steps = panel.controls["accumulation_steps"]
    for n, sizes in (
        (1, "8 updates: 7 of 4 examples and 1 of 2"),
        (3, "3 updates, of 12, 12 and 6 examples"),
        (8, "1 update of 30 examples"),
    ):
        before = panel.pictures.value
        steps.value = n
        assert panel.answered.sentence.startswith(f"N = {n}: 30 examples in 8 micro-batches of at most 4 make {sizes}.")
        assert panel.pictures.value != before and panel.answered.sentence in panel.sentence.value


@pytest.mark.parametrize("size", [1, 3, 16])
@pytest.mark.parametrize("steps", [1, 3, 8])
@pytest.mark.parametrize("examples", [1, 19, 48])
def test_every_corner_of_one_update_is_a_fine_setting(size, steps, examples):
    result = compare(size, steps, examples)
    window = size * steps
    assert list(result.sizes) == [min(window, examples - i) for i in range(0, examples, window)]
    assert max(result.differences) < 1e-12
    assert {round(m.weight, 6) for u in result.trace.updates for m in u.micro_batches} == {1.0}


def test_one_update_says_its_numbers():
    panel = panels.one_update(strict=True)
    assert panel.answered.sentence == (
        "19 examples in 5 micro-batches of at most 4, N = 3: 2 updates, of 12 and 7 examples. "
        "Relative difference between accumulated and big-batch gradients: below 1e-12."
    )
    panel.controls["micro_batch_size"].value = 16
    panel.controls["examples"].value = 3
    assert panel.answered.sentence.startswith("3 examples in 1 micro-batch of 3, N = 3: 1 update of 3 examples.")
    panel.controls["dtype"].value = "float32"
    assert panel.answered.sentence.endswith("below 1e-5.")
    panel.controls["micro_batch_size"].value = 1
    panel.controls["examples"].value = 48
    assert panel.answered.sentence.startswith(
        "48 examples in 48 micro-batches of 1, N = 3: 16 updates of 3 examples each."
    )
    panel.controls["accumulation_steps"].value = 5
    assert "N = 5: 10 updates: 9 of 5 examples and 1 of 3." in panel.answered.sentence


def test_the_comparison_can_fail(monkeypatch):
    from accumkit.objective import Objective

    total = Objective.total
    monkeypatch.setattr(Objective, "total", lambda self, model, batch: total(self, model, batch) / len(batch[1]))
    panel = panels.one_update(strict=True)
    assert "below" not in panel.answered.sentence, "a loop that averages differs from the big batch, and it shows"


def test_prediction_waits_for_what_it_names_then_compares():
    panel = panels.one_update(strict=True)
    (prediction,) = [widget for widget in tree(panel) if isinstance(widget, panels.Prediction)]
    assert prediction.said == "" and prediction.choices.value is None
    prediction.choices.value = MORE
    assert prediction.said == "You predict: N = 8. Now try it; not set so far: N = 8, 17 examples and float32."
    panel.controls["accumulation_steps"].value = 8
    assert prediction.said.endswith("not set so far: 17 examples and float32.")
    panel.controls["dtype"].value = "float32"
    panel.controls["examples"].value = 17
    assert prediction.said.endswith("not set so far: 17 examples."), "in float32 it says nothing of the examples"
    panel.controls["dtype"].value = "float64"
    assert prediction.said == (
        "The relative difference was below 1e-12 with N = 8, below 1e-12 with 17 examples and below 1e-5 with "
        "float32. However the examples are grouped, only rounding is left, and that depends on the precision: not "
        "what you predicted (N = 8)."
    )
    prediction.choices.value = COARSE
    assert prediction.said.endswith("as you predicted.") and prediction.said in prediction.reply.value


def test_device_is_a_choice_where_cuda_is(monkeypatch):
    assert ("device" in panels.one_update(strict=True).controls) == torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    panel = panels.one_update(strict=True)
    assert panel.controls["device"].options == ("cpu", "cuda") and panel.settings["device"] == "cpu"


def failing(strict, at=3):
    def answer(n):
        if n == at:
            raise ValueError("three <is> too many")
        return panels.Answer(f"n is {n}", ("<p>picture</p>",))

    return panels.Panel("failing", {"n": panels.slider("N", 2, 1, 4)}, answer, strict=strict)


def test_an_error_is_told_and_the_old_picture_greyed():
    panel = failing(strict=False)
    panel.controls["n"].value = 3
    assert "This setting failed: ValueError: three &lt;is&gt; too many." in panel.status.value
    assert "belongs to the last setting that worked: N 2." in panel.status.value
    assert 'role="status"' in panel.status.value
    assert panel.pictures.value == '<div style="opacity:.4"><p>picture</p></div>' and "opacity" in panel.sentence.value
    panel.controls["n"].value = 4
    assert panel.status.value == "" and panel.pictures.value == "<p>picture</p>" and "n is 4" in panel.sentence.value


def test_an_error_at_the_first_drawing_leaves_a_message_and_no_picture():
    panel = failing(strict=False, at=2)
    assert panel.answered is None and panel.pictures.value == "" and "too many" in panel.status.value
    assert "too many" in panel.still()["text/plain"]


def test_strict_panels_raise(monkeypatch):
    panel = failing(strict=True)
    with pytest.raises(ValueError, match="too many"):
        panel.controls["n"].value = 3
    assert "too many" in panel.status.value
    monkeypatch.setenv(base.STRICT, "1")
    with pytest.raises(ValueError, match="too many"):
        failing(strict=None).controls["n"].value = 3


def test_the_latest_setting_wins():
    asked = []

    def answer(n):
        asked.append(n)
        if n == 2 and len(asked) > 1:
            panel.controls["n"].value = 4  # the reader moves on while this answer is worked out
        return panels.Answer(f"n is {n}", ())

    panel = panels.Panel("late", {"n": panels.slider("N", 1, 1, 4)}, answer, strict=True)
    panel.controls["n"].value = 2
    assert asked == [1, 2, 4] and panel.answered.sentence == "n is 4"


def test_an_answer_overtaken_by_a_later_setting_does_not_report_its_error():
    def answer(n):
        if n == 2:
            panel.controls["n"].value = 4
            raise ValueError("out of date")
        return panels.Answer(f"n is {n}", ())

    panel = panels.Panel("late", {"n": panels.slider("N", 1, 1, 4)}, answer, strict=True)
    panel.controls["n"].value = 2
    assert panel.answered.sentence == "n is 4" and panel.status.value == ""


@pytest.mark.parametrize("make", MAKERS)
def test_view_and_still_are_two_outputs_and_the_still_hides_where_the_panel_lives(make, monkeypatch):
    shown = []
    monkeypatch.setattr(base, "display", lambda data, raw: shown.append(data))
    panel = make(strict=True)
    panel._ipython_display_()
    view, still = shown
    assert "application/vnd.jupyter.widget-view+json" in view and "text/html" not in view
    assert set(still) == {"text/plain", "text/html"} and still["text/plain"] == panel.answered.sentence
    assert "<img alt=" in still["text/html"] and "<script" not in still["text/html"]
    name = f"accumkit-still-{panel.slug}"
    assert f'class="{name}"' in still["text/html"]
    styles = [widget.value for widget in tree(panel) if isinstance(widget, widgets.HTML) and "<style>" in widget.value]
    assert styles == [f"<style>.{name}{{display:none}}</style>"]


@pytest.mark.parametrize("make", MAKERS)
def test_a_still_is_the_same_every_time(make):
    assert make(strict=True).still() == make(strict=True).still()


def test_panels_leave_the_random_state_alone():
    before = torch.get_rng_state()
    panels.one_update(strict=True).controls["examples"].value = 20
    assert torch.equal(before, torch.get_rng_state())
