"""The exercises, and the check that many of them share: the audit pointed at a learner's loop."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from accumkit.checks import exercises
from accumkit.checks.check_loop import check_loop
from accumkit.checks.problem import Problem

# By name, one for each file of the folder exercises.
EXERCISES = tuple(sorted(module.name for module in iter_modules(exercises.__path__) if module.name[0] != "_"))

__all__ = ["EXERCISES", "Problem", "check_loop", "problems", *EXERCISES]


def problems() -> dict[str, Problem]:
    """Return every exercise by its name, in the order of their ids.

    Returns
    -------
    dict of str to Problem

    Examples
    --------
    >>> from accumkit import checks
    >>> checks.problems()["window_loop"].id
    '01a'
    """
    found = {name: import_module(f"accumkit.checks.exercises.{name}").PROBLEM for name in EXERCISES}
    return dict(sorted(found.items(), key=lambda item: item[1].id))


def __getattr__(name: str):
    if name in EXERCISES:
        return import_module(f"accumkit.checks.exercises.{name}")
    raise AttributeError(f"module 'accumkit.checks' has no attribute {name!r}; it has {', '.join(EXERCISES)}")
