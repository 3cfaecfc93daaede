"""A real JupyterLab, started as a learner starts it, and a real browser that opens its notebooks."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--force-color-profile=srgb")  # fmt: skip
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
SECONDS = 120


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab: its address without a path, its token, and the folder of the learner's copies."""

    address: str
    token: str
    folder: Path

    def set_theme(self, theme: str) -> None:
        """Choose "light" or "dark", as the settings menu does."""
        body = json.dumps({"raw": json.dumps({"theme": THEMES[theme], "theme-scrollbars": False})}).encode()
        url = f"{self.address}/lab/api/settings/@jupyterlab/apputils-extension:themes?token={self.token}"
        with urlopen(Request(url, body, {"Content-Type": "application/json"}, method="PUT"), timeout=SECONDS):
            pass


@contextmanager
def running_lab(folder: Path) -> Iterator[Lab]:
    """Start the course in ``folder`` with the command that learners use, and stop it in the end."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "JUPYTERLAB_SETTINGS_DIR": str(folder / ".settings")}
    command = [sys.executable, "-m", "accumkit", "lab", "--no-browser", "--port", "0", "--dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
                               start_new_session=True)  # fmt: skip
    said: queue.Queue[str] = queue.Queue()
    threading.Thread(target=lambda: [said.put(line) for line in process.stdout], daemon=True).start()
    try:
        lines: list[str] = []
        deadline = time.monotonic() + SECONDS
        while not (found := re.search(r"(http://[\w.]+:\d+)/lab\S*\?token=(\w+)", lines[-1] if lines else "")):
            try:
                lines.append(said.get(timeout=max(0.0, deadline - time.monotonic())))
            except queue.Empty:
                raise TimeoutError(f"no address within {SECONDS} s; JupyterLab said:\n{''.join(lines)}") from None
        yield Lab(found[1], found[2], folder)
    finally:
        _stop(process)


def _stop(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGTERM)  # JupyterLab ends its kernels on the way out
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    process.stdout.close()


@contextmanager
def browser(executable: str):
    """Yield a page of a headless browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=list(QUIET))
        try:
            page = chromium.new_page(viewport={"width": 1280, "height": 1000})
            page.set_default_timeout(SECONDS * 1000)
            yield page
        finally:
            chromium.close()


def open_notebook(page, lab: Lab, name: str, as_new: bool = True) -> None:
    """Open a notebook and wait for its kernel; ``as_new`` without stored outputs, so that a number means a run."""
    if as_new:
        path = lab.folder / name
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell["outputs"], cell["execution_count"] = [], None
        path.write_text(json.dumps(notebook), encoding="utf-8")
    page.goto(f"{lab.address}/lab/tree/{name}?token={lab.token}&reset")
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    wait_until_idle(page)


def wait_until_idle(page) -> None:
    """Wait until the kernel is there and has nothing to do."""
    # The status bar names the kernel; the notebook's own indicator says "idle" before there is any.
    page.wait_for_function("/Python 3.*\\| Idle/.test(document.querySelector('#jp-main-statusbar')?.innerText)")


def run_all(page, path: Path) -> dict:
    """Run every cell through the menu, save, and return the notebook as JupyterLab saved it."""
    choose(page, "Run", "runmenu:run-all")
    page.wait_for_function("""() => {
        const prompts = [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].map(e => e.textContent);
        return document.querySelector('[data-mime-type="application/vnd.jupyter.error"]')
            || (prompts.length > 0 && prompts.every(text => /[0-9]/.test(text)));
    }""")
    deadline = time.monotonic() + SECONDS
    while True:
        wait_until_idle(page)
        notebook = _saved(page, path)
        # a kernel is idle for a moment between two cells, and cells out of sight may wait
        if all(cell.get("execution_count", 0) for cell in notebook["cells"] if cell["cell_type"] == "code"):
            return notebook
        if any("ename" in output for cell in notebook["cells"] for output in cell.get("outputs", ())):
            return notebook
        assert time.monotonic() < deadline, (
            f"{path.name} has not run to its end within {SECONDS} s: {errors_in(notebook)}"
        )


def _saved(page, path: Path) -> dict:
    """Save a notebook through the menu and return what JupyterLab wrote."""
    before, deadline = path.stat().st_mtime_ns, time.monotonic() + SECONDS
    choose(page, "File", "docmanager:save")
    while time.monotonic() < deadline:
        page.wait_for_timeout(100)
        if path.stat().st_mtime_ns != before:
            try:
                return json.loads(path.read_text(encoding="utf-8"))
            except json.JSONDecodeError:  # it is being written
                continue
    raise TimeoutError(f"JupyterLab did not save {path.name} within {SECONDS} s")


def run_more(page, source: str) -> None:
    """Add a cell at the end of the notebook, and run it."""
    page.locator(".jp-Notebook-footer").click()
    page.keyboard.press("Enter")  # to write in it
    page.locator(".jp-Cell.jp-mod-active .cm-content:focus").wait_for()
    page.keyboard.insert_text(source)
    page.keyboard.press("Control+Enter")
    page.locator(".jp-Cell.jp-mod-active .jp-InputPrompt").filter(has_text=re.compile(r"\d")).wait_for()
    wait_until_idle(page)


def choose_theme(page, theme: str) -> None:
    """Choose "light" or "dark" in the settings menu, while a notebook is open."""
    page.locator(".lm-MenuBar-item", has_text=re.compile("^Settings$")).click()
    page.locator(".lm-Menu-item", has_text=re.compile("^Theme$")).click()
    page.locator('.lm-Menu-item[data-command="apputils:change-theme"]', has_text=THEMES[theme]).first.click()
    page.wait_for_function(f"document.body.dataset.jpThemeLight === '{str(theme == 'light').lower()}'")


def choose(page, menu: str, item: str) -> None:
    """Choose an item of a menu, by its command."""
    page.locator(".lm-MenuBar-item", has_text=re.compile(f"^{menu}$")).click()
    page.locator(f'.lm-Menu-item[data-command="{item}"]').first.click()


def errors_in(notebook: dict) -> list[str]:
    """Return what went wrong in a saved notebook: cells that did not run, errors, and warnings."""
    wrong = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            if not cell["execution_count"]:
                wrong.append(f"{cell['id']} did not run")
            wrong += [f"{cell['id']}: {output['ename']}: {output['evalue']}" for output in cell["outputs"]
                      if output["output_type"] == "error"]  # fmt: skip
            wrong += [f"{cell['id']} printed a warning: {output['text']}" for output in cell["outputs"]
                      if output.get("name") == "stderr"]  # fmt: skip
    return wrong
