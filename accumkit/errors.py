"""The one error of the kit, and the words that errors and tables are put together from."""

from __future__ import annotations


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
