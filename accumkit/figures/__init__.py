"""Pictures of a trace, each with a text twin that says the same; pure functions that leave pyplot alone."""

from __future__ import annotations

from accumkit.figures.html import verdict_html
from accumkit.figures.picture import Picture, card, timeline_picture, weights_picture
from accumkit.figures.timeline import timeline
from accumkit.figures.weights import weights
from accumkit.figures.words import describe_timeline, describe_weights

__all__ = [
    "Picture",
    "card",
    "describe_timeline",
    "describe_weights",
    "timeline",
    "timeline_picture",
    "verdict_html",
    "weights",
    "weights_picture",
]
