"""Every pitfall of the catalog simulated, and whether the audit names it."""

from __future__ import annotations

from collections.abc import Iterator

from accumkit.audit.findings import number
from accumkit.pitfalls.catalog import CATALOG
from accumkit.pitfalls.simulation import Simulation
from accumkit.pitfalls.simulator import simulate
from accumkit.pitfalls.telling import furthest_ratio

HEADER = ("pitfall", "gradient ratio", "named by the audit", "ok")
WIDTHS = (max(map(len, CATALOG)), len(HEADER[1]), 44, 3)


def rows() -> Iterator[tuple[Simulation, tuple[str, str, str, str]]]:
    """Yield each pitfall's simulation at the default settings, and its row of the table."""
    for slug in CATALOG:
        simulation = simulate(slug)
        ratio = furthest_ratio(simulation.trace)
        named = ", ".join(simulation.named) or "-"
        cells = (slug, "-" if ratio is None else number(ratio), named, "ok" if simulation.ok else "NOT")
        yield simulation, cells


def line(cells: tuple[str, ...]) -> str:
    """Return a line of the table."""
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True)).rstrip()


def why_not(simulation: Simulation) -> str:
    """Return what is wrong with a row that is not ok; empty for one that is."""
    if simulation.ok:
        return ""
    if not simulation.shows:
        return f"does not show: {simulation.reason}"
    parts = []
    if simulation.missed:
        parts.append(f"not named: {', '.join(simulation.missed)} ({simulation.verdict.status})")
    if simulation.mistaken:
        parts.append(f"named in error: {', '.join(simulation.mistaken)}")
    accused = [finding.pitfall for finding in simulation.right_verdict.findings]
    if accused:
        parts.append(f"the right loop is accused of {', '.join(accused)}")
    return "; ".join(parts)
