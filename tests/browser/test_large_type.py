"""In a real JupyterLab and a real browser: large type from the start, and one call that changes it."""

from __future__ import annotations

import json

import pytest
from conftest import browser_path
from open_lab import SECONDS, browser, open_notebook, running_lab
from readable import LARGER, measured

pytestmark = pytest.mark.browser


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


def test_one_call_makes_the_panels_usual_and_large_again(lab, page):
    shows = "from accumkit import panels\npanels.show(panels.start_here())"
    cells = [shows, "panels.projector(on=False)", "panels.projector()"]
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
    large, usual, again = seen
    assert large == again and min(usual) > 0.98 and max(usual) < 1.02 and min(large) >= LARGER


def notebook_of(cells: list[str]) -> dict:
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    made = [{"cell_type": "code", "id": f"cell-{i}", "source": text, "metadata": {}, "outputs": [],
             "execution_count": None} for i, text in enumerate(cells)]  # fmt: skip
    return {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
