"""The one kind of error that accumkit raises on purpose."""

from __future__ import annotations


class AccumkitError(ValueError):
    """Something given to accumkit cannot work; the message says what was given and what to change."""
