"""A verdict in a notebook: its status, the findings as a table, the picture and its sentence."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from accumkit.figures.picture import weights_picture

MEANING = {
    "equivalent": "the updates are those of the big batch",
    "equivalent up to scale": "every example weighs the same, by a constant other than 1",
    "not equivalent": "the updates are not those of the big batch",
    "cannot tell": "what was seen does not decide it",
}
BAR = "border-left:4px solid currentColor;padding:2px 0 2px 12px;max-width:900px"
HEADS = {"What": "22%", "Where": "16%", "Seen": "29%", "What to change": "33%"}
TABLE = "border-collapse:collapse;table-layout:fixed;width:100%"
CELL = "text-align:left;vertical-align:top;padding:4px 14px 4px 0;white-space:normal;overflow-wrap:anywhere"


def verdict_html(verdict: Any) -> str:
    """Return a verdict as HTML: status and reasons, a table of findings, the picture of weights, its sentence.

    Text takes its colour from the notebook's theme; the picture stands on a white card.

    Parameters
    ----------
    verdict : Verdict
        What ``ak.audit`` returned: ``status``, ``reasons``, ``findings`` and ``trace`` are read.

    Returns
    -------
    str

    Examples
    --------
    >>> import accumkit as ak
    >>> from accumkit.trace.record import Trace
    >>> "<strong>Cannot tell:</strong>" in ak.figures.verdict_html(ak.audit(Trace(4)))
    True
    """
    findings, trace = verdict.findings, verdict.trace
    lines = [f"<p><strong>{escape(verdict.status.capitalize())}:</strong> {_lead(verdict)}</p>"]
    lines += [f"<p>{_code(reason)}</p>" for reason in verdict.reasons]
    if findings:
        cells = "".join(f'<th scope="col" style="{CELL};width:{width}">{head}</th>' for head, width in HEADS.items())
        rows = "".join(_row(finding) for finding in findings)
        lines.append(f'<table style="{TABLE}"><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table>')
    text = f'<div style="{BAR}">{"".join(lines)}</div>'
    if trace is None or not (trace.updates or trace.lost):
        return text
    picture = weights_picture(up_to_scale=verdict.status == "equivalent up to scale")
    return f'{text}<div style="margin-top:8px">{picture.html(trace)}</div>'


def _lead(verdict: Any) -> str:
    meaning = MEANING.get(verdict.status, "")
    if not verdict.findings:
        return meaning + "."
    amount = "one finding" if len(verdict.findings) == 1 else f"{len(verdict.findings)} findings"
    return f"{meaning}; {amount}."


def _row(finding: Any) -> str:
    what = f'<code style="white-space:nowrap">{escape(finding.pitfall)}</code><br>{_code(finding.title)}'
    where = escape(finding.location or "no line could be told")
    change = _code(finding.fix)
    if finding.lesson:
        change += f"<br>Lesson: {escape(str(finding.lesson))}"
    cells = (what, where, _code(finding.evidence), change)
    return "<tr>" + "".join(f'<td style="{CELL}">{cell}</td>' for cell in cells) + "</tr>"


def _code(text: str) -> str:
    """Return text as HTML, what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
