"""A learner's values: what they are in plain Python, and how they are shown; nothing here raises over them."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from numbers import Real
from typing import Any


def plain(value: Any) -> Any:
    """Return numbers of torch and numpy, and what holds them, as Python's own; anything else as it is.

    Examples
    --------
    >>> import torch
    >>> plain((torch.tensor(2), 0.5, range(2)))
    [2, 0.5, [0, 1]]
    """
    if type(value) in (bool, int, float, str) or value is None or value is ...:
        return value
    try:
        if hasattr(value, "tolist"):
            value = value.tolist()
        if isinstance(value, tuple | list | range):
            return [plain(one) for one in value]
        if isinstance(value, Real | Decimal) and not isinstance(value, bool | int | float):
            return float(value)
    except Exception:  # a learner's own objects may raise anything, and a list may hold itself
        pass
    return value


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
        text = f"{value:g}" if type(value) is float else _brief(value) if type(value) is list else repr(value)
    except Exception:  # a learner's own __repr__ may raise anything
        text = f"a {type(value).__name__}"
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", " ".join(text[:1000].split())).replace("`", "'")
    return text if len(text) <= 60 else f"{text[:57]}..."


def _brief(values: list) -> str:
    return f"[{', '.join(shown(one) if type(one) is float else repr(one) for one in values[:100])}]"
