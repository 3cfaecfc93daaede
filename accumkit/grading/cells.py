"""A notebook's code run cell by cell in one namespace, as "run all" does, without a kernel."""

from __future__ import annotations

import ast
import linecache
import re
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from accumkit.errors import said

TIMED = ("time", "timeit", "capture", "prun")  # cell magics whose cell is Python all the same
HIDDEN = re.compile(r"^### BEGIN HIDDEN TESTS\n.*?^### END HIDDEN TESTS$", re.MULTILINE | re.DOTALL)
MAGIC = re.compile(r"^(\s*)[%!?].*$|^(\s*)[\w.]+\?{1,2}\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Raised:
    """A cell that raised."""

    cell: int  # counting code cells from 1, as a notebook counts them that was run from top to bottom
    source: str
    text: str  # "NameError: name 'x' is not defined"
    memory: bool  # there was no more of it

    def names(self, name: str) -> bool:
        """Return whether the cell speaks of ``name``."""
        return re.search(rf"\b{re.escape(name)}\b", self.source) is not None


def run(sources: Sequence[str], begins: Callable[[int], object] = lambda cell: None) -> tuple[dict, list[Raised]]:
    """Run cells one after the other; one that raises does not stop those after it.

    Parameters
    ----------
    sources : sequence of str
        What IPython adds to Python is passed over: lines such as ``%matplotlib inline`` and ``!pip list``.
    begins : callable
        Called with the number of each cell before it runs.

    Returns
    -------
    dict
        The namespace, which is the module ``__main__`` from then on.
    list of Raised

    Examples
    --------
    In a process of its own, since the cells may do anything.

    >>> import sys
    >>> from accumkit.grading.cells import run
    >>> before = sys.modules["__main__"]
    >>> names, raised = run(["a = 2", "b = a / 0", "c = a + 1"])
    >>> names["c"], [(one.cell, one.text) for one in raised]
    (3, [(2, 'ZeroDivisionError: division by zero')])
    >>> sys.modules["__main__"] = before
    """
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main  # a dataclass looks its module up, say
    names = vars(main)
    names["display"] = lambda *shown, **how: None
    raised = []
    # All are read before the first one runs: what a cell does to Python's own functions shall not touch the reading.
    for number, source, code in [(number, source, _read(number, source)) for number, source in enumerate(sources, 1)]:
        begins(number)
        try:
            if not isinstance(code, CodeType):
                raise code
            exec(code, names)
        except BaseException as error:  # SystemExit too: it ends no notebook
            raised.append(Raised(number, source, _told(error), out_of_memory(error)))
    return names, raised


def _read(number: int, source: str) -> CodeType | BaseException:
    """Return a cell as code to run, or what it raises when it is read."""
    name = f"cell {number}"
    try:
        plain = without_magics(source)
        linecache.cache[name] = (len(plain), None, plain.splitlines(True), name)  # for inspect.getsource
        return compile(plain, name, "exec", dont_inherit=True)
    except BaseException as error:
        return error


def without_magics(source: str) -> str:
    r"""Return a cell with what only IPython understands left out, line by line, so that line numbers stay.

    Examples
    --------
    >>> without_magics("%matplotlib inline\na = 7 % 4")
    'pass\na = 7 % 4'
    """
    cell = re.match(r"\s*%%(\w+).*\n?", source)
    if cell:
        return without_magics("\n" + source[cell.end() :]) if cell[1] in TIMED else ""
    try:
        ast.parse(source)
    except Exception:  # also of what is too deep, or holds a null
        return MAGIC.sub(lambda line: f"{line[1] or line[2] or ''}pass", source)
    return source


def without_hidden_tests(source: str) -> str:
    r"""Return a cell without nbgrader's hidden tests, which a teacher's copy has, with empty lines in their place.

    Examples
    --------
    >>> without_hidden_tests("### BEGIN HIDDEN TESTS\nassert right\n### END HIDDEN TESTS\ncheck()")
    '\n\n\ncheck()'
    """
    return HIDDEN.sub(lambda tests: "\n" * tests[0].count("\n"), source)


def out_of_memory(error: BaseException) -> bool:
    """Return whether an exception says that there was no more memory; torch's own is a RuntimeError."""
    return isinstance(error, MemoryError) or names_memory(_told(error))


def names_memory(text: str) -> bool:
    """Return whether a text tells of an exception that says so."""
    return re.search(r"MemoryError|can't allocate memory|Cannot allocate memory|not enough memory", text) is not None


def _told(error: Any) -> str:
    kind = type(error).__name__
    try:
        text = said(error).split("\n")[0][:300]
        if isinstance(error, SyntaxError) and error.lineno:
            text = f"{error.msg} (line {error.lineno})"
    except BaseException:  # a learner's own class
        text = ""
    return f"{kind}: {text}" if text else kind
