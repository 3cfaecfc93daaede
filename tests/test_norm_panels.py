"""Panels of lesson 04: norms drawn as each is ready, and a training that is shown, overtaken and stopped."""

from __future__ import annotations

import asyncio
import importlib
import re
from html import unescape

import ipywidgets as widgets
import matplotlib.pyplot as plt
import pytest
import torch

from accumkit import panels
from accumkit.figures import palette
from accumkit.figures.curves import CurvesPicture, describe_theirs, draw_ends
from accumkit.figures.norm_words import describe_cosines, describe_curves, describe_dials
from accumkit.figures.norms import draw_cosines, draw_dials
from accumkit.panels import background, base
from accumkit.panels.background import Background
from accumkit.panels.curves import CurvesPanel
from accumkit.panels.norms import BOTH, TURNS
from accumkit.studies import norms as study
from accumkit.studies.curves import Curves, Plan
from accumkit.studies.stored_curves import stored

NORMS = importlib.import_module("accumkit.panels.norms")  # the package's name for it is the function
SMALL = Plan(sizes=(32, 16), seeds=1, epochs=2)


@pytest.fixture(autouse=True)
def pyplot_knows_nothing():
    yield
    assert plt.get_fignums() == []


@pytest.fixture
def few(monkeypatch):
    """The same study with one seed: tests of the panel need no more."""
    monkeypatch.setattr(NORMS, "SEEDS", {"mlp": 1, "cnn": 1})


@pytest.fixture(scope="module")
def rows():
    torch.set_num_threads(1)
    return study.compare(("batch", "group", "none"), seeds=2).rows


def tree(widget):
    yield widget
    for child in getattr(widget, "children", ()):
        yield from tree(child)


def axes(height=148):
    return palette.bare_axes(palette.new_figure(9, height / 72), 0, 0, 648, height)


def gids(drawn, start=""):
    artists = [*drawn.patches, *drawn.lines, *drawn.texts]
    return [a.get_gid() for a in artists if (a.get_gid() or "").startswith(start)]


# pictures


def test_dials_show_each_norm_and_every_seed(rows):
    drawn = axes()
    draw_dials(drawn, rows, 4)
    assert gids(drawn, "title") == ["title"] * 3
    assert gids(drawn, "gradient") == ["gradient"] * 3
    assert gids(drawn, "seed") == ["seed"] * 2  # of BatchNorm; the others are on the big batch's
    assert len(gids(drawn, "turned")) == 1
    (wedge,) = [p for p in drawn.patches if p.get_gid() == "turned"]
    assert torch.cos(torch.deg2rad(torch.tensor(wedge.theta2))).item() == pytest.approx(rows[0].cosine(4), abs=1e-6)
    draw_dials(drawn, rows, 1)
    assert gids(drawn, "refused") == ["refused"]
    assert gids(drawn, "turned") == []


def test_cosines_share_a_line_where_they_are_exact(rows):
    drawn = axes(214)
    draw_cosines(drawn, rows, 8)
    assert gids(drawn, "exact") == ["exact"]
    assert gids(drawn, "line") == ["line batch"]
    assert gids(drawn, "chosen") == ["chosen"]
    names = [t.get_text() for t in drawn.texts if t.get_gid() == "name"]
    assert names == ["GroupNorm, no norm", "BatchNorm"]
    (line,) = [x for x in drawn.lines if x.get_gid() == "line batch"]
    assert list(line.get_ydata()) == sorted(line.get_ydata(), reverse=True)
    draw_cosines(drawn, (), 8)
    assert drawn.lines[:] == []


def test_sentences_say_what_the_pictures_show(rows):
    assert describe_dials(rows, 2).startswith("Micro-batches of 2: with BatchNorm the accumulated gradient is turned")
    assert describe_dials(rows, 1) == (
        "Micro-batches of 1: BatchNorm is refused by torch, since a channel would have a single value; "
        "with GroupNorm and no norm the accumulated gradient is that of the big batch."
    )
    said = describe_cosines(rows)
    assert "BatchNorm 1 at 64, 0.9" in said
    assert "refused at 1" in said
    assert said.endswith("GroupNorm and no norm 1 at every size (error below 1e-12).")
    assert describe_dials((), 2) == describe_cosines(()) == "Nothing is measured yet."


