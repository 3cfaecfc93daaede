"""The pitfall panel: driven by setting values, as a reader's keys do."""

from __future__ import annotations

import ipywidgets as widgets
import matplotlib.pyplot as plt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accumkit import AccumkitError, panels, pitfalls
from accumkit.panels import base, effects
from accumkit.panels import pitfalls as make
from accumkit.panels.effects import LARGE, LOST, NOTHING, SMALL, UNEQUAL
from accumkit.pitfalls import CATALOG

EFFECTS = {
    "missing-division": {LARGE}, "double-division": {SMALL}, "tail-divisor": {SMALL}, "nested-accumulation": {SMALL},
    "tail-dropped": {LOST}, "tail-leaked": {LARGE, LOST}, "zero-every-micro-batch": {SMALL, LOST},
    "stale-gradients": {LARGE}, "validation-erases": {SMALL, LOST}, "mean-of-means": {UNEQUAL},
    "token-weighting": {UNEQUAL}, "class-weighting": {UNEQUAL}, "skipped-micro-batch": {SMALL},
    "clip-every-micro-batch": {SMALL, UNEQUAL}, "clip-before-unscale": {SMALL},
    "scale-changed-in-window": {LARGE, UNEQUAL}, "missing-scaler-update": {LOST}, "data-reused": {LOST},
}  # fmt: skip


@pytest.fixture(autouse=True)
def pyplot_knows_nothing():
    yield
    assert plt.get_fignums() == []


@pytest.fixture
def panel():
    return make("missing-division", "tail-dropped", strict=True)


def tree(widget):
    yield widget
    for child in getattr(widget, "children", ()):
        yield from tree(child)


def predict(panel, guess=LARGE):
    panel.prediction.choices.value = guess


def test_the_catalog_of_effects_is_complete():
    assert {slug: set(effects.effects(pitfalls.simulate(slug))) for slug in CATALOG} == {
        slug: EFFECTS.get(slug, {NOTHING}) for slug in CATALOG
    }


def test_nothing_is_told_before_the_prediction(panel):
    assert panel.answered.sentence.startswith("So far the right loop, N = 4, 19 examples in micro-batches of 4.")
    assert "Every example weighs 1" in panel.answered.sentence
    assert panel.timeline.value == panel.why.value == panel.prediction.said == ""
    assert panel.controls["mended"].disabled
    told = panel.code.value + panel.pictures.value + panel.sentence.value
    assert "the audit:" not in told
    assert "not fair" not in told
    predict(panel)
    assert "not fair" in panel.answered.pictures[0] or "weighs 4 instead of 1" in panel.answered.pictures[0]
    assert panel.answered.sentence.endswith("The audit: not equivalent; it names missing-division at line 11.")
    assert "◂ the audit: missing-division" in panel.code.value
    assert panel.timeline.value == panel.answered.pictures[1]
    assert "<b>What to change:</b>" in panel.why.value
    assert not panel.controls["mended"].disabled


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (LARGE, "As you predicted: too large (an update gets more than it should)."),
        (LOST, "You predicted: lost. Measured: too large (an update gets more than it should)."),
    ],
)
def test_a_prediction_is_answered_by_what_was_measured(panel, guess, said):
    predict(panel, guess)
    assert panel.prediction.said == said
    assert said in panel.prediction.reply.value.replace("&#x27;", "'")


def test_other_replies():
    assert effects.reply(LOST, pitfalls.simulate("tail-leaked")).startswith(
        "As you predicted: lost (some examples reach no update). And also: too large"
    )
    assert effects.reply(LARGE, pitfalls.simulate("off-by-one")).endswith("What goes wrong is elsewhere.")
    assert "is not a number" in effects.reply(LARGE, pitfalls.simulate("empty-micro-batch"))
    hidden = pitfalls.simulate("tail-divisor", examples=32)
    assert effects.reply(NOTHING, hidden).startswith("As you predicted, nothing changes. A pass has 8 micro-batches")
    assert effects.reply(SMALL, hidden).startswith("You predicted: too small. At this setting nothing changes.")


def test_a_prediction_is_answered_anew_at_every_setting(panel):
    predict(panel, NOTHING)
    assert panel.prediction.said.startswith("You predicted: nothing changes. Measured: too large")
    panel.controls["accumulation_steps"].value = 1
    assert panel.prediction.said.startswith("As you predicted, nothing changes. With N = 1")
    assert "At this setting missing-division cannot show. With N = 1" in panel.status.value


def test_mending_brings_the_bars_back(panel):
    predict(panel)
    wrong = panel.code.value
    panel.controls["mended"].value = True
    assert panel.answered.sentence.startswith("Mended: the right loop, N = 4")
    assert "Every example weighs 1, which is fair" in panel.answered.pictures[0]
    assert "The right loop, beside missing-division.py" in panel.code.value
    assert "the audit:" not in panel.code.value
    panel.controls["mended"].value = False
    assert panel.code.value == wrong
    assert "weighs 4 instead of 1" in panel.answered.pictures[0]


