"""What holds for every test: one thread, a fixed seed, and skips that name what a machine lacks."""

from __future__ import annotations

import importlib.util
import os
import shutil

import pytest
import torch

from accumkit.checks import problem

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def browser_path() -> str | None:
    """Return the Chromium to drive: the one that ACCUMKIT_BROWSER names, else the first on the PATH."""
    return os.environ.get("ACCUMKIT_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)


def lacks(kind: str) -> str | None:
    """Return what this machine lacks for tests marked ``kind``, or None."""
    if kind == "cuda":
        return None if torch.cuda.is_available() else "no CUDA device on this machine"
    if importlib.util.find_spec("playwright") is None:
        return "the Python package playwright is not installed"
    return None if browser_path() else f"no browser on this machine: none of {', '.join(BROWSERS)} on the PATH"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for kind in ("cuda", "browser"):
        reason = lacks(kind)
        for item in items:
            if reason and item.get_closest_marker(kind):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def same_start():
    """One thread, for sums in one order and a machine shared fairly; one seed, for a test that stands alone."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    """Let what a judge raises come through, where a learner would be told that the answer cannot be judged."""
    monkeypatch.setattr(problem, "STRICT", True)
