"""A trace whose pictures say what happened and do not say what it is called: for those who are to find the name."""

from __future__ import annotations

from dataclasses import replace

from accumkit.trace.record import MicroBatch, Trace


def unnamed(trace: Trace) -> Trace:
    """Return a trace with the same events and weights, in which nothing is called lost, leaked, erased or left over.

    What was erased weighs 0; what leaked in is in its window like any other; what is in no update is not weighed.

    Parameters
    ----------
    trace : Trace

    Returns
    -------
    Trace

    Examples
    --------
    >>> from accumkit import figures
    >>> from accumkit.figures.unnamed import unnamed
    >>> from accumkit.trace.record import MicroBatch, Trace, Update
    >>> late = MicroBatch(0, 0, 4, 4, 1.0, 1.0, "leaked", None)
    >>> trace = Trace(1, unit="examples", updates=[Update(0, 1, (late,), 4)])
    >>> figures.describe_weights(trace)
    'In update 1 micro-batch 1 leaked in from the epoch before, one of its examples weighing 1.'
    >>> figures.describe_weights(unnamed(trace))
    'Every example weighs 1, which is fair: 4 examples in update 1.'
    """
    updates = [u._replace(micro_batches=tuple(map(_kept, u.micro_batches)), carried=0.0) for u in trace.updates]
    return replace(trace, updates=updates, lost=[])


def _kept(micro: MicroBatch) -> MicroBatch:
    return micro._replace(fate="kept", share=0.0 if micro.fate == "erased" else micro.share)