def test_another_fault_asks_anew(panel):
    predict(panel)
    panel.controls["mended"].value = True
    panel.controls["fault"].value = "tail-dropped"
    assert panel.prediction.choices.value is None
    assert panel.prediction.said == panel.prediction.reply.value == panel.why.value == ""
    assert panel.controls["mended"].value is False
    assert panel.answered.sentence.startswith("So far the right loop")
    assert "tail-dropped.py, beside the right loop" in panel.code.value
    predict(panel, LOST)
    assert "it names tail-dropped at line 16." in panel.answered.sentence


def test_one_move_runs_once_and_looking_or_mending_runs_nothing(monkeypatch):
    ran = []
    real = panels.pitfalls.__globals__["simulate"]
    monkeypatch.setitem(panels.pitfalls.__globals__, "simulate", lambda slug, **k: ran.append(slug) or real(slug, **k))
    panel = make(strict=True)
    assert ran == ["missing-division"]
    panel.family.value = "weighting"
    assert ran == ["missing-division", "mean-of-means"], "unequal sizes are set before the run"
    assert panel.simulation.settings.unequal
    panel.controls["fault"].value = "token-weighting"
    assert ran[2:] == ["token-weighting"]
    predict(panel)
    panel.controls["look"].value = 3
    panel.controls["mended"].value = True
    assert len(ran) == 3
    panel.controls["examples"].value = 20
    assert len(ran) == 4


def test_choosers_and_controls_fit_what_there_is_to_choose():
    def chosen(panel):
        return [w.description for w in tree(panel.children[0]) if isinstance(w, widgets.RadioButtons)]

    assert chosen(make("tail-divisor")) == []
    assert chosen(make("tail-divisor", "mean-of-means")) == ["Fault"]
    everything = make()
    assert chosen(everything) == ["Family", "Fault"]
    assert tuple(everything.family.options) == pitfalls.FAMILIES
    offered = []
    for family in pitfalls.FAMILIES:
        everything.family.value = family
        offered += everything.controls["fault"].options
    assert offered == list(CATALOG)
    assert make("tail-leaked").controls["epochs"].value == 2
    hidden = {slug: make(slug).controls for slug in ("missing-division", "tail-leaked", "token-weighting")}
    assert hidden["missing-division"]["epochs"].layout.display == "none"
    assert hidden["missing-division"]["unequal"].layout.display is None
    assert hidden["tail-leaked"]["epochs"].layout.display is None
    assert hidden["tail-leaked"]["unequal"].layout.display == "none"
    assert hidden["token-weighting"]["examples"].description == "Lines of text"


def test_lessons_and_settings():
    panel = make("tail-dropped", lesson="02", examples=30, accumulation_steps=5)
    offered = {slug for slugs in panel._families.values() for slug in slugs}
    assert offered == {"tail-dropped"} | {slug for slug, p in CATALOG.items() if (p.lesson or "").startswith("02")}
    assert panel.settings["examples"] == 30
    assert panel.settings["accumulation_steps"] == 5
    assert make("mean-of-means", unequal=False).settings["unequal"] is False


@pytest.mark.parametrize(
    ("slugs", "given", "said"),
    [
        (["mising-division"], {}, "did you mean 'missing-division'"),
        ([], {"lesson": "99"}, "lesson='99' teaches no pitfall; give the beginning of one: 02_what"),
        ([], {"examples": 65}, "examples=65: the panel's slider goes from 1 to 64"),
        ([], {"accumulation_steps": 2.5}, "accumulation_steps=2.5: the panel's slider goes from 1 to 12"),
        ([], {"epochs": True}, "epochs=True"),
        ([], {"unequal": 1}, "unequal=1: give True or False"),
        ([], {"optimizer": "adam"}, "optimizer='adam': the panel has no such control; it has accumulation_steps"),
    ],
)
def test_what_a_panel_cannot_be_made_of(slugs, given, said):
    with pytest.raises(AccumkitError) as caught:
        make(*slugs, **given)
    assert said in str(caught.value)


def test_an_error_is_told_and_everything_old_is_greyed(monkeypatch):
    def fail(slug, **given):
        if given["examples"] == 20:
            raise RuntimeError("no <memory>")
        return real(slug, **given)

    real = panels.pitfalls.__globals__["simulate"]
    monkeypatch.setitem(panels.pitfalls.__globals__, "simulate", fail)
    monkeypatch.delenv(base.STRICT, raising=False)
    panel = make("missing-division")
    predict(panel)
    parts = (
        panel.code,
        panel.why,
        panel.pictures,
        panel.looked,
        panel.timeline,
        panel.sentence,
        panel.prediction.reply,
    )
    before = [part.value for part in parts]
    panel.controls["examples"].value = 20
    assert "This setting failed: RuntimeError: no &lt;memory&gt;." in panel.status.value
    assert "belongs to the last setting that worked" in panel.status.value
    assert all(part.value.startswith('<div style="opacity:.4') for part in parts)
    panel.controls["mended"].value = True  # fails again: greyed once
    assert panel.code.value.count("opacity:.4") == 1
    assert panel.prediction.said == ""
    panel.controls["mended"].value = False
    panel.controls["examples"].value = 19
    assert [part.value for part in parts] == before
    assert panel.status.value == ""
    strict = make("missing-division", strict=True)
    with pytest.raises(RuntimeError, match="memory"):
        strict.controls["examples"].value = 20


