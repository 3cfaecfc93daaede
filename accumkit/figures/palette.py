"""One palette for every picture: colours that hold for colour-blind readers, each with a second sign beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from io import StringIO

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito's blue, vermillion, green and purple have a contrast of 3:1 or more on white; their others do not.
BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
INK, MUTED, LINE, SHADE, PAPER = "#1A1A1A", "#595959", "#BDBDBD", "#F1F1F1", "#FFFFFF"

NARROW, WIDE = frozenset(".,:;'|ijlftr "), frozenset("mwMW")
DECIMALS = re.compile(r"(\d\.\d\d)\d+")
PATTERN = re.compile(r"<pattern .*?</pattern>", re.DOTALL)
CURVES = re.compile(r'width="72" height="72">(\s*<rect [^>]*/>\s*)<path d="([^"]*)" style="fill: (#\w+)[^>]*/>')
BODY, SMALL = 9.0, 8.0  # type sizes, points

# DejaVu Sans comes with matplotlib and is about the widest of these: text that fits in it fits in the viewer's font.
SVG_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "accumkit",
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans", "Helvetica", "Arial", "sans-serif"],
    "hatch.linewidth": 0.8,
    "text.usetex": False,
    "path.simplify": True,
}


@dataclass(frozen=True)
class Look:
    """How one kind of bar is drawn, and the word that says the same."""

    face: str
    edge: str
    hatch: str
    word: str
    outline: bool = False  # an outline shows what it should have weighed: it pulls nothing
    dashed: bool = False


LOOKS = {
    "fair": Look(BLUE, INK, "", "fair"),
    "unfair": Look(VERMILLION, INK, "..", "not fair"),
    "scaled": Look(GREEN, INK, "--", "the same for all, not 1"),
    "leaked": Look(PURPLE, INK, "xx", "leaked from the epoch before"),
    "lost": Look(
        PAPER, VERMILLION, "//", "lost: in no update, pulls nothing (outline: what it should have been)", outline=True
    ),
    "erased": Look(
        PAPER,
        VERMILLION,
        "\\\\",
        "erased before the step, pulls nothing (outline: what it should have been)",
        outline=True,
    ),
    "empty": Look(PAPER, MUTED, "", "counts nothing", outline=True),
    "unmeasured": Look(PAPER, MUTED, "", "not measured", outline=True, dashed=True),
}


def new_figure(width: float, height: float) -> Figure:
    """Return an empty white figure of ``width`` by ``height`` inches that pyplot does not know of."""
    figure = Figure(figsize=(width, height), facecolor=PAPER)
    FigureCanvasAgg(figure)
    return figure


def bare_axes(figure: Figure, left: float, bottom: float, width: float, height: float):
    """Return axes without ticks or frame; the place is in points from the figure's lower left corner."""
    across, up = figure.get_size_inches() * 72
    axes = figure.add_axes((left / across, bottom / up, width / across, height / up))
    axes.set_axis_off()  # tick labels are half of a redraw's cost; the pictures write the few they need
    return axes


def size_in_points(axes) -> tuple[float, float]:
    """Return the width and height of axes, in points."""
    across, up = axes.figure.get_size_inches() * 72
    place = axes.get_position()
    return place.width * across, place.height * up


def wipe(axes) -> None:
    """Remove what was drawn into axes; the axes stay, which is what makes drawing again cheap."""
    for artist in [*axes.patches, *axes.lines, *axes.texts, *axes.collections]:
        artist.remove()


def text_width(text: str, size: float) -> float:
    """Return a width, in points, that ``text`` does not exceed in common sans-serif fonts.

    Counted by letters rather than measured, so that a picture is the same on every machine.
    """
    return size * sum(0.42 if letter in NARROW else 0.98 if letter in WIDE else 0.64 for letter in text)


def to_svg(figure: Figure) -> str:
    """Return a figure as an SVG picture: text as text, the same bytes for the same picture.

    Parameters
    ----------
    figure : matplotlib.figure.Figure

    Returns
    -------
    str

    Examples
    --------
    >>> from accumkit.figures import palette
    >>> palette.to_svg(palette.new_figure(1, 1)).lstrip().startswith("<?xml")
    True
    """
    out = StringIO()
    with mpl.rc_context(SVG_STYLE):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    # Hatches are most of the bytes, and notebooks keep pictures: two decimals of a point are plenty there.
    return PATTERN.sub(lambda hatch: DECIMALS.sub(r"\1", CURVES.sub(_dots, hatch[0])), out.getvalue())


def _dots(hatch: re.Match) -> str:
    """Return the hatch ".." as five circles that repeat: matplotlib writes out 163 of them, eight curves each."""
    rect, path, color = hatch.groups()
    if path.count("z") != 163:
        return hatch[0]
    spots = ((0, 0), (6, 0), (3, 6), (0, 12), (6, 12))
    circles = "".join(f'<circle cx="{x}" cy="{y}" r="1.1"/>' for x, y in spots)
    return f'width="6" height="12">{rect}<g fill="{color}">{circles}</g>'


def to_png(figure: Figure, path, dpi: float = 144) -> None:
    """Write a figure to ``path`` as a PNG picture of ``dpi`` dots an inch."""
    with mpl.rc_context(SVG_STYLE):
        figure.savefig(path, format="png", dpi=dpi, metadata={"Software": None})
