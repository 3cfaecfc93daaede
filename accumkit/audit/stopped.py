"""Whether a run was broken off in its last pass: what waits for a step there was not dropped by its loop."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

from accumkit.audit.boundary import Pass
from accumkit.audit.offered import all_ahead, backwards_at, fetched_at
from accumkit.audit.reading import Case


def cut_short(case: Case) -> bool:
    """Whether the last pass was broken off before its data were over, after passes that left nothing over."""
    if not case.boundary.passes or never_ran(case):
        return False
    *before, last = case.boundary.passes
    whole = max((p.ran + p.left_out for p in before), default=last.size)
    if last.ran + last.left_out >= max(whole, last.size) or any(p.left_over for p in before):
        return False
    return not last.exhausted or (bool(last.left_over) and _ahead(case, last))


def never_ran(case: Case) -> list[tuple[int, int]]:
    """Return the passes whose short last window was left out before it ran: (pass, its micro-batches)."""
    passes = case.boundary.passes
    if case.trace.tail == "drop" or case.boundary.kind != "declared":
        return []
    if len(passes) == 1 and passes[0].length < 0:
        return []  # a stream: what was fetched last may be where the loop was stopped
    found = [
        (p.epoch, p.size % case.steps)
        for p in passes
        if p.size - p.ran - p.left_out == p.size % case.steps > 0 and not p.left_over
    ]
    if any(p.after_step for p in passes) and fetched_at(case.trace) is None:
        return []  # more were fetched than trained on, and which is not known
    return found if len(found) == len(passes) else []


def passed_over_at_the_end(case: Case) -> bool:
    """Whether what never ran was fetched batch by batch, with nothing waiting: perhaps left out for what it holds.

    A loop that fetches a whole window before it trains on it, and drops a short one, is none of these. One that makes
    a list of its loader, and calls one backward for several of its batches, may have left some out of the list.
    """
    unrun, fetches, backwards = dict(never_ran(case)), fetched_at(case.trace), backwards_at(case.trace)
    if not unrun or fetches is None:
        return False
    if case.boundary.joined and all_ahead(case.trace):
        return True
    for p in case.boundary.passes:
        places = fetches[p.epoch]
        if any(m.index not in backwards for m in p.micro_batches):
            return False
        trained = [bisect_left(places, backwards[m.index]) for m in p.micro_batches]  # batches, from 1
        if len(set(trained)) < len(trained) or max(trained) + unrun[p.epoch] > len(places):
            return False
    return True


def perhaps_cut_short(case: Case) -> bool:
    """Whether that is how it looks, and the data may as well have been over: batches were fetched, and not trained on.

    A stream does not say how long it is, and a loop may fetch a whole window before it begins to train on it.
    """
    if not cut_short(case):
        return False
    *before, last = case.boundary.passes
    if last.exhausted:
        return True
    unknown = last.length < 0 and last.fetched >= max((p.fetched for p in before), default=0)
    return unknown and last.after_step > 0


def _ahead(case: Case, last: Pass) -> bool:
    """Whether a loop that fetches ahead, a window or a batch, may have been stopped before it used all it had."""
    order = [e.kind for e in case.trace.events if e.kind in ("batch", "forward", "backward")]
    trained = [kind for kind in order if kind != "forward"]
    several = trained[: trained.index("backward")].count("batch") > 1 if "backward" in trained else False
    several = several or any(a == b == "backward" for a, b in pairwise(trained))
    return last.after_step > 0 and several and order[-1] == "backward"
