"""What the kit consists of, kept before a learner's code runs and put back after it, so that it judges as it does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

# Modules whose functions the checks lean on; torch's own are put back by accumkit.checks.as_it_was.
LEANT_ON = (
    "builtins", "collections", "copy", "dis", "inspect", "itertools", "json", "math", "operator", "os", "re",
    "textwrap", "threading", "time",
)  # fmt: skip


def kept() -> Callable[[], None]:
    """Return a function that puts back every function, class and method of the kit that was replaced since.

    Examples
    --------
    >>> import accumkit
    >>> from accumkit.grading.restored import kept
    >>> put_back, audit = kept(), accumkit.audit
    >>> accumkit.audit = lambda trace: "Right: of course"
    >>> put_back()
    >>> accumkit.audit is audit
    True
    """
    modules = {name: module for name, module in sys.modules.items() if _own(name) or name in LEANT_ON}
    places: list[Any] = list(modules.values())
    places += {
        id(thing): thing
        for name, module in modules.items()
        if _own(name)
        for thing in vars(module).values()
        if isinstance(thing, type) and _own(thing.__module__)
    }.values()
    before = [(place, dict(vars(place))) for place in places]
    put, take, look, kind, known = setattr, delattr, vars, isinstance, sys.modules  # as they are now

    def put_back() -> None:
        known.update(modules)
        sys.modules = known
        for place, attributes in before:
            now = look(place)
            for name, value in attributes.items():
                if now.get(name) is not value and name not in ("__dict__", "__weakref__"):
                    put(place, name, value)
            if kind(place, type):
                for name in now.keys() - attributes.keys():
                    if not name.startswith("__"):  # Python's own, some of which it makes when it first needs them
                        take(place, name)

    return put_back


def _own(module: str) -> bool:
    return module == "accumkit" or module.startswith("accumkit.")
