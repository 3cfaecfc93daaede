"""Small marks that pictures share: text on its base line, and the cut through a bar that goes on.

Pictures add every artist with ``add_artist``: ``add_patch``, ``add_line`` and ``text`` work out limits as well, which
took half of the time of a drawing, and the pictures set their own.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon
from matplotlib.text import Text

from accumkit.figures import palette


def write(axes, x, y, text, size, color, align="center", gid=None, paper=False) -> None:
    """Write text on its base line, whose place depends on no font's height; ``paper`` puts white behind it."""
    box = (
        {"boxstyle": "square,pad=0.15", "facecolor": palette.PAPER, "edgecolor": "none", "alpha": 0.9}
        if paper
        else None
    )
    axes.add_artist(
        Text(
            x, y, text, fontsize=size, color=color, ha=align, va="baseline", gid=gid, bbox=box, zorder=4,
            clip_on=False, parse_math=False,
        )
    )  # fmt: skip


def cut(axes: Axes, left: float, wide: float, shown: float, point: float) -> None:
    """Cut a white zigzag through a bar that goes on beyond the picture."""
    teeth = max(2, int(wide // 12))
    xs = np.linspace(left - 1, left + wide + 1, 2 * teeth + 1)
    middle = shown * 0.8
    ys = middle + np.where(np.arange(len(xs)) % 2, 3, -3) * point
    band = 4 * point
    points = np.concatenate([np.column_stack([xs, ys]), np.column_stack([xs, ys + band])[::-1]])
    axes.add_artist(Polygon(points, facecolor=palette.SHADE, edgecolor="none", gid="break"))
    for offset in (0, band):
        axes.add_artist(Line2D(xs[1:-1], ys[1:-1] + offset, color=palette.INK, linewidth=0.7))
