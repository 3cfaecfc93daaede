"""A learner's values: what they are in plain Python, and how they are shown; nothing here raises over them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from decimal import Decimal
from itertools import islice
from numbers import Real
from typing import Any

from accumkit.errors import kind_of

MOST = 10_000  # values in one answer; beyond, or where a list holds itself, it is left as it is
DEEP, SIDE = 3, 30  # lists in lists, and values in each, that are shown
EXACT = {int: int.__int__, float: float.__float__, str: str.__str__}  # by class, whatever a subclass has of its own


class _TooManyError(Exception):
    """More values than an answer has."""


def exact(value: Any) -> Any:
    """Return an int, float, str or dict of a subclass as one of Python's own; anything else as it is.

    Examples
    --------
    >>> import numpy as np
    >>> exact(np.float64(0.5)), exact({"a": 1})
    (0.5, {'a': 1})
    """
    if issubclass(type(value), dict):
        return {_exact(key): _exact(inside) for key, inside in dict.items(value)}
    return _exact(value)


def _exact(value: Any) -> Any:
    if type(value) in (bool, int, float, str):
        return value
    return next((made(value) for kind, made in EXACT.items() if issubclass(type(value), kind)), value)


def plain(value: Any) -> Any:
    """Return numbers of torch and numpy, and what holds them, as Python's own; anything else as it is.

    So is what holds too many values, or itself.

    Examples
    --------
    >>> import torch
    >>> plain((torch.tensor(2), 0.5, range(2)))
    [2, 0.5, [0, 1]]
    """
    try:
        return _plain(value, [MOST])
    except Exception:  # a learner's own objects may raise anything, and a list may hold itself
        return value


def _plain(value: Any, left: list[int]) -> Any:
    """Return a value as plain Python, counting down how many are left."""
    left[0] -= 1
    if left[0] < 0:
        raise _TooManyError
    if value is None or value is ... or type(value) in (bool, int, float, str):
        return value
    value = _exact(value)
    try:
        if hasattr(value, "tolist"):
            _check_size(value, left[0])
            value = value.tolist()
        if isinstance(value, tuple | list | range):
            return [_plain(one, left) for one in value]
        if isinstance(value, Real | Decimal) and not isinstance(value, bool | int | float):
            return float(value)
    except (_TooManyError, RecursionError):
        raise
    except Exception:
        pass
    return value


def _check_size(value: Any, left: int) -> None:
    size = value.numel() if hasattr(value, "numel") else getattr(value, "size", 1)
    if size > left:
        raise _TooManyError


def is_number(value: Any) -> bool:
    """Return whether a value is a number that one can reckon with: no bool, not nan, not infinite."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number beyond what a float can hold
        return False


def shown(value: Any) -> str:
    """Return a value in few characters, the same in every run.

    Examples
    --------
    >>> shown([1 / 3, 2]), shown(object())
    ('[0.333333, 2]', '<object object>')
    """
    try:
        text = f"{value:g}" if type(value) is float else _brief(value, DEEP)
    except Exception:  # a learner's own __repr__ may raise anything
        text = f"a {kind_of(value)}"
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", " ".join(text[:1000].split())).replace("`", "'")
    return text if len(text) <= 60 else f"{text[:57]}..."


def _brief(value: Any, deep: int) -> str:
    """Return what `repr` says, floats in few digits, without going through all that lists in lists may hold."""
    if type(value) is str:
        return repr(value[:1000])
    if type(value) not in (list, tuple, dict):
        return repr(value)
    opened, closed = {list: "[]", tuple: "()", dict: "{}"}[type(value)]
    if not deep:
        return f"{opened}...{closed}"
    if type(value) is dict:
        parts = [f"{_brief(key, 0)}: {_brief(inside, deep - 1)}" for key, inside in _first(value.items())]
    else:
        parts = [f"{one:g}" if type(one) is float else _brief(one, deep - 1) for one in _first(value)]
    return f"{opened}{', '.join(parts)}{',' * (type(value) is tuple and len(value) == 1)}{closed}"


def _first(values: Iterable[Any]) -> list[Any]:
    return list(islice(values, SIDE))
