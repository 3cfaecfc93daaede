"""Several traces side by side, each with its name and its sentence."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import wrap

from matplotlib.figure import Figure

from accumkit.figures import palette
from accumkit.figures.weights import draw_weights
from accumkit.figures.words import describe_weights
from accumkit.trace.record import Trace

CELL, NAME, WORDS, SIDE = (440, 168), 30, 40, 14  # points: bars, name above, sentence below, space at the sides


def gallery(traces: Mapping[str, Trace], title: str = "What each example weighs", columns: int = 2) -> Figure:
    """Draw the weights of several traces, each under its name and above its sentence.

    Parameters
    ----------
    traces : mapping of str to Trace
        By the name that is written above each.
    title : str
    columns : int

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> from accumkit.figures.gallery import gallery
    >>> from accumkit.trace.record import MicroBatch, Trace, Update
    >>> micro = MicroBatch(0, 0, 4, 4, 1.0, 1.0, "kept", None)
    >>> figure = gallery({"right": Trace(1, unit="examples", updates=[Update(0, 0, (micro,), 4)])})
    >>> len(figure.axes)
    1
    """
    rows = -(-len(traces) // columns)
    wide, high = columns * (CELL[0] + SIDE) + SIDE, rows * (CELL[1] + NAME + WORDS) + 58
    figure = palette.new_figure(wide / 72, high / 72)

    def write(x, y, text, size, color, weight="normal") -> None:
        figure.text(x / wide, y / high, text, fontsize=size, color=color, weight=weight, va="baseline")

    how = "width: examples in the micro-batch (printed below)   height: what one example weighs, 1 is fair"
    write(SIDE + 4, high - 26, title, 14, palette.INK, "bold")
    write(SIDE + 4, high - 42, how, palette.BODY, palette.MUTED)
    for i, (name, trace) in enumerate(traces.items()):
        x = SIDE + (i % columns) * (CELL[0] + SIDE)
        top = high - 58 - (i // columns) * (CELL[1] + NAME + WORDS)
        write(x + 4, top - 18, name, 11, palette.INK, "bold")
        draw_weights(palette.bare_axes(figure, x, top - NAME - CELL[1], *CELL), trace, legend=False)
        lines = wrap(describe_weights(trace), int(CELL[0] / (0.56 * palette.BODY)))
        for row, line in enumerate(lines[:3]):
            write(x + 4, top - NAME - CELL[1] - 6 - 12 * row, line, palette.BODY, palette.MUTED)
    return figure
