"""accumkit: gradient accumulation that is right, seen and checked.

One question runs through it: does every example weigh what it should in every update?
"""

from __future__ import annotations

from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import_module("torch")
except ImportError as cause:
    raise ImportError(
        f"accumkit needs torch, which cannot be imported here ({cause}); in the project's folder, run: "
        'pip install -c constraints.txt -e ".[course]"'
    ) from cause

from accumkit.audit import audit
from accumkit.audit import verdict as _verdict
from accumkit.convert import replace_batchnorm
from accumkit.errors import AccumkitError
from accumkit.loops import train_epoch
from accumkit.objective import Objective, classification, next_token, regression
from accumkit.trace import watch
from accumkit.window import Window, windows

if TYPE_CHECKING:
    from accumkit import checks, figures, panels, pitfalls, studies, tasks
    from accumkit.checks import check_loop
    from accumkit.checks.progress_view import progress

__version__ = "0.1.0"

__all__ = [
    "AccumkitError",
    "Objective",
    "Window",
    "audit",
    "check_loop",
    "checks",
    "classification",
    "figures",
    "next_token",
    "panels",
    "pitfalls",
    "progress",
    "regression",
    "replace_batchnorm",
    "studies",
    "tasks",
    "train_epoch",
    "watch",
    "windows",
]

# Rooms above the audit are loaded when they are first named: they need matplotlib, ipywidgets or scikit-learn.
_ROOMS = ("checks", "figures", "panels", "pitfalls", "studies", "tasks")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"accumkit.{name}")
    if name == "check_loop":
        return import_module("accumkit.checks").check_loop
    if name == "progress":
        return import_module("accumkit.checks.progress_view").progress
    raise AttributeError(f"accumkit has no {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _html(verdict: Any) -> str:
    """Draw a verdict for a notebook; the audit itself stands below the figures and does not know them."""
    try:
        figures = import_module("accumkit.figures")
    except ImportError:  # no matplotlib: the table alone
        return f"<pre>{escape(repr(verdict))}</pre>"
    return figures.verdict_html(verdict)


_verdict.html_renderer = _html
