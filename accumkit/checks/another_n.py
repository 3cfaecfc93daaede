"""A second run with another N: what to say of a loop that is right with one N alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from accumkit.audit.boundary import declared_sizes
from accumkit.audit.findings import listed
from accumkit.checks.audited import CALLS
from accumkit.checks.outcome import NOT_YET, Outcome
from accumkit.trace.record import Trace

OTHER_STEPS = 3  # a second run, in which the data end with a full window; a 4 that is written down shows in it


def also(all_right: str, outcome: Outcome) -> Outcome:
    """Return what is to be said of another run, after a sentence on the one that was right.

    Parameters
    ----------
    all_right : str
        A sentence: where all is right, and where not.
    outcome : Outcome
        Of the run that is not.

    Examples
    --------
    >>> from accumkit.checks.another_n import also
    >>> from accumkit.checks.outcome import Outcome
    >>> also("with 4 all is right, but not with 3.", Outcome("not yet", "there is one thing to mend."))
    Not yet: with 4 all is right, but not with 3. There is one thing to mend.
    """
    lead = f"{all_right} {outcome.lead[:1].upper()}{outcome.lead[1:]}"
    return Outcome(NOT_YET, lead, outcome.items, trace=outcome.trace)


def fixed_steps(trace: Trace | None, size: int, steps: int, before: int) -> Outcome | None:
    """Return what to say of windows that are as long as N was in an earlier run; None where they are not.

    Parameters
    ----------
    trace : Trace or None
        Of this run.
    size : int
        Micro-batches of a pass.
    steps, before : int
        N of this run, and of the earlier one.
    """
    if trace is None or steps == before:
        return None
    found = [update.accumulated for update in trace.updates]
    stale = list(declared_sizes(size, before))
    if found[: len(found) // CALLS] != stale:
        return None
    line = trace.updates[0].location
    told = (
        "A number where `accumulation_steps` belongs (fixed-accumulation-steps)",
        f"Measured: windows of {_said(stale)} micro-batches, as with accumulation_steps={before}; with {steps} they "
        f"are {_said(declared_sizes(size, steps))}.",
        f"To change{f', at {line}' if line else ''}: use the name in place of the number, so that the loop works for "
        "every N.",
    )
    return Outcome(NOT_YET, "there is one thing to mend.", (told,), trace=trace)


def only_with(steps: int, other: int, micro_batches: int, again: Outcome) -> Outcome:
    """Return what is to be said of a loop that is right with one N, and not with another one."""
    lead = (
        f"with accumulation_steps={steps} all is right. With accumulation_steps={other}, and {micro_batches} "
        f"micro-batches: {again.lead}"
    )
    items = again.items
    if items and any(re.search(rf"\bwindows of {steps}\b", text) for text in items[0]):
        _, measured, change, *rest = items[0]
        at = change.split(": ")[0]
        mend = f"{at}: write `accumulation_steps` where the loop has a {steps}, or a number that follows from it."
        items = ((f"Windows of {steps}, whatever N is (n-written-down)", measured, mend, *rest), *items[1:])
    return replace(again, lead=lead, items=items)


def _said(sizes: Sequence[int]) -> str:
    return listed(list(map(str, sizes)))
