"""The rule about graphs: what a backward has used should be gone before the next window is complete."""

from __future__ import annotations

from collections import Counter

from accumkit.audit.findings import Finding, several
from accumkit.audit.reading import Case


def graph_kept(case: Case) -> Finding | None:
    """Graphs of earlier windows are still alive at later steps, or every backward keeps its graph for no other."""
    trace, windows = case.trace, case.boundary.windows
    ran = len(trace.micro_batches)
    over = sum(u.accumulated for u in windows[:-1])  # those of them that a later step comes after
    kept = trace.graphs_kept if case.steps > 1 and 2 * trace.graphs_kept >= over else 0
    retained = trace.graphs_retained if 2 * trace.graphs_retained >= ran else 0
    if not ran or (not kept and not retained):
        return None
    seen = []
    if retained:
        seen.append(
            f"{retained} of {several(ran, 'backward call')} had retain_graph=True, and no other went through the same "
            "graph: all activations of a micro-batch stay until its loss is let go"
        )
    if kept:
        was = "was" if kept == 1 else "were"
        seen.append(
            f"{several(kept, 'graph')} of {over} {was} still there when the next update was made: something, such as a "
            "sum of losses, holds on to them"
        )
    lines = Counter(m.location for m in trace.micro_batches)
    return Finding(
        "graph-kept",
        "; ".join(seen),
        lines.most_common(1)[0][0],
        "add up numbers, `total += loss.item()` or `loss.detach()`, and leave out `retain_graph=True`",
        "cost",
    )
