"""From a solution to its stub, and whether a stub is still one."""

from __future__ import annotations

import dis
import re
from types import CodeType
from typing import Any

from accumkit.checks.guarded import attribute
from accumkit.errors import AccumkitError

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
INSTEAD = "### INSTEAD OF"  # between the two: what follows, commented out, is what a learner gets to mend
PLACEHOLDER = "...  # your answer here"


def cut_solution(source: str, placeholder: str = PLACEHOLDER) -> str:
    r"""Return ``source`` as a learner gets it: what stands between `BEGIN` and `END` is replaced.

    A placeholder that does nothing takes its place; or, where `INSTEAD` stands among those lines, the lines after it
    without the ``#`` in front of them, which may be none.

    Raises
    ------
    AccumkitError
        A mark without its partner or in another order, or a line after `INSTEAD` that is no comment.

    Examples
    --------
    >>> from accumkit.checks.stubs import cut_solution
    >>> cut_solution("### BEGIN SOLUTION\ndivide()\n### END SOLUTION\n")
    '...  # your answer here\n'
    >>> cut_solution("### BEGIN SOLUTION\ndivide()\n### INSTEAD OF\n# multiply()\n### END SOLUTION\n")
    'multiply()\n'
    """
    return "".join(_read(source, placeholder)[0])


def solved(source: str) -> str:
    """Return ``source`` as a solution that runs: without the marks, and without what `INSTEAD` leads in.

    Raises
    ------
    AccumkitError
        As `cut_solution`.
    """
    return "".join(_read(source, PLACEHOLDER)[1])


def _read(source: str, placeholder: str) -> tuple[list[str], list[str]]:
    """Return the lines of the stub, and those of the solution."""
    stub: list[str] = []
    solution: list[str] = []
    opened, instead = "", False  # the mark that the stub's lines at this place depend on
    for number, line in enumerate(source.splitlines(True), 1):
        mark = line.strip()
        if mark == BEGIN and not opened:
            opened, instead = line, False
        elif mark == INSTEAD and opened and not instead:
            instead = True
        elif mark == END and opened:
            if not instead:
                stub.append(opened.replace(BEGIN, placeholder))
            opened = ""
        elif mark in (BEGIN, INSTEAD, END):
            raise AccumkitError(f"line {number}: {mark!r} where its partner should come first")
        elif re.search(r"#\s*((BEGIN|END) SOLUTION|###? INSTEAD OF)", line, re.IGNORECASE):
            raise AccumkitError(f"line {number}, {mark!r}: a mark stands alone on its line, as {BEGIN!r}")
        elif not opened:
            stub.append(line)
            solution.append(line)
        elif not instead:
            solution.append(line)
        elif mark.startswith("#"):
            stub.append(re.sub(r"# ?", "", line, count=1))
        else:
            raise AccumkitError(f"line {number}, {mark!r}: after {INSTEAD!r} every line begins with '#'")
    if opened:
        raise AccumkitError(f"{BEGIN!r} without {END!r}")
    return stub, solution


def is_blank(attempt: Any) -> bool:
    """Return True for what holds no answer yet.

    A function does nothing at all (only a docstring, ``...``, ``pass`` or ``return``); in a dict, list or tuple every
    value is still ``...`` or None.
    """
    if attempt is None or attempt is Ellipsis:
        return True
    if type(attempt) in (dict, list, tuple):
        return all(value is None or value is ... for value in (attempt.values() if type(attempt) is dict else attempt))
    code = attribute(attempt, "__code__")
    if not issubclass(type(code), CodeType):  # any object may have an attribute of that name
        return False
    idle = {"RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST"}
    return all(step.opname in idle and (step.opname == "RESUME" or step.argval in (None, ...))
               for step in dis.get_instructions(code))  # fmt: skip


def is_as_given(attempt: Any, stub: str, imports: str = "") -> bool:
    r"""Return whether a function is still the one of its name in ``stub``, comments and blank lines apart.

    Parameters
    ----------
    attempt : object
    stub : str
        The function as it was given.
    imports : str
        What may stand above it, in the same file or in a cell of its own: Python compiles a call of what a name was
        imported for a little differently in the two cases.

    Examples
    --------
    >>> from accumkit.checks.stubs import is_as_given
    >>> def halved(x):
    ...     return x / 3  # a comment changes nothing
    >>> is_as_given(halved, "def halved(x):\n    return x / 3\n")
    True
    >>> is_as_given(halved, "def halved(x):\n    return x / 2\n")
    False
    """
    code = attribute(attempt, "__code__")
    if not issubclass(type(code), CodeType):
        return False
    modules = [compile(source, "stub", "exec", dont_inherit=True) for source in (stub, f"{imports}\n\n{stub}")]
    parts = [part for module in modules for part in module.co_consts if isinstance(part, CodeType)]
    return any(part.co_name == code.co_name and _does(part) == _does(code) for part in parts)


def _does(code: CodeType) -> tuple[Any, ...]:
    """Return what a function's code does, without where it stands."""
    consts = tuple(_does(const) if isinstance(const, CodeType) else (type(const), const) for const in code.co_consts)
    return (code.co_code, consts, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
            code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)  # fmt: skip
