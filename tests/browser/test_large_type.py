"""In a real browser, in large type: every panel can be read from the back row, and nothing of it is cut off."""

from __future__ import annotations

import json

import pytest
from conftest import browser_path
from open_lab import SECONDS, browser, errors_in, open_notebook, run_all, running_lab, wait_until_idle
from readable import measured
from write_notebooks import notebooks

pytestmark = pytest.mark.browser
LESSONS = [path.name for path in notebooks("notebooks")]
SCREENS = ((1280, 720), (1920, 1080))
LARGER = 1.49  # times the usual size, at least; 1.5 but for a pixel that the browser rounds
PANELS = ".jp-OutputArea .accumkit-large"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCUMKIT_PROJECTOR", "1")
        with running_lab(tmp_path_factory.mktemp("projector")) as lab:
            yield lab


@pytest.fixture(scope="module")
def page():
    with browser(browser_path()) as page:
        yield page


@pytest.mark.parametrize("name", LESSONS)
def test_every_panel_of_a_lesson_is_large_and_whole(lab, page, name):
    page.set_viewport_size({"width": 1280, "height": 720})
    open_notebook(page, lab, name)
    assert errors_in(run_all(page, lab.folder / name)) == []
    page.wait_for_selector(f"{PANELS} [role=status]", state="attached")
    for choices in page.locator(".jp-OutputArea .widget-radio-box").all():
        choices.locator("input").first.check()  # what a prediction reveals is to be read too
    page.wait_for_timeout(3000)
    wait_until_idle(page)
    panels = page.locator(PANELS)
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


def test_one_call_makes_the_panels_large_and_usual_again(lab, page):
    usual = "import os\nos.environ.pop('ACCUMKIT_PROJECTOR')\nfrom accumkit import panels\n"
    cells = [f"{usual}panels.show(panels.start_here())", "panels.projector()", "panels.projector(on=False)"]
    (lab.folder / "try.ipynb").write_text(json.dumps(notebook_of(cells)), encoding="utf-8")
    page.set_viewport_size({"width": 1280, "height": 720})
    open_notebook(page, lab, "try.ipynb")
    panel = page.locator(".jp-OutputArea .widget-vbox:has(> .widget-html figure)")
    seen = []
    for i in range(len(cells)):
        page.locator(".jp-CodeCell .jp-InputArea-editor").nth(i).click()
        page.keyboard.press("Shift+Enter")
        page.locator(".jp-CodeCell .jp-InputPrompt").nth(i).filter(has_text=f"[{i + 1}]").wait_for(
            timeout=1000 * SECONDS
        )
        panel.wait_for()
        page.wait_for_timeout(2000)
        wrong, text, pictures = measured(panel)
        assert wrong == []
        seen.append((round(text, 2), round(pictures[0], 2)))
    usual, large, again = seen
    assert usual == again and min(usual) > 0.98 and max(usual) < 1.02 and min(large) >= LARGER


def notebook_of(cells: list[str]) -> dict:
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    made = [{"cell_type": "code", "id": f"cell-{i}", "source": text, "metadata": {}, "outputs": [],
             "execution_count": None} for i, text in enumerate(cells)]  # fmt: skip
    return {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
