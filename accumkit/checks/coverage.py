"""Whether a loop gave every micro-batch of its data a backward of its own, and what to say where it did not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from accumkit.audit import Finding, Verdict
from accumkit.audit.findings import several, span
from accumkit.audit.status import DIFFERENT, EQUIVALENT, UNKNOWN
from accumkit.trace.record import Trace


def with_coverage(verdict: Verdict, sizes: Sequence[int], steps: int, calls: int) -> Verdict:
    """Say it where micro-batches were left out, put together, or shared one backward, and no finding does.

    Parameters
    ----------
    verdict : Verdict
    sizes : sequence of int
        Examples in each micro-batch of a pass.
    steps : int
        N.
    calls : int
        How often the function was called, a pass each.

    Returns
    -------
    Verdict
    """
    ran, due = len(verdict.trace.micro_batches), calls * len(sizes)
    if not 0 < ran < due or any(finding.pitfall == "tail-dropped" for finding in verdict.findings):
        return verdict
    windows = [sum(sizes[i : i + steps]) for i in range(0, len(sizes), steps)]
    trained, whole = [m.examples for m in verdict.trace.micro_batches], sum(sizes)
    forwards = verdict.trace.count_of("forward")
    if trained == windows * calls and forwards == ran:
        return _together(verdict)
    if trained == windows * calls or (forwards >= due and sum(trained) == calls * whole):
        return _one_backward(verdict, trained == windows * calls, ran == calls)
    reason = f"Only {several(ran, 'micro-batch')} of {due} had a backward ({calls} calls, {len(sizes)} each)"
    status = DIFFERENT if verdict.status == EQUIVALENT else verdict.status
    others = [said for said in verdict.reasons if not said.startswith(("The last pass ended", "The loader was begun"))]
    reason = f"{reason}: {_which(trained, list(sizes), calls)}"
    return replace(verdict, status=status, ok=False, reasons=(reason, *others))


def _which(trained: list[int], sizes: list[int], calls: int) -> str:
    """Say which micro-batches of each call were left out, as far as their sizes tell."""
    taken, rest = divmod(len(trained), calls)
    if rest == 0 and trained == sizes[:taken] * calls:
        return f"each call ended after the first {taken}. Does the function return, or break, inside its loop?"
    if rest == 0 and trained == sizes[-taken:] * calls:
        first = "the first one was" if len(sizes) - taken == 1 else f"the first {len(sizes) - taken} were"
        return f"{first} taken from the loader and not trained on. Is there a `next(...)` before the loop?"
    return "the others were left out. Every micro-batch that the loader gives has a backward of its own."


def started_anew(trace: Trace, micro_batches: int) -> str | None:
    """Return why a loop goes over its data again and again, where it takes only the first micro-batches each time."""
    taken = set(trace.fetched_sizes)
    if len(trace.fetched_sizes) < 2 or not 0 < max(taken) < micro_batches:
        return None
    return (
        f"Each time it took only the first {span(taken)} of {micro_batches} micro-batches: each `islice(loader, ...)`, "
        "like each `for ... in loader`, starts the loader anew. Make `micro_batches = iter(loader)` once, before the "
        "loop, and take every window from that."
    )


def _together(verdict: Verdict) -> Verdict:
    examples = span(m.examples for m in verdict.trace.micro_batches)
    reason = (
        f"Each update had one forward and one backward, over {examples} examples at once: you put the window back "
        "together. That is the big batch, which does not fit into memory. Call forward and backward on each "
        "micro-batch, and let `.grad` add them up."
    )
    return replace(verdict, status=UNKNOWN, ok=False, reasons=(reason,), findings=())


def _one_backward(verdict: Verdict, of_window: bool, of_pass: bool) -> Verdict:
    trace = verdict.trace
    right = "the gradient is right, but " if verdict.status == EQUIVALENT and of_window else ""
    what = "pass" if of_pass else "window"
    how = f"one for a whole {what}" if of_window or of_pass else "one for several of them"
    finding = Finding(
        "graph-kept",
        f"{several(trace.count_of('forward'), 'forward call')} and {several(len(trace.micro_batches), 'backward call')}"
        f", {how}: {right}all forwards of the {what} stay in memory until then, as with the big batch",
        trace.micro_batches[0].location,
        "call `backward()` on each micro-batch's loss, divided by the count of the window, right after its forward; "
        "`.grad` adds them up",
        "cost",
    )
    # a step after each of so few backward calls is not one after every micro-batch
    others = [other for other in verdict.findings if other.pitfall not in ("step-every-micro-batch", "graph-kept")]
    return replace(verdict, ok=False, findings=(finding, *others))
