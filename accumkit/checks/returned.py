"""A learner's function called once, guarded, for what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from accumkit.checks.guarded import attribute, run
from accumkit.checks.values import shown
from accumkit.errors import AccumkitError


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
