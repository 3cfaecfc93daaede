"""The verdict on a watched loop: are its updates those of the big batch, and if not, what is wrong where."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass

from accumkit.audit.findings import Finding, row, several, span
from accumkit.audit.reading import read, without_evidence
from accumkit.audit.rules import findings_of
from accumkit.audit.status import DIFFERENT, EQUIVALENT, SCALED, UNKNOWN, status_of
from accumkit.audit.wording import ONE
from accumkit.objective import AccumkitError
from accumkit.trace.record import Trace

# A room above this one draws the picture: the package puts its function here, so that nothing is imported upwards.
html_renderer: Callable[[Verdict], str] | None = None

SAID = {
    EQUIVALENT: "equivalent: the updates are those of the big batch",
    SCALED: "equivalent up to scale: those of the big batch, times a constant",
    DIFFERENT: "not equivalent: the updates are not those of the big batch",
    UNKNOWN: "cannot tell",
}


@dataclass(frozen=True, repr=False)
class Verdict:
    """What an audit says about a run.

    Parameters
    ----------
    status : str
        Of the updates: "equivalent", "equivalent up to scale", "not equivalent" or "cannot tell".
    ok : bool
        No finding, and the updates are those of the big batch.
    reasons : tuple of str
        Why the status is what it is, where no finding says so, and what else a reader should know; sentences.
    findings : tuple of Finding
        The faults that have a name, the one to mend first at the front.
    trace : Trace or None
        What was watched; None where nothing could be.
    """

    status: str
    ok: bool
    reasons: tuple[str, ...]
    findings: tuple[Finding, ...]
    trace: Trace | None

    @property
    def reason(self) -> str:
        """The reasons as one text."""
        return " ".join(self.reasons)

    def __repr__(self) -> str:
        rows = [row("updates", SAID[self.status])]
        if self.trace is not None and self.trace.micro_batches:
            rows.append(row("watched", _watched(self.trace)))
        rows += [row("because" if i == 0 else "", reason) for i, reason in enumerate(self.reasons)]
        rows = [line.removeprefix("  ") for text in rows for line in text.split("\n")]
        for number, finding in enumerate(self.findings, 1):
            rows += ["", f"{number}. {finding!r}"]
        return "\n".join(rows)

    def _repr_html_(self) -> str:
        if html_renderer is not None:
            return html_renderer(self)
        return f"<pre>{html.escape(repr(self))}</pre>"


def audit(trace: Trace) -> Verdict:
    """Say whether a watched loop's updates are those of the big batch, and name what is wrong.

    Parameters
    ----------
    trace : Trace
        From ``with ak.watch(model, objective, accumulation_steps=N) as trace: ...``, after the block has ended.

    Returns
    -------
    Verdict
        With ``ok``, ``status``, ``reasons`` and ``findings``; its repr is a plain table.

    Raises
    ------
    AccumkitError
        ``trace`` is not a trace.

    Examples
    --------
    >>> from accumkit.audit import audit
    >>> from accumkit.trace.record import Trace
    >>> audit(Trace(accumulation_steps=4))
    updates cannot tell
    because No backward and no optimizer step was seen: nothing was trained.
    """
    if not isinstance(trace, Trace):
        raise AccumkitError(
            f"audit was given an object of type {type(trace).__name__}; it needs the trace of a watched loop: "
            "with ak.watch(model, objective, accumulation_steps=4) as trace: your_loop(); then ak.audit(trace)"
        )
    case = read(trace)
    findings = findings_of(case)
    status, reasons = status_of(case, findings)
    return Verdict(status, status == EQUIVALENT and not findings, reasons, findings, trace)


def _watched(trace: Trace) -> str:
    micro_batches = trace.micro_batches
    blank = {m.index for u in trace.updates if without_evidence(u) for m in u.micro_batches}
    weights = [m.weight for m in micro_batches if m.weight is not None and m.index not in blank]
    weigh = f"; one {ONE.get(trace.unit, 'example')} weighs {span(weights)}" if weights else ""
    unseen = sum(m.share is None or m.index in blank for m in micro_batches)
    if weights and unseen:
        weigh += (
            f" in {several(len(weights), 'micro-batch')}, {unseen:,} {'was' if unseen == 1 else 'were'} not measured"
        )
    examples = sum(m.examples for m in micro_batches)
    return (
        f"{several(len(trace.updates), 'update')}, {several(len(micro_batches), 'micro-batch')}, "
        f"{several(examples, 'example')}, accumulation_steps={trace.accumulation_steps}{weigh}"
    )
