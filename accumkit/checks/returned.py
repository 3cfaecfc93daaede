"""A learner's function called once, guarded, for what it returns."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from accumkit.checks.guarded import attribute, run
from accumkit.checks.values import shown
from accumkit.errors import AccumkitError
from accumkit.trace.where import where


def returned(function: Callable, arguments: dict[str, Any], seconds: float) -> Any:
    """Call a learner's function once and return what it returns.

    Parameters
    ----------
    function : callable
    arguments : dict
        By name, in the order of its parameters; they are given by position where it takes them so.
    seconds : float
        How long it may take.

    Returns
    -------
    object

    Raises
    ------
    AccumkitError
        It is no function, takes other arguments, raises, or does not end; the message says so, with the line.

    Examples
    --------
    >>> from accumkit.checks.returned import returned
    >>> returned(lambda model: model + 1, {"model": 2}, seconds=5)
    3
    """
    names = ", ".join(arguments)
    if not callable(function):
        raise AccumkitError(f"a function of ({names}) is needed; given: {shown(function)}")
    call = _call(function, arguments)
    if call is None:
        name = attribute(function, "__name__") or type(function).__name__
        raise AccumkitError(
            f"{name} takes {inspect.signature(function)}, and is called as {name}({names}): give it "
            f"{'this argument' if len(arguments) == 1 else 'these arguments'}"
        )
    results: list[Any] = []
    ending = run(lambda: results.append(call()), seconds)
    at = f" at {ending.location}" if ending.location else ""
    if ending.raised:
        raise AccumkitError(f"the function raised {ending.raised.rstrip('.')}{at}; it cannot be judged before it runs")
    if ending.late:
        raise AccumkitError(f"the function {ending.late}{at}, and was stopped; see whether its loop ends")
    return results[0]


def _call(function: Callable, arguments: dict[str, Any]) -> Callable[[], Any] | None:
    """Return the call, by position or by name; None where it takes neither."""
    try:
        signature = inspect.signature(function)
    except Exception:  # what it takes cannot be told
        return lambda: function(*arguments.values())
    for positional, named in ((tuple(arguments.values()), {}), ((), arguments)):
        try:
            signature.bind(*positional, **named)
        except TypeError:
            continue
        return lambda p=positional, n=named: function(*p, **n)
    return None


def returns_in_loop(function: Callable) -> str | None:
    """Return the line of the first `return` that stands inside a `for` loop of a function; None without one.

    It is None also where the source cannot be read.

    Examples
    --------
    >>> from accumkit.checks.returned import returns_in_loop
    >>> def first(values):
    ...     for value in values:
    ...         return value
    >>> returns_in_loop(first) is None
    False
    """
    code = attribute(function, "__code__")
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        loops = [node for node in ast.walk(tree) if isinstance(node, ast.For)]
        line = next(part.lineno for loop in loops for part in ast.walk(loop) if isinstance(part, ast.Return))
        line += code.co_firstlineno - 1
        return where(SimpleNamespace(f_code=code, f_lineno=line, f_lasti=-line, f_back=None))
    except Exception:  # no such line, no source to be had, or an object of a reader's own
        return None
