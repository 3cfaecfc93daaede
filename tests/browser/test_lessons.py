"""In a real JupyterLab and a real browser: lessons open, run and answer to their sliders, in both themes and two sizes.

In large type, every panel can be read from the back row, and nothing of it is cut off.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from conftest import browser_path
from open_lab import (
    SECONDS,
    browser,
    choose,
    choose_theme,
    errors_in,
    open_notebook,
    run_all,
    run_more,
    running_lab,
    wait_until_idle,
)
from readable import LARGER, measured
from write_notebooks import notebooks

pytestmark = pytest.mark.browser
LESSONS = [path.name for path in notebooks("notebooks")]
# One of each look: a loop to write, pictures, a trace, a log. All run under nbval; none has a control to move.
EXERCISES = [path.name for path in notebooks("exercises") if path.name[:3] in ("01a", "02d", "03d", "05d")]
PANEL = ".jp-OutputArea .widget-vbox:has(.noUi-handle)"
STILL = "details[class^=accumkit-still]"
HANDLE = ".jp-OutputArea .noUi-handle"
LARGE = ".jp-OutputArea .accumkit-large"
SCREENS = ((1280, 720), (1920, 1080))
SETTLED_MS = 1500  # many times what one answer takes


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with running_lab(tmp_path_factory.mktemp("learner")) as lab:
        yield lab


@pytest.fixture(scope="module")
def page():
    with browser(browser_path()) as page:
        yield page


def shown(page) -> str:
    """Return what the live panel shows: its sentences, and its pictures to the last stroke."""
    parts = page.locator(f'{PANEL} :is([role="status"], figure)')
    return "".join(parts.evaluate_all("parts => parts.map(part => part.outerHTML)"))


def wait_until(page, true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline, f"{what} did not happen within {SECONDS} s"
        page.wait_for_timeout(50)


def press(page, key: str) -> str:
    """Press a key on the first slider, and return what the panel shows once it has changed and come to rest."""
    before = shown(page)
    page.locator(HANDLE).first.focus()
    page.keyboard.press(key)
    wait_until(page, lambda: shown(page) != before, f"an answer to {key}")
    return at_rest(page)


def at_rest(page) -> str:
    seen = shown(page)
    while True:
        page.wait_for_timeout(SETTLED_MS)
        if (now := shown(page)) == seen:
            return now
        seen = now


@pytest.mark.parametrize("name", LESSONS)
def test_lesson_as_one_works_through_it(lab, page, name):
    """One visit, since a lesson's run is what takes long: its stills, its run, keys, the other theme, large type."""
    page.set_viewport_size({"width": 1280, "height": 1000})
    original = next(path for path in notebooks("notebooks") if path.name == name)
    (lab.folder / name).write_bytes(original.read_bytes())
    open_notebook(page, lab, name, as_new=False)
    a_lesson_that_was_not_run_shows_its_stills(page)

    choose(page, "Edit", "editmenu:clear-all")
    assert errors_in(run_all(page, lab.folder / name)) == []
    page.wait_for_selector(HANDLE)
    assert page.locator(f"{PANEL} figure img[alt]").count() > 0
    first = at_rest(page)
    second = press(page, "ArrowRight")
    assert second != first
    assert "<figure" in second
    assert page.locator(STILL).count() > 0
    assert page.locator(f"{STILL}:visible").count() == 0, "a live panel and its still show the same picture twice"

    choose_theme(page, "dark")
    page.locator(HANDLE).first.focus()
    for way in "Right Left Left Right Right Left Left".split():
        page.keyboard.press(f"Arrow{way}")  # no waiting in between
    wait_until(page, lambda: shown(page) == first, "the picture of the setting where the keys ended")
    assert at_rest(page) == first, "the same setting shows the same picture"

    every_panel_is_large_and_whole(page)


def a_lesson_that_was_not_run_shows_its_stills(page) -> None:
    still = page.locator(f"{STILL} figure img[alt]").first
    still.scroll_into_view_if_needed()
    assert still.is_visible()
    assert still.evaluate("image => image.complete && image.naturalWidth > 0")
    assert "Error displaying widget" not in page.locator(".jp-Notebook").inner_text()


def every_panel_is_large_and_whole(page) -> None:
    run_more(page, "panels.projector()")
    for choices in page.locator(".jp-OutputArea .widget-radio-box").all():
        choices.locator("input").first.check()  # what a prediction reveals is to be read too
    page.wait_for_timeout(SETTLED_MS)
    wait_until_idle(page)
    panels = page.locator(LARGE)
    assert panels.count() > 0
    for width, height in SCREENS:
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_timeout(500)
        for panel in panels.all():
            panel.scroll_into_view_if_needed()
            assert "This setting failed" not in panel.text_content()
            wrong, text, pictures = measured(panel)
            assert wrong == []
            assert text >= LARGER and min(pictures, default=LARGER) >= LARGER, (width, text, pictures)


@pytest.mark.parametrize("name", EXERCISES)
def test_exercise_runs_as_shipped(lab, page, name):
    open_notebook(page, lab, f"exercises/{name}")
    assert errors_in(run_all(page, lab.folder / "exercises" / name)) == []
    assert "Not attempted:" in page.locator(".jp-Notebook").inner_text()