def test_curves_stand_beside_the_published_ones_labelled_as_theirs():
    first, second = CurvesPicture().html(stored())
    assert "BatchNorm ends at 2.0 percent with micro-batches of 32 and at 34.2 with micro-batches of 2" in first
    assert "their figures, not run here" in second
    assert "34.7 at 2" in describe_theirs()
    drawn = axes(218)
    draw_ends(drawn, stored())
    titles = [t.get_text() for t in drawn.texts if t.get_gid() == "title"]
    assert titles == ["here: digits, small network", "Wu and He 2018: ImageNet, ResNet-50"]
    assert [t.get_text() for t in drawn.texts if t.get_gid() == "number"] == ["34.2", "34.7"]
    assert "mean of all 30 runs" in describe_curves(stored())
    part = Curves(SMALL, {("batch", 32): [[9.0, 8.0]], ("batch", 16): [[7.0]]})
    assert "BatchNorm 8.0 at 32 (mean of 1 of 4 runs)" in describe_curves(part)
    assert len(CurvesPicture().html(part)) == 2


# the panel of norms


def test_one_tree_of_core_widgets_with_descriptions(few):
    for panel in (panels.norms(strict=True), panels.norm_curves(strict=True)):
        for widget in tree(panel):
            assert widget._model_module in ("@jupyter-widgets/base", "@jupyter-widgets/controls")
            assert "description" not in widget.keys or isinstance(widget, widgets.HTML) or widget.description
        for picture in panel.answered.pictures:
            alt = picture.split('<img alt="')[1].split('"')[0]
            assert len(alt) > 20
            assert unescape(alt) in panel.answered.sentence or f">{alt}</figcaption>" in picture
        assert 'role="status"' in panel.sentence.value


def test_a_move_draws_what_is_measured_and_measures_nothing(few, monkeypatch):
    panel = panels.norms(strict=True)
    assert "(cosine 0.9" in panel.answered.sentence
    assert panel.answered.note == ""
    monkeypatch.setattr(NORMS, "measure", None)
    seen = set()
    for size in study.SIZES:
        panel.controls["size"].value = size
        assert f"Micro-batches of {size}:" in panel.answered.sentence
        seen.add(panel.pictures.value)
    assert len(seen) == len(study.SIZES)
    assert "is refused by torch" in panel.answered.sentence


def test_network_and_groups_are_studies_of_their_own(few):
    panel = panels.norms(strict=True)
    panel.controls["network"].value = "cnn"
    assert panel.answered.sentence.startswith("Convolutional network")
    assert "InstanceNorm" in panel.answered.sentence
    panel.controls["network"].value = "mlp"
    panel.controls["groups"].value = 8
    assert set(panel._studies) == {("mlp", 4), ("cnn", 4), ("mlp", 8)}
    assert all(each.complete for each in panel._studies.values())


def test_norms_appear_one_by_one_on_the_event_loop(few, monkeypatch):
    monkeypatch.setattr(background, "SLICE", 0.0)  # the fastest machine measures one norm between two looks

    async def watch():
        panel = panels.norms(strict=True)
        assert panel.answered.note == "Still being measured: GroupNorm, LayerNorm, no norm and frozen BatchNorm."
        panel.controls["size"].value = 8  # the kernel answers in the meantime
        assert "Micro-batches of 8" in panel.answered.sentence
        seen = []
        panel.status.observe(lambda change: seen.append(len(re.findall("Norm|no norm", change.new))), names="value")
        while panel._background.running:
            await asyncio.sleep(0.005)
        assert panel.answered.note == ""
        return seen

    assert asyncio.run(watch()) == [3, 2, 1, 0], "norms that the note says are still being measured"


def test_another_network_overtakes_a_study_that_goes_on_when_it_is_back(few):
    async def watch():
        panel = panels.norms(strict=True)
        panel.controls["network"].value = "cnn"
        half = panel._studies["mlp", 4]
        assert not half.complete
        await asyncio.sleep(0.03)
        panel.controls["network"].value = "mlp"
        while panel._background.running:
            await asyncio.sleep(0.005)
        assert half.complete
        assert [row.norm for row in half.rows] == list(study.NORMS)
        assert panel.answered.note == ""
        assert panel.answered.sentence.startswith("Fully connected")

    asyncio.run(watch())


