"""Training curves by norm and micro-batch size, and the errors at their end beside published ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from accumkit.figures import large_type, palette
from accumkit.figures.marks import write
from accumkit.figures.norm_words import describe_curves
from accumkit.figures.numbers import listed
from accumkit.figures.picture import card
from accumkit.studies.curves import WU_AND_HE, WU_AND_HE_SIZES, Curves
from accumkit.studies.nets import KINDS

WIDTH, HEIGHT = 648.0, 218.0  # points
LOOKS = {"batch": (palette.VERMILLION, (0, (1.2, 1.2)), "s"), "group": (palette.BLUE, "solid", "o")}
OTHER = (palette.GREEN, (0, (5, 2)), "^")
DASHES = ("solid", (0, (6, 2)), (0, (4, 2, 1, 2)), (0, (2, 1.5)), (0, (1, 1)))
THEIRS = (
    "Wu and He 2018, their figures, not run here: ResNet-50 on ImageNet, validation error in percent by images per "
    "GPU. In theirs the whole batch shrinks with the images per GPU; here the window stays 64."
)


@dataclass(frozen=True)
class Frame:
    """Where a small diagram stands, in points, and what its two scales mean."""

    left: float
    bottom: float
    wide: float
    high: float
    low: float
    top: float

    def up(self, value: float) -> float:
        """Return the height of a value; one beyond the scale stays at its edge."""
        return self.bottom + self.high * (min(max(value, self.low), self.top) - self.low) / (self.top - self.low)

    def at(self, sizes: Sequence[int], size: int) -> float:
        """Return the place of a micro-batch size, large ones left, a step for each halving."""
        last = log2(sizes[0] / sizes[-1]) or 1.0
        return self.left + 14 + (self.wide - 28) * log2(sizes[0] / size) / last


class CurvesPicture:
    """Three pictures kept between drawings: errors epoch by epoch, errors at the end, and Wu and He's.

    Examples
    --------
    >>> from accumkit.figures.curves import CurvesPicture
    >>> from accumkit.studies.curves import Curves, Plan
    >>> len(CurvesPicture().html(Curves(Plan())))
    2
    """

    def __init__(self) -> None:
        self._figures = [palette.new_figure(WIDTH / 72, HEIGHT / 72) for _ in range(2)]
        self._axes = [palette.bare_axes(figure, 0, 0, WIDTH, HEIGHT) for figure in self._figures]

    def html(self, curves: Curves) -> tuple[str, str]:
        """Draw the curves; return the pictures with their sentences."""
        for figure in self._figures:
            figure.set_size_inches(large_type.page(WIDTH) / 72, HEIGHT / 72)  # the axes fill it, whatever its size
        draw_epochs(self._axes[0], curves)
        draw_ends(self._axes[1], curves)
        svgs = [palette.to_svg(figure) for figure in self._figures]
        return (
            card(svgs[0], describe_epochs(curves), "Validation error, epoch by epoch"),
            card(svgs[1], f"{describe_curves(curves)} {describe_theirs()}", "After the last epoch, beside ImageNet"),
        )


def describe_epochs(curves: Curves) -> str:
    """Say in a sentence what the curves show."""
    said = []
    for norm in curves.plan.norms:
        ends = {b: curves.final(norm, b) for b in curves.plan.sizes}
        first = next((b for b, found in ends.items() if found), None)
        last = next((b for b, found in reversed(ends.items()) if found), None)
        if first is not None:
            sizes = f"{fmean(ends[first]):.1f} percent with micro-batches of {first}"
            if last != first:
                sizes += f" and at {fmean(ends[last]):.1f} with micro-batches of {last}"
            said.append(f"{KINDS[norm].title} ends at {sizes}")
    return f"A line for each micro-batch size, means over seeds: {'; '.join(said) or 'no run is through yet'}."


def describe_theirs() -> str:
    """Say Wu and He's figures in words."""
    parts = []
    for norm, errors in WU_AND_HE.items():
        pairs = zip(errors, WU_AND_HE_SIZES, strict=True)
        parts.append(f"{KINDS[norm].title} {listed([f'{e} at {b}' for e, b in pairs], most=9)}")
    return f"{THEIRS} {'; '.join(parts)}."


def draw_epochs(axes: Axes, curves: Curves) -> None:
    """Draw a diagram for each norm, and in it a line for each micro-batch size."""
    width = _clean(axes)
    norms, epochs = curves.plan.norms, curves.plan.epochs
    cell = width / max(len(norms), 1)
    known = [e for runs in curves.errors.values() for run in runs for e in run]
    top = next(top for top in (40.0, 60.0, 100.0) if max(known, default=0) <= top)
    for i, norm in enumerate(norms):
        frame = Frame(i * cell + 44, 40, cell - 98, HEIGHT - 66, 0, top)
        _frame(axes, frame, KINDS[norm].title, "epoch")
        for epoch in range(1, epochs + 1):
            write(axes, _place(frame, epoch, epochs), 27, str(epoch), palette.SMALL, palette.MUTED)
        ends = []
        for j, size in enumerate(curves.plan.sizes):
            means = _means(curves.errors.get((norm, size), []))
            if not means:
                continue
            xs = [_place(frame, epoch + 1, epochs) for epoch in range(len(means))]
            colour, _, marker = LOOKS.get(norm, OTHER)
            axes.add_line(
                Line2D(xs, [frame.up(m) for m in means], color=colour, linewidth=1.4, marker=marker, ms=3,
                       linestyle=DASHES[j % len(DASHES)], gid=f"curve {norm} {size}")
            )  # fmt: skip
            ends.append((frame.up(means[-1]), size, xs[-1]))
        _ends(axes, ends, frame.left + frame.wide + 6)


