"""Where a learner's windows end, in an exercise's words: one update a pass, a first window too short or too long."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from accumkit.audit import Verdict
from accumkit.audit.boundary import Boundary, declared_sizes, read_boundary
from accumkit.audit.findings import listed, several
from accumkit.checks.divisors import fair
from accumkit.checks.outcome import NOT_YET, Outcome, heading
from accumkit.checks.trained import ONE_PASS
from accumkit.trace.record import Trace

SHOWN = 8  # windows at most
# What the audit makes of windows like these; a reader who declared nothing is told in other words.
REPLACED = ("off-by-one", "nested-accumulation")
AFTER_A_STEP = "stale-gradients"  # what a second step in a row looks like
NAMED = ("step-every-micro-batch", "tail-dropped", "tail-leaked", "data-reused")  # it says more than "other-windows"
BRACKETS = (
    "put brackets: `%` comes before `+`, so `{found} accumulation_steps` is `{left}({right} accumulation_steps)`, and "
    "that is no test of a window's end"
)
CHANGE = {
    "never-stepped": "where is `optimizer.step()`, and does its condition ever hold? It belongs inside the loop, at "
    "the end of each window",
    "stepped-twice": "leave out one of the two `optimizer.step()`: the second one goes on with the same gradients",
    "one-update-a-pass": "is `optimizer.step()` inside the loop, at the end of each window? If it is, its condition "
    "holds at the end of the pass only",
    "first-window-short": "the condition holds one micro-batch too early. `(i + 1)` is for `enumerate(loader)`, which "
    "counts from 0; `enumerate(loader, 1)` counts from 1, and there `i` alone is the number of micro-batches",
    "first-window-long": "the condition holds one micro-batch too late. `enumerate(loader)` counts from 0, so after "
    "the first window `i` is `accumulation_steps - 1`; `i + 1` is the number of micro-batches, and needs no case for 0",
    "other-number": "a window ends after `accumulation_steps` micro-batches: look at the number in the condition, "
    "or in `islice`, and at where the counting begins",
    "other-windows": "step after every `accumulation_steps` micro-batches, and once more at the end of the pass if "
    "some are left",
}  # fmt: skip
FAIR = "The picture is fair, for each example is right in its own update; what is wrong is which ones make an update."


def where_windows_end(
    verdict: Verdict, train: Callable | None = None, change: Mapping[str, str] | None = None
) -> Outcome | None:
    """Return what to say of a loop whose windows end elsewhere; None where they end well, or a finding says it better.

    Parameters
    ----------
    verdict : Verdict
        Of a learner's loop.
    train : callable, optional
        That loop; its source shows whether brackets are missing.
    change : mapping, optional
        An exercise's own advice by slip, in place of that in ``CHANGE``.

    Returns
    -------
    Outcome or None
        The slip first, with the line of the step, then the headings of what else the audit found.
    """
    item = _item(verdict, train, {**CHANGE, **(change or {})})
    if item is None:
        return None
    replaced = (*REPLACED, AFTER_A_STEP) if _twice(verdict) else REPLACED
    others = [(heading(finding),) for finding in verdict.findings if finding.pitfall not in replaced]
    lead = "there is one thing to mend."
    if others:
        lead = f"there are {len(others) + 1} things to mend. Begin with the first, and check again: that may mend the "
        lead += "rest too."
    elif fair(verdict.trace):
        item = (*item, FAIR)
    return Outcome(NOT_YET, lead, (item, *others), trace=verdict.trace)


def _item(verdict: Verdict, train: Callable | None, change: Mapping[str, str]) -> tuple[str, ...] | None:
    trace = verdict.trace
    if verdict.ok or trace is None or not trace.micro_batches:
        return None
    if any(ONE_PASS in reason for reason in verdict.reasons):
        return None  # more passes than one a call, which says it all
    boundary = read_boundary(trace)
    fetched = trace.fetched_sizes
    if any(p.ran != p.size or p.ran > (fetched[p.epoch] or p.ran) for p in boundary.passes):
        return None  # micro-batches were left out, or cut into pieces: their number says nothing
    slip = "stepped-twice" if _twice(verdict) else _slip(boundary)
    if slip is None or (slip == "other-windows" and any(f.pitfall in NAMED for f in verdict.findings)):
        return None
    title, measured = _told(slip, boundary, trace)
    line = boundary.windows[0].location if boundary.windows else None
    at = f", at {line}" if line else ""
    found = _without_brackets(train)
    advice = found if found and slip in ("never-stepped", "one-update-a-pass", "other-windows") else change[slip]
    return f"{title} ({slip})", f"Measured: {measured}.", f"To change{at}: {advice}."


def _twice(verdict: Verdict) -> bool:
    """Whether every window had two steps, the second of them with the gradients of the first."""
    after = [event.kind for event in verdict.trace.events if event.kind in ("backward", "step", "zero_grad")]
    steps = [i for i, kind in enumerate(after) if kind == "step"]
    again = [i for i in steps if after[i - 1] == "step"]
    stale = any(finding.pitfall == AFTER_A_STEP for finding in verdict.findings)
    return stale and bool(again) and 2 * len(again) >= len(steps)


def _slip(boundary: Boundary) -> str | None:
    """Return the name of how windows end; None where they end as they should, or as a finding of the audit says."""
    steps, passes = boundary.steps, boundary.passes
    if not boundary.windows:
        return "never-stepped"
    if boundary.kind in ("declared", "straddling", "every micro-batch") or steps < 3:
        return None
    if boundary.pass_long:
        return "one-update-a-pass"
    longest = max((len(p.inner) for p in passes), default=0)
    for slip, offset in (("first-window-short", -1), ("first-window-long", 1)):
        # the end of the pass is tested with the same number, so a window may end beside it too
        if longest and all(
            set(p.inner) - {p.ran + offset} == set(range(steps + offset, p.ran, steps)) - {p.ran + offset}
            for p in passes
        ):  # fmt: skip
            return slip
    for every in (steps - 1, steps + 1):
        if longest and all(p.inner == tuple(range(every, p.ran, every)) for p in passes):
            return "other-number"
    return None if boundary.kind == "wrong count" else "other-windows"


def _told(slip: str, boundary: Boundary, trace: Trace) -> tuple[str, str]:
    """Return the title of a slip, and what was measured."""
    ran, steps = boundary.passes[0].ran, boundary.steps
    due = [str(size) for size in declared_sizes(ran, steps)]
    if slip == "never-stepped":
        made = f"{several(len(trace.micro_batches), 'micro-batch')} had a backward, and no optimizer step was made"
        return "No update was made", made
    if slip == "stepped-twice":
        made = f"{several(trace.count_of('step'), 'step')} for {several(len(boundary.windows), 'window')}"
        return "Two steps for one window", f"{made}, with no backward and no `zero_grad` between the two of a window"
    if slip == "one-update-a-pass":
        made = f"each pass of {several(ran, 'micro-batch')} had one update, at its end"
        return "One update for a whole pass", f"{made}; accumulation_steps={steps} makes {len(due)} of them"
    title = {
        "first-window-short": "The first window is one micro-batch too short",
        "first-window-long": "The first window is one micro-batch too long",
        "other-number": "Windows of another number of micro-batches",
        "other-windows": "Windows end in other places",
    }[slip]
    sizes = [str(update.accumulated) for update in boundary.windows if update.epoch == boundary.windows[0].epoch]
    shown = listed(sizes) if len(sizes) <= SHOWN else ", ".join(sizes[:SHOWN]) + ", ..."
    return title, f"windows of {shown} micro-batches in a pass of {ran}; accumulation_steps={steps} makes {listed(due)}"


def _without_brackets(train: Any) -> str | None:
    """Return what to say of a sum before `%`, if the source of a function has one without brackets."""
    try:
        source = inspect.getsource(train)
    except Exception:  # there is none to be had, or an object of a reader's own raises
        return None
    found = re.search(r"(\w+ *[+-] *)(\d+ *%)(?= *accumulation_steps)", source)
    if found is None:
        return None
    return BRACKETS.format(found=found[0], left=found[1], right=found[2])
