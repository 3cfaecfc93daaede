"""Large type: on and off by the same call, for every panel, and nothing stays changed."""

from __future__ import annotations

import base64
import os
import re

import ipywidgets as widgets
import pytest

import accumkit as ak
from accumkit import panels
from accumkit.errors import AccumkitError
from accumkit.figures import large_type, verdict_html
from accumkit.figures.norms import dial_lines
from accumkit.figures.precision import order_picture
from accumkit.panels.projector import CLASS, LIVE, RULES
from accumkit.studies.precision import CALLS, run_order

MAKERS = {
    "start_here": panels.start_here,
    "one_update": panels.one_update,
    "pitfalls": lambda strict: panels.pitfalls("tail-leaked", strict=strict),
    "norms": panels.norms,
    "norm_curves": lambda strict: panels.norm_curves(strict=strict),
    "call_order": panels.call_order,
    "low_sums": panels.low_sums,
}


@pytest.fixture(autouse=True)
def usual_type_before_and_afterwards():
    LIVE.clear()  # of panels that other tests made
    panels.projector(on=False)
    yield
    panels.projector(on=False)


def svgs(html: str) -> list[str]:
    return [base64.b64decode(found).decode() for found in re.findall(r"svg\+xml;base64,([^\"]+)", html)]


def widths(html: str) -> list[float]:
    return [float(re.search(r'<svg[^>]*? width="([\d.]+)pt"', svg)[1]) for svg in svgs(html)]


def looks(panel) -> tuple:
    """All that a panel shows, and how large its controls are."""
    shown = [panel.sentence.value, panel.pictures.value, panel._style.value, panel._dom_classes, panel.still()]
    return (*map(repr, shown), *(control.layout.width for control in panel.controls.values()))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_panel_grows_by_half_at_once_and_is_as_it_was_afterwards(make):
    panel = make(strict=True)
    if isinstance(panel, panels.PitfallPanel):
        panel.prediction.choices.value = "lost"  # reveals the timeline too
    usual, usual_widths = looks(panel), widths("".join(panel.answered.pictures))
    panels.projector()
    assert CLASS in panel._dom_classes and RULES in panel._style.value
    large = "".join(panel.answered.pictures)
    assert widths(large) == [round(width * large_type.NARROWER, 3) for width in usual_widths]
    assert large.count(f"max-width:none;font-size:{large_type.TEXT}px") == len(usual_widths) > 0
    for control in panel.controls.values():
        if isinstance(control, widgets.IntSlider | widgets.SelectionSlider):
            assert int(control.layout.width.removesuffix("px")) >= 400
    panels.projector()  # twice is the same as once
    assert panel._style.value.count(RULES) == 1 and panel._dom_classes.count(CLASS) == 1
    panels.projector(on=False)
    assert looks(panel) == usual


def test_controls_move_a_large_panel():
    panels.projector()
    panel = panels.one_update(strict=True)
    assert CLASS in panel._dom_classes, "a panel made later is large too"
    panel.controls["accumulation_steps"].value = 5
    assert widths(panel.pictures.value) == [432.0, 432.0] and "N = 5" in panel.answered.sentence
    os.environ[large_type.PROJECTOR] = "0"
    assert not large_type.is_large()


def test_a_panel_that_fails_keeps_no_other_from_changing():
    def answer(n):
        if n == 3 or (n == 4 and large_type.is_large()):
            raise ValueError(f"{n} is too many")
        return panels.Answer(f"n is {n}", ("<p>picture</p>",))

    def panel(n):
        return panels.Panel("failing", {"n": panels.slider("N", n, 1, 4)}, answer, strict=True)

    good, failing, later = panel(1), panel(2), panel(2)
    with pytest.raises(ValueError, match="3 is too many"):
        failing.controls["n"].value = 3
    panels.projector()  # what failed before is not news
    assert CLASS in good._dom_classes and CLASS in failing._dom_classes and CLASS in later._dom_classes
    panels.projector(on=False)
    later.controls["n"].value = 4
    with pytest.raises(ValueError, match="4 is too many"):
        panels.projector()
    assert CLASS in good._dom_classes and CLASS in failing._dom_classes and "4 is too many" in later.status.value
    panels.projector()  # once is enough
    panels.projector(on=False)
    assert later.status.value == "" and later.pictures.value == "<p>picture</p>"


def test_the_environment_turns_it_on_from_the_start():
    os.environ[large_type.PROJECTOR] = "1"
    panel = panels.start_here(strict=True)
    assert CLASS in panel._dom_classes and widths(panel.pictures.value) == [432.0]


def test_pictures_outside_of_panels_grow_too():
    simulation = ak.pitfalls.simulate("mean-of-means")
    usual = verdict_html(simulation.verdict)
    panels.projector()
    large = verdict_html(simulation.verdict)
    assert (widths(usual), widths(large)) == ([648.0], [432.0])
    panels.projector(on=False)
    assert verdict_html(simulation.verdict) == usual


def test_a_picture_says_the_same_in_either_type():
    order = run_order(CALLS, 65536.0, 0.25, 4, 2, "float64", "cpu")
    words = {}
    for on in (False, True):
        panels.projector(on)
        (svg,) = svgs(order_picture().html(order))
        words[on] = set(re.findall(r">([^<>\n]+)</text>", svg))
    assert {"unscale", "clip", "step", "update", "window 1", "0.718", "0.25", "update right"} <= words[True] & words[
        False
    ]
    assert "dashed: the true gradient; dotted: max_norm; small numbers: backward" in words[True]


def test_dials_stand_on_as_many_lines_as_they_need():
    assert [dial_lines(dials, 648.0) for dials in (1, 5, 6)] == [1, 1, 1]
    assert [dial_lines(dials, 432.0) for dials in (1, 4, 5, 6)] == [1, 1, 2, 2]


@pytest.mark.parametrize("on", ["yes", 1, None])
def test_anything_but_true_or_false_is_refused(on):
    with pytest.raises(AccumkitError, match="give True for large type, or False"):
        panels.projector(on)