def draw_ends(axes: Axes, curves: Curves) -> None:
    """Draw the errors after the last epoch by micro-batch size, and Wu and He's in a diagram of their own."""
    half = _clean(axes) / 2
    ours = {n: {b: curves.final(n, b) for b in curves.plan.sizes if curves.final(n, b)} for n in curves.plan.norms}
    frame = Frame(44, 40, half - 64, HEIGHT - 76, 0, 40)
    _frame(axes, frame, "here: digits, small network", "micro-batch size, window of 64")
    _by_size(axes, frame, curves.plan.sizes, ours)
    frame = Frame(half + 44, 40, half - 64, HEIGHT - 76, 20, 40)
    _frame(axes, frame, "Wu and He 2018: ImageNet, ResNet-50", "images per GPU (their figures)")
    theirs = {n: {b: [e] for b, e in zip(WU_AND_HE_SIZES, errors, strict=True)} for n, errors in WU_AND_HE.items()}
    _by_size(axes, frame, WU_AND_HE_SIZES, theirs)


def _by_size(axes: Axes, frame: Frame, sizes: Sequence[int], errors: Mapping[str, Mapping[int, list[float]]]) -> None:
    for size in sizes:
        write(axes, frame.at(sizes, size), frame.bottom - 13, str(size), palette.SMALL, palette.MUTED, gid="size")
    x = frame.left
    for norm, by_size in errors.items():
        colour, dashes, marker = LOOKS.get(norm, OTHER)
        for size, found in by_size.items():
            ys = [frame.up(min(found)), frame.up(max(found))]
            axes.add_line(Line2D([frame.at(sizes, size)] * 2, ys, color=palette.INK, linewidth=0.8, gid="range"))
        xs, ys = [frame.at(sizes, b) for b in by_size], [frame.up(fmean(found)) for found in by_size.values()]
        axes.add_line(Line2D(xs, ys, color=colour, linestyle=dashes, linewidth=1.8, marker=marker, ms=5, gid=norm))
        if norm == "batch" and sizes[-1] in by_size:  # the end that counts
            last = f"{fmean(by_size[sizes[-1]]):.1f}"
            write(axes, xs[-1] - 9, ys[-1] - 3, last, palette.SMALL, palette.INK, "right", gid="number")
        y = frame.bottom + frame.high + 6
        key = Line2D([x, x + 18], [y + 3, y + 3], color=colour, linestyle=dashes, linewidth=1.8, marker=marker, ms=4)
        axes.add_line(key)
        write(axes, x + 23, y, KINDS[norm].title, palette.SMALL, palette.MUTED, "left", gid="legend")
        x += 34 + palette.text_width(KINDS[norm].title, palette.SMALL)


def _frame(axes: Axes, frame: Frame, title: str, below: str) -> None:
    """Draw a diagram's ground, its scale of errors, its title and what lies below."""
    place = (frame.left, frame.bottom), frame.wide, frame.high
    axes.add_patch(Rectangle(*place, facecolor=palette.SHADE, edgecolor="none", gid="frame"))
    steps = 5 if frame.top - frame.low <= 20 else 10 if frame.top <= 40 else 20
    for mark in range(int(frame.low), int(frame.top) + 1, steps):
        y = frame.up(mark)
        axes.add_line(Line2D([frame.left, frame.left + frame.wide], [y, y], color=palette.PAPER, linewidth=0.8))
        write(axes, frame.left - 5, y - 3, f"{mark}", palette.SMALL, palette.MUTED, "right", gid="scale")
    write(axes, frame.left + frame.wide / 2, HEIGHT - 12, title, palette.BODY, palette.INK, gid="title")
    write(axes, frame.left + frame.wide / 2, 10, below, palette.SMALL, palette.MUTED)
    write(axes, frame.left - 5, 10, "error, %", palette.SMALL, palette.MUTED)


def _ends(axes: Axes, ends: list[tuple[float, int, float]], x: float) -> None:
    """Write the sizes beside the ends of their lines; sizes whose lines end together share a line of text."""
    groups: list[tuple[float, list[int]]] = []
    for y, size, _ in sorted(ends, reverse=True):
        if groups and groups[-1][0] - y < 11:
            groups[-1][1].append(size)
        else:
            groups.append((y, [size]))
    for y, sizes in groups:
        text = str(sizes[0]) if len(sizes) == 1 else f"{max(sizes)} to {min(sizes)}"
        write(axes, x, y - 3, text, palette.SMALL, palette.INK, "left", gid="name")


def _place(frame: Frame, epoch: int, epochs: int) -> float:
    return frame.left + 12 + (frame.wide - 24) * (epoch - 1) / max(epochs - 1, 1)


def _means(runs: list[list[float]]) -> list[float]:
    """Return the mean error after each epoch that every run so far has reached."""
    reached = [run for run in runs if run]
    return [fmean(run[i] for run in reached) for i in range(min(map(len, reached)))] if reached else []


def _clean(axes: Axes) -> float:
    """Empty the axes and return their width in points."""
    palette.wipe(axes)
    width, _ = palette.size_in_points(axes)
    axes.set_xlim(0, width)
    axes.set_ylim(0, HEIGHT)
    return width
