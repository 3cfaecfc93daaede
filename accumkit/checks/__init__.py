"""The exercises, and the check that they share: the audit pointed at a learner's loop."""

from __future__ import annotations

from importlib import import_module

from accumkit.checks.check_loop import check_loop

EXERCISES = ("window_loop",)

__all__ = ["check_loop", *EXERCISES]


def __getattr__(name: str):
    if name in EXERCISES:
        return import_module(f"accumkit.checks.{name}")
    raise AttributeError(f"module 'accumkit.checks' has no attribute {name!r}")
