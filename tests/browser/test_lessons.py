"""In a real JupyterLab and a real browser: every lesson opens, runs and answers to its slider, in both themes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from conftest import browser_path
from open_lab import SECONDS, THEMES, browser, errors_in, open_notebook, run_all, running_lab
from write_notebooks import notebooks

pytestmark = pytest.mark.browser
LESSONS = [path.name for path in notebooks("notebooks")]
# One of each look: a loop to write, pictures, a trace, a log. All run under nbval; none has a control to move.
EXERCISES = [path.name for path in notebooks("exercises") if path.name[:3] in ("01a", "02d", "03d", "05d")]
PANEL = ".jp-OutputArea .widget-vbox:has(.noUi-handle)"
STILL = "details[class^=accumkit-still]"
HANDLE = ".jp-OutputArea .noUi-handle"
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


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", LESSONS)
def test_lesson_runs_and_its_slider_answers(lab, page, name, theme):
    lab.set_theme(theme)
    open_notebook(page, lab, name)
    assert errors_in(run_all(page, lab.folder / name)) == []
    assert page.evaluate("document.body.dataset.jpThemeLight") == str(theme == "light").lower()
    page.wait_for_selector(HANDLE)
    assert page.locator(f"{PANEL} figure img[alt]").count() > 0
    first = at_rest(page)
    second = press(page, "ArrowRight")
    assert second != first
    assert "<figure" in second
    assert press(page, "ArrowLeft") == first, "the same setting shows the same picture"
    assert page.locator(STILL).count() > 0
    assert page.locator(f"{STILL}:visible").count() == 0, "a live panel and its still show the same picture twice"
    if theme == "dark":  # once is enough, and a lesson's run is what takes long
        rapid_keys_end_on_the_right_picture(page)


def rapid_keys_end_on_the_right_picture(page) -> None:
    for _ in range(3):
        slow = press(page, "ArrowRight")
    for _ in range(3):
        press(page, "ArrowLeft")
    page.locator(HANDLE).first.focus()
    for key in ["ArrowRight"] * 3 + ["ArrowLeft"] * 2 + ["ArrowRight"] * 2:
        page.keyboard.press(key)  # no waiting in between
    wait_until(page, lambda: shown(page) == slow, "the picture of the last setting")
    assert at_rest(page) == slow


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_read_without_running_shows_its_stills(lab, page, name):
    original = next(path for path in notebooks("notebooks") if path.name == name)
    (lab.folder / name).write_bytes(original.read_bytes())
    open_notebook(page, lab, name, as_new=False)
    still = page.locator(f"{STILL} figure img[alt]").first
    still.scroll_into_view_if_needed()
    assert still.is_visible()
    assert still.evaluate("image => image.complete && image.naturalWidth > 0")
    assert "Error displaying widget" not in page.locator(".jp-Notebook").inner_text()


@pytest.mark.parametrize("name", EXERCISES)
def test_exercise_runs_as_shipped(lab, page, name):
    open_notebook(page, lab, f"exercises/{name}")
    assert errors_in(run_all(page, lab.folder / "exercises" / name)) == []
    assert "Not attempted:" in page.locator(".jp-Notebook").inner_text()
