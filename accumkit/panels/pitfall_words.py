"""What the pitfall panel says and shows about a simulation: its sentence, its lines of code, and why."""

from __future__ import annotations

from html import escape

from accumkit.figures.diff import diff_html
from accumkit.figures.numbers import counted
from accumkit.figures.words import describe_weights
from accumkit.panels.base import TEXT
from accumkit.pitfalls.bases import BASES
from accumkit.pitfalls.pitfall import Pitfall
from accumkit.pitfalls.simulation import Simulation


def sentence_of(simulation: Simulation, wrong: bool, revealed: bool) -> str:
    """Return what one of the two loops did, with its numbers, and what the audit says of it.

    Parameters
    ----------
    simulation : Simulation
    wrong : bool
        Of the loop with the fault, not of the right one.
    revealed : bool
        The reader has predicted, so the fault may be told.

    Returns
    -------
    str

    Examples
    --------
    >>> from accumkit import pitfalls
    >>> from accumkit.panels.pitfall_words import sentence_of
    >>> sentence_of(pitfalls.simulate("tail-dropped"), wrong=True, revealed=True)[-60:]
    'The audit: not equivalent; it names tail-dropped at line 16.'
    """
    settings = sizes_of(simulation)
    if wrong:
        verdict = simulation.verdict
        lines = {finding.pitfall: line_of(finding.location) for finding in verdict.findings}
        names = [slug + (f" at line {lines[slug]}" if lines.get(slug) else "") for slug in simulation.named]
        audit = f"it names {' and '.join(names)}" if names else "it names nothing"
        return f"{settings}. {simulation.sentence} The audit: {verdict.status}; {audit}."
    right = f"{describe_weights(simulation.right_trace)} The audit: {simulation.right_verdict.status}."
    if revealed:
        return f"Mended: the right loop, {settings}. {right}"
    return f"So far the right loop, {settings}. {right} Predict what the marked lines change; then they are run."


def sizes_of(simulation: Simulation) -> str:
    """Return the settings that the panel moves, in words.

    Examples
    --------
    >>> from accumkit import pitfalls
    >>> from accumkit.panels.pitfall_words import sizes_of
    >>> sizes_of(pitfalls.simulate("token-weighting"))
    'N = 4, 19 lines in micro-batches of 4'
    """
    settings = simulation.settings
    about = "about " if settings.unequal else ""
    what = "lines" if BASES[simulation.base].task == "tokens" else "examples"
    text = f"N = {settings.accumulation_steps}, {counted(settings.examples, what)} in micro-batches of "
    text += f"{about}{settings.micro_batch_size}"
    return text + (f", {settings.epochs} epochs" if settings.epochs > 1 else "")


def code_of(simulation: Simulation, wrong: bool, mended: bool) -> str:
    """Return the lines that differ, as HTML; the other way round where they are mended."""
    if mended:
        return diff_html(simulation.source, simulation.right_source, f"The right loop, beside {simulation.name}.py")
    pointed = {}
    if wrong:
        for finding in simulation.verdict.findings:
            if line := line_of(finding.location):
                pointed[line] = f"the audit: {finding.pitfall}"
    title = f"{simulation.name}.py, beside the right loop"
    return diff_html(simulation.right_source, simulation.source, title, pointed)


def why_of(pitfall: Pitfall) -> str:
    """Return a pitfall in words, as HTML: why it goes wrong, what one notices, what to change."""
    return (
        f'<div style="{TEXT};margin:2px 0 6px"><b>{escape(pitfall.slug)}: {escape(pitfall.title)}.</b> '
        f"{escape(pitfall.why)} <b>What one notices:</b> {escape(pitfall.symptom)} "
        f"<b>What to change:</b> {escape(pitfall.fix)}</div>"
    )


def note_of(simulation: Simulation, wrong: bool, revealed: bool) -> str:
    """Return what a reader should know of the setting: why the fault cannot show, or that torch warned."""
    if revealed and not simulation.shows:
        return f"At this setting {simulation.name} cannot show. {simulation.reason}"
    if wrong and simulation.warnings:
        return f"torch warned: {simulation.warnings[0].split('. ')[0]}."
    return ""


def line_of(location: str | None) -> int | None:
    """Return the line of "file.py:12", or None."""
    return int(location.rsplit(":", 1)[1]) if location else None
