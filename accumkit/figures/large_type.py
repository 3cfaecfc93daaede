"""Large type, for pictures that are read from the back row: the same picture on a narrower page, shown as wide."""

from __future__ import annotations

import os

PROJECTOR = "ACCUMKIT_PROJECTOR"  # set in the environment, it turns large type on from the start
NARROWER = 2 / 3  # of the usual width in points: shown as wide as before, all in the picture is half as large again
TEXT = 22  # size of sentences in pixels; notebooks have 13 or 14
LEAST = 2.1  # pixels a point: a low screen does not make a picture smaller than this; usually it is 1.35


def is_large() -> bool:
    """Whether pictures and panels are to be drawn in large type.

    Examples
    --------
    >>> from accumkit.figures.large_type import is_large
    >>> is_large()
    False
    """
    return os.environ.get(PROJECTOR, "") not in ("", "0")


def set_large(on: bool) -> None:
    """Turn large type on or off, for all that is drawn from now on."""
    if on:
        os.environ[PROJECTOR] = "1"
    else:
        os.environ.pop(PROJECTOR, None)


def pixels(usual: int) -> int:
    """Return a size on the page in pixels: the usual one, or a larger one.

    Examples
    --------
    >>> from accumkit.figures.large_type import pixels
    >>> pixels(13)
    13
    """
    return round(usual / NARROWER + 0.5) if is_large() else usual


def page(width: float) -> float:
    """Return the width of a picture in points: the usual one, or a narrower one for large type.

    Examples
    --------
    >>> from accumkit.figures.large_type import page
    >>> page(648.0)
    648.0
    """
    return width * NARROWER if is_large() else width