def test_a_bar_is_marked_and_its_digits_are_shown(panel):
    look = panel.controls["look"]
    assert (look.min, look.max) == (1, 5)
    first = panel.looked.value
    look.value = 5
    assert panel.looked.value != first
    assert panel.looked.value.count("<img") == 3
    panel.controls["fault"].value = "tail-dropped"
    predict(panel, LOST)
    assert "Micro-batch 5 is lost: its 3 examples are in no update and weigh 0." in panel.looked.value
    assert "dashed" in panel.looked.value
    panel.controls["mended"].value = True
    assert "Micro-batch 5, in update 2: 3 examples, and one example weighs 1, which is fair." in panel.looked.value
    panel.controls["examples"].value = 8
    assert (look.value, look.max) == (2, 2)
    assert "Micro-batch 2" in panel.looked.value


def test_a_still_holds_question_and_answer_and_is_the_same_every_time():
    panel = make("tail-dropped", strict=True)
    still = panel.still()
    predict(panel, SMALL)
    panel.controls["mended"].value = True
    assert panel.still() == still == make("tail-dropped", strict=True).still()
    assert still["text/plain"].startswith("Line 8 is new: `optimizer.zero_grad()`; line 13 is now")
    assert still["text/plain"].endswith("The audit: not equivalent; it names tail-dropped at line 16.")
    html = still["text/html"]
    assert f'class="accumkit-still-{panel.slug}"' in html
    assert html.count("<img alt=") == 3
    assert "<summary>What happens</summary>" in html
    assert "<script" not in html
    assert panel.answered.sentence.startswith("Mended"), "drawing a still leaves the panel as it is"


def test_panels_of_a_notebook_hide_their_own_stills_only():
    assert len({make(slug).slug for slug in ("tail-dropped", "tail-leaked", "off-by-one")}) == 3


@pytest.mark.parametrize("slug", ["missing-division", "token-weighting", "missing-scaler-update"])
def test_core_widgets_with_descriptions_and_pictures_with_words(slug):
    panel = make(slug, strict=True)
    predict(panel)
    for widget in tree(panel):
        assert widget._model_module in ("@jupyter-widgets/base", "@jupyter-widgets/controls")
        assert "description" not in widget.keys or isinstance(widget, widgets.HTML) or widget.description
    for picture in panel.answered.pictures:
        alt = picture.split('<img alt="')[1].split('"')[0]
        assert len(alt) > 20
        assert f">{alt}</figcaption>" in picture
    assert 'role="status"' in panel.sentence.value


def test_torch_s_own_warning_is_shown():
    panel = make("scheduler-every-micro-batch", strict=True)
    assert panel.status.value == ""
    predict(panel)
    assert "torch warned: Detected call of `lr_scheduler.step()` before `optimizer.step()`." in panel.status.value


def test_random_state_and_threads_are_left_alone(panel):
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    predict(panel)
    panel.controls["examples"].value = 20
    assert torch.equal(state, torch.get_rng_state())
    assert threads == torch.get_num_threads()


EVERYTHING = []


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    slug=st.sampled_from(sorted(CATALOG)),
    n=st.integers(1, 12),
    size=st.integers(1, 16),
    examples=st.integers(1, 64),
    epochs=st.integers(1, 2),
    look=st.integers(1, 70),
    guess=st.sampled_from(effects.CHOICES),
)
def test_every_setting_has_an_answer(slug, n, size, examples, epochs, look, guess):
    if not EVERYTHING:
        EVERYTHING.append(make(strict=True))
    panel = EVERYTHING[0]
    panel.family.value = CATALOG[slug].family
    panel.controls["fault"].value = slug
    predict(panel, guess)
    moves = {"accumulation_steps": n, "micro_batch_size": size, "examples": examples, "epochs": epochs, "look": look}
    with panel._at_once():
        for name, value in moves.items():
            panel.controls[name].value = value
    panel.refresh()
    assert panel.simulation.settings.examples == examples
    assert f"N = {n}, {examples} " in panel.answered.sentence
    assert panel.prediction.said
    assert panel.simulation.shows or "cannot show" in panel.status.value
    assert panel.looked.value
    assert len(panel.answered.pictures) == 2


def test_the_picture_is_titled_by_what_is_counted():
    for fault, one in (("token-weighting", "token"), ("class-weighting", "example"), ("tail-dropped", "example")):
        panel = panels.pitfalls(fault, strict=True)
        assert f"What each {one} weighs in the right loop" in panel.pictures.value
