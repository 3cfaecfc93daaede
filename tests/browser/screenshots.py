"""Save pictures of every lesson, in both themes, for people to look at: ``python tests/browser/screenshots.py FOLDER``.

Of each lesson: every panel as it first stands and after a few key presses, and the whole notebook from top to bottom.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # it runs as a script

from conftest import browser_path
from open_lab import THEMES, browser, open_notebook, run_all, running_lab
from write_notebooks import notebooks

WIDTH, HEIGHT = 1280, 1000
HANDLE = ".jp-OutputArea .noUi-handle"
PANEL = ".jp-OutputArea .widget-vbox:has(.noUi-handle)"


def main(folder: Path) -> None:
    """Take the pictures and say where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    rooms = [(path.name, "") for path in notebooks("notebooks")] + [
        (p.name, "exercises/") for p in notebooks("exercises")
    ]
    with tempfile.TemporaryDirectory() as work, running_lab(Path(work)) as lab, browser(browser_path()) as page:
        for theme in THEMES:
            lab.set_theme(theme)
            for name, room in rooms:
                page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
                open_notebook(page, lab, room + name)
                run_all(page, lab.folder / room / name)
                stem = f"{folder}/{theme}-{'exercise-' if room else ''}{name.split('_')[0]}"
                page.wait_for_timeout(1500)
                if page.locator(HANDLE).count():
                    _panel(page, stem)
                _whole(page, stem)
    print(f"{len(list(folder.glob('*.png')))} pictures in {folder}")


def _panel(page, stem: str) -> None:
    panel = page.locator(PANEL).first
    panel.scroll_into_view_if_needed()
    panel.screenshot(path=f"{stem}-panel.png")
    page.locator(HANDLE).first.focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(1000)
    panel.screenshot(path=f"{stem}-panel-moved.png")


def _whole(page, stem: str) -> None:
    inside = "document.querySelector('.jp-WindowedPanel-outer')"
    height = page.evaluate(f"{inside}.scrollHeight")
    page.set_viewport_size({"width": WIDTH, "height": min(height + 200, 8000)})
    page.wait_for_timeout(1000)
    page.evaluate(f"{inside}.scrollTop = 0")
    page.wait_for_timeout(1000)
    page.screenshot(path=f"{stem}-whole.png")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "screenshots"))
