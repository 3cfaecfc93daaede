"""The one error of the kit, and the words that errors and tables are put together from."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

LEAST, MOST = 2.0**-126, sys.float_info.max  # counts that can be divided by: one over less is infinite in float32


class AccumkitError(ValueError):
    """Something given to accumkit cannot work; the message says what was given and what to change."""


def several(count: int, noun: str) -> str:
    """Return "1 update", "3 updates", "2 micro-batches".

    Examples
    --------
    >>> several(1, "micro-batch"), several(1200, "update")
    ('1 micro-batch', '1,200 updates')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}{'es' if noun.endswith('ch') else 's'}"


def kind_of(thing: object) -> str:
    """Return the name of a thing's class, which nothing that the class does can change.

    Examples
    --------
    >>> kind_of(3)
    'int'
    """
    return type.__dict__["__name__"].__get__(type(thing))


def said(error: BaseException) -> str:
    """Return what an exception says, without the full stop at its end, since the sentence goes on.

    Examples
    --------
    >>> said(IndexError("Target 9 is out of bounds."))
    'Target 9 is out of bounds'
    """
    try:
        text = str(error)
    except Exception as unreadable:  # the reader's own class: the error to tell of is the first one
        return f"(its text cannot be read: __str__ raised {type(unreadable).__name__})"
    text = text.strip()
    return text if text.endswith("..") else text.removesuffix(".")


def as_number(count: Any) -> int | float:
    """Return what ``count`` gave as an int or a float."""
    count = count.item() if hasattr(count, "item") else count  # a tensor, or a number of numpy's
    if isinstance(count, (str, bytes)) or getattr(count, "imag", 0):
        raise AccumkitError(f"objective.count gave {count!r}; a count is a real number, such as len(batch[1])")
    return count if type(count) is int else float(count)


def no_count(count: int | float, where: str) -> AccumkitError:
    """Return the error for a number that a summed loss cannot be divided by."""
    needed = "; a count is a finite number of units, 0 or more (negative class weights cannot be counted)"
    if 0 < count < LEAST:
        needed = ", which is too small to divide by; count whole units, or make the class weights larger"
    given = repr(count) if not isinstance(count, int) or abs(count) <= MOST else "a whole number that no float can hold"
    return AccumkitError(f"{where}: objective.count gave {given}{needed}")


def single_examples(loader: object) -> AccumkitError:
    """Return the error for a data set in place of a loader."""
    return AccumkitError(
        f"the loader is a data set ({type(loader).__name__}), which gives single examples, so each example's "
        "leading size would be taken for a number of examples; give DataLoader(data, batch_size=...), or, where "
        "its items are batches already, DataLoader(data, batch_size=None)"
    )


def empty(loader: Iterable) -> AccumkitError:
    """Return the error for a loader that gave nothing."""
    once = iter(loader) is loader if hasattr(loader, "__next__") else False
    return AccumkitError(
        f"the loader ({type(loader).__name__}) gave no batch, so there is nothing to train on; "
        + (
            "an iterator can be gone through once: make a new one for each epoch, or give a list or a DataLoader"
            if once
            else "check the data set's length, its sampler, and drop_last with a batch size above that length"
        )
    )
