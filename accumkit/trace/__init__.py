"""Watching a loop: events, and what every micro-batch had in every update."""

from accumkit.trace.record import Event, MicroBatch, Trace, Update
from accumkit.trace.watch import watch

__all__ = ["Event", "MicroBatch", "Trace", "Update", "watch"]
