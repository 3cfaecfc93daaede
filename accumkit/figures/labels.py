"""What is written on a picture of weights: titles, numbers on bars, counts under them, words in outlines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from accumkit.figures import palette
from accumkit.figures.bars import Bar, Panel, Row
from accumkit.figures.frame import BETWEEN, GAP, LEFT, Place
from accumkit.figures.marks import write
from accumkit.figures.numbers import number, weight_text

WORDS = {"lost": "lost", "erased": "erased", "unmeasured": "not measured"}
TIMES = "\u00d7"


@dataclass(frozen=True)
class Slot:
    """Where a window was drawn: from ``x`` to ``end``, with its bars around ``spots`` as wide and high as told."""

    panel: Panel
    x: float
    end: float
    spots: tuple[float, ...]
    widths: tuple[float, ...]
    tops: tuple[float, ...]

    @property
    def middle(self) -> float:
        """The middle of the window."""
        return (self.x + self.end) / 2

    def fit(self, texts: Sequence[str], size: float, place: Place) -> bool:
        """Whether each bar has the room for its text; a bar alone has its window's."""
        if len(texts) == 1:
            return palette.text_width(texts[0], size) <= self.end - self.x + BETWEEN * place.squeeze + 1
        gap = GAP * place.squeeze
        return all(palette.text_width(t, size) <= w + gap for t, w in zip(texts, self.widths, strict=True))


def titles(axes: Axes, slots: Sequence[Slot], place: Place) -> None:
    """Write which update each window is; the short form for all where the long one has no room."""
    room = BETWEEN * place.squeeze

    def wide(text: str, slot: Slot) -> bool:
        return palette.text_width(text, palette.BODY) > slot.end - slot.x + room

    short = any(wide(slot.panel.title, slot) for slot in slots)
    high = place.high + 6 * place.point
    for before, slot in zip([None, *slots], slots, strict=False):
        name = slot.panel.short if short else slot.panel.title
        if before is not None and before.panel.epoch != slot.panel.epoch:
            long = f"epoch {slot.panel.epoch + 1} · {name}"
            name = name if short or wide(long, slot) else long
        if palette.text_width(name, palette.SMALL) <= slot.end - slot.x + room:
            write(axes, slot.middle, high, name, palette.BODY, palette.MUTED, gid="title")
    if short:
        write(axes, LEFT - 14, high, "update", palette.SMALL, palette.MUTED, align="right", gid="scale title")


def numbers_on(axes: Axes, slot: Slot, row: Row, place: Place) -> None:
    """Write what one example weighs on each bar, or once for a window whose bars are too narrow."""
    bars = slot.panel.bars
    for digits in (3, 2) if row.labelled or row.summed else ():
        texts = [number_of(bar, digits) for bar in bars]
        if slot.fit(texts, palette.BODY, place):
            for spot, top, text in zip(slot.spots, slot.tops, texts, strict=True):
                if text:
                    crosses = top < 1 < top + 15 * place.point  # the fair line runs behind it
                    high = top + 4 * place.point
                    write(axes, spot, high, text, palette.BODY, palette.INK, gid="number", paper=crosses)
            return
    texts = {number_of(bar) for bar in bars if bar.kind != "empty"}
    known = [bar.weight for bar in bars if isfinite(bar.weight)]
    text = texts.pop() if len(texts) == 1 else f"{number(min(known))} to {number(max(known))}" if known else "?"
    if palette.text_width(text, palette.BODY) <= slot.end - slot.x + BETWEEN * place.squeeze + 1:
        high = max(slot.tops) + 4 * place.point
        write(axes, slot.middle, high, text, palette.BODY, palette.INK, gid="number")


def counts_under(axes: Axes, slot: Slot, row: Row, place: Place) -> None:
    """Write the count under each bar, or once for a window whose bars are too narrow."""
    low = place.low - 13 * place.point
    counts = [number(bar.count) for bar in slot.panel.bars]
    if (row.labelled or row.summed) and slot.fit(counts, palette.SMALL, place):
        for spot, count in zip(slot.spots, counts, strict=True):
            write(axes, spot, low, count, palette.SMALL, palette.MUTED, gid="count")
        return
    text = f"{len(counts)} {TIMES} {counts[0]}" if len(set(counts)) == 1 else f"{len(counts)} {TIMES} …"
    if palette.text_width(text, palette.SMALL) <= slot.end - slot.x + BETWEEN * place.squeeze:
        write(axes, slot.middle, low, text, palette.SMALL, palette.MUTED, gid="count")


def words_in(axes: Axes, slot: Slot, place: Place) -> None:
    """Write "lost", "erased" or "not measured" into outlines: in each where it fits, else once over a run of them."""
    bars, widths, spots = slot.panel.bars, slot.widths, slot.spots
    runs: list[list[int]] = []
    for i, bar in enumerate(bars):
        if bar.kind in WORDS:
            fits = palette.text_width(WORDS[bar.kind], palette.BODY) <= widths[i]
            if runs and runs[-1][-1] == i - 1 and bars[i - 1].kind == bar.kind and not fits:
                runs[-1].append(i)
            else:
                runs.append([i])
    for first, last in ((run[0], run[-1]) for run in runs):
        kind = bars[first].kind
        across = spots[last] - spots[first] + (widths[first] + widths[last]) / 2
        if palette.text_width(WORDS[kind], palette.SMALL) <= across + 2:
            x, y, edge = (spots[first] + spots[last]) / 2, 0.5 - 3 * place.point, palette.LOOKS[kind].edge
            write(axes, x, y, WORDS[kind], palette.BODY, edge, gid="word", paper=True)


def mark(axes: Axes, slot: Slot, place: Place, chosen: int | None) -> None:
    """Put a small triangle under the bar of the micro-batch that a reader has chosen."""
    for bar, spot in zip(slot.panel.bars, slot.spots, strict=True):
        if chosen is not None and chosen in bar.indices:
            y = place.low - 18 * place.point
            axes.add_artist(Line2D([spot], [y], marker="^", markersize=6, color=palette.INK, zorder=4, gid="chosen"))


def left_over(axes: Axes, slot: Slot, place: Place) -> None:
    """Say that a gradient of an earlier update is still in a window's own."""
    for text in ("+ left over", "+"):
        if slot.panel.carried and palette.text_width(text, palette.SMALL) <= slot.end - slot.x:
            high = place.high - 11 * place.point
            write(axes, slot.middle, high, text, palette.SMALL, palette.VERMILLION, gid="carried")
            return


def number_of(bar: Bar, digits: int = 3) -> str:
    """Return what stands on a bar: its weight, or the range of a window summed up."""
    if bar.kind in ("unmeasured", "empty"):
        return "?" if bar.kind == "unmeasured" else ""
    if bar.members > 1 and bar.high - bar.low > 1e-3:
        return f"{number(bar.low, digits)} to {number(bar.high, digits)}"
    return weight_text(bar.weight, bar.kind == "fair", digits)