def test_the_still_holds_every_norm_also_while_a_loop_runs(few, monkeypatch):
    async def show():
        panel = panels.norms(strict=True)
        assert panel.answered.note
        panel._ipython_display_()
        return panel

    shown = []
    monkeypatch.setattr(base, "display", lambda data, raw: shown.append(data))
    panel = asyncio.run(show())
    view, still = shown
    assert "application/vnd.jupyter.widget-view+json" in view
    assert still == panels.norms(strict=True).still() == panel.still()
    assert "frozen BatchNorm" in still["text/plain"]


def test_the_prediction_is_held_against_what_was_measured(few):
    panel = panels.norms(strict=True)
    (prediction,) = [widget for widget in tree(panel) if isinstance(widget, panels.Prediction)]
    prediction.choices.value = BOTH
    assert "Now drag" in prediction.said
    for size in (8, 2):
        panel.controls["size"].value = size
    assert prediction.said == f"What was measured, over all sizes: {TURNS}, not what you predicted ({BOTH})."
    prediction.choices.value = TURNS
    assert prediction.said.endswith("as you predicted.")


def test_a_study_that_fails_is_told(few, monkeypatch):
    def broken(norms, **how):
        yield study.Row("batch", (64, 16), ((1.0,), (0.5,)), ((0.0,), (0.9,)), {})
        raise ValueError("no more")

    monkeypatch.setattr(NORMS, "measure", broken)
    panel = panels.norms(strict=False)
    assert "This setting failed: ValueError: no more." in panel.status.value
    with pytest.raises(ValueError, match="no more"):
        panels.norms(strict=True)


# the panel of curves


def test_the_still_shows_stored_curves_and_nothing_is_trained():
    panel = panels.norm_curves(strict=True)
    assert not panel.running
    assert panel.still() == panels.norm_curves(strict=True).still()
    assert "34.2 at 2" in panel.still()["text/plain"]
    assert "trained before and stored" in panel.answered.note
    assert panel.stop.disabled
    assert not panel.start.disabled


def test_a_training_without_a_kernel_runs_through():
    panel = CurvesPanel(SMALL, strict=True)
    panel.start.click()
    assert panel.curves.finished
    assert "All 4 runs are through" in panel.answered.note
    assert "mean of all 4 runs" in panel.answered.sentence
    assert panel.progress.value == 1.0
    assert panel.stop.disabled


def test_a_training_shows_its_progress_and_stops_within_a_second():
    async def run():
        panel = CurvesPanel(Plan(), strict=True)
        panel.start.click()
        assert panel.running
        assert panel.start.disabled
        progress = []
        while len(progress) < 30:  # each turn is one in which the kernel could answer
            await asyncio.sleep(0.001)
            progress.append(panel.progress.value)
        panel.refresh()
        assert "seconds left" in panel.answered.note
        assert progress == sorted(progress)
        assert 0 < progress[-1] < 1
        panel.stop.click()
        assert not panel.running
        done = panel.curves.done
        await asyncio.sleep(0.1)
        assert panel.curves.done == done, "nothing goes on after a stop"
        assert panel.answered.note.startswith("Stopped by you: ")
        panel.start.click()  # and again, from the beginning
        assert panel.running
        assert panel.curves.done == 0
        panel.stop.click()

    asyncio.run(run())


def test_a_training_stops_by_itself_after_its_time():
    panel = CurvesPanel(Plan(), strict=True, limit=0.2)

    async def run():
        panel.begin()
        while panel.running:
            await asyncio.sleep(0.01)

    asyncio.run(run())
    assert "Stopped after the time that this panel allows itself" in panel.answered.note
    assert not panel.curves.finished


def test_a_training_that_fails_is_told(monkeypatch):
    def broken(plan):
        yield Curves(plan)
        raise RuntimeError("out of luck")

    monkeypatch.setattr("accumkit.panels.curves.train", broken)
    panel = CurvesPanel(SMALL, strict=False)
    panel.begin()
    assert "RuntimeError: out of luck" in panel.status.value
    assert not panel.start.disabled


def test_work_that_is_replaced_is_dropped():
    async def run():
        seen, ends = [], []
        work = Background(seen.append, ends.append)
        work.start(iter(int, 1))  # without an end
        await asyncio.sleep(0.02)
        work.start(iter([7]))
        while work.running:
            await asyncio.sleep(0.01)
        work.stop()  # of nothing: nothing happens
        return seen, ends

    seen, ends = asyncio.run(run())
    assert seen[-1] == 7
    assert ends == ["done"]
