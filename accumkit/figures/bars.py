"""From a trace to bars: which windows are shown, what each bar weighs, and how it is called. No drawing."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from math import isfinite

from accumkit.audit.reading import tolerance_of
from accumkit.trace.record import MicroBatch, Trace

LABELLED = 24  # up to so many micro-batches each bar has its number
SUMMED = 60  # from here on a window is one bar
FIRST, LAST = 14, 6  # windows shown of a long run


@dataclass(frozen=True)
class Bar:
    """One micro-batch, or one window summed up."""

    kind: str  # a key of palette.LOOKS
    count: float  # units, its width
    weight: float  # what one example weighs, its height; 0 for lost and erased ones, nan where unknown
    low: float  # lightest and heaviest weight in it: both are weight for a single micro-batch
    high: float
    members: int = 1
    indices: tuple[int, ...] = ()  # of the micro-batches it stands for


@dataclass(frozen=True)
class Panel:
    """One window: an update, or micro-batches in no update, or (``left_out`` > 0) a gap in a long run."""

    title: str
    short: str
    epoch: int
    bars: tuple[Bar, ...]
    carried: float = 0.0  # part of its gradient that earlier updates left there
    left_out: int = 0
    left_out_unfair: int = 0

    @property
    def fair(self) -> bool:
        """Whether every bar in it is fair (or counts nothing), and nothing else is in its gradient."""
        return not self.carried and all(bar.kind in ("fair", "empty") for bar in self.bars)


@dataclass(frozen=True)
class Row:
    """All that one picture of weights shows."""

    panels: tuple[Panel, ...]
    unit: str
    labelled: bool
    summed: bool

    @property
    def bars(self) -> list[Bar]:
        """Every bar, from left to right."""
        return [bar for panel in self.panels for bar in panel.bars]


def kind_of(micro: MicroBatch, near: float, up_to_scale: bool = False) -> str:
    """Return the kind of bar that a micro-batch gets: a key of ``palette.LOOKS``."""
    if micro.fate in ("lost", "erased"):
        return micro.fate
    if micro.fair_share == 0 and not micro.share:
        return "empty"
    if micro.weight is None or not isfinite(micro.weight):
        return "unmeasured"
    if micro.fate == "leaked":
        return "leaked"
    if abs(micro.weight - 1) <= near:
        return "fair"
    return "scaled" if up_to_scale else "unfair"


def bar_of(micro: MicroBatch, near: float, up_to_scale: bool = False) -> Bar:
    """Return the bar of one micro-batch."""
    kind = kind_of(micro, near, up_to_scale)
    count = micro.examples if micro.count is None else micro.count
    weight = 0.0 if kind in ("lost", "erased", "empty") else 1.0 if kind == "fair" else micro.weight
    weight = float("nan") if kind == "unmeasured" else _round(weight)
    return Bar(kind, count, weight, weight, weight, indices=(micro.index,))


def summed(bars: tuple[Bar, ...]) -> Bar:
    """Return one bar for a whole window: as wide as its count, as high as its examples weigh on average."""
    kinds = {bar.kind for bar in bars}
    own = [bar for bar in bars if bar.kind != "leaked"] or list(bars)
    count = sum(bar.count for bar in own)
    known = [bar.weight for bar in bars if isfinite(bar.weight)]
    order = ("unmeasured", "leaked", "unfair", "scaled", "lost", "erased", "fair", "empty")
    kind = next(kind for kind in order if kind in kinds)
    if "erased" in kinds and kinds - {"erased", "empty"}:
        kind = "leaked" if "leaked" in kinds else "unfair"  # some erased: what is left is not what it should be
    indices = tuple(index for bar in bars for index in bar.indices)
    if kind == "unmeasured" or not known:
        return Bar("unmeasured", count, float("nan"), float("nan"), float("nan"), len(bars), indices)
    mean = sum(bar.weight * bar.count for bar in own) / count if count else 0.0
    return Bar(kind, count, _round(mean), min(known), max(known), len(bars), indices)


def arrange(trace: Trace, up_to_scale: bool = False) -> Row:
    """Return what the picture of a trace shows.

    Parameters
    ----------
    trace : Trace
    up_to_scale : bool
        Bars away from 1 are a constant chosen on purpose, not a fault.

    Returns
    -------
    Row

    Examples
    --------
    >>> from accumkit.figures import bars
    >>> from accumkit.trace.record import MicroBatch, Trace, Update
    >>> micro = MicroBatch(0, 0, 4, 4, 1.0, 1.0, "kept", None)
    >>> bars.arrange(Trace(1, unit="examples", updates=[Update(0, 0, (micro,), 4)])).panels[0].title
    'update 1'
    """
    panels = windows_of(trace, up_to_scale)
    total = sum(len(panel.bars) for panel in panels)
    if total > SUMMED:
        panels = [Panel(p.title, p.short, p.epoch, (summed(p.bars),), p.carried) for p in panels]
    if len(panels) > FIRST + LAST + 4:
        hidden = panels[FIRST:-LAST]
        wrong = sum(not panel.fair for panel in hidden)
        gap = Panel("", "", hidden[0].epoch, (), left_out=len(hidden), left_out_unfair=wrong)
        panels = [*panels[:FIRST], gap, *panels[-LAST:]]
    shown = sum(len(panel.bars) for panel in panels)
    return Row(tuple(panels), trace.unit or "examples", shown <= LABELLED, total > SUMMED)


def windows_of(trace: Trace, up_to_scale: bool = False) -> list[Panel]:
    """Return every window of a trace, those in no update among them, in the order of their first micro-batch."""
    placed = []
    near = tolerance_of(trace)  # the audit's: a bar is fair where the audit says so
    for update in trace.updates:
        bars = tuple(bar_of(micro, near, up_to_scale) for micro in update.micro_batches)
        carried = update.carried if update.carried > near else 0.0
        name = f"{update.index + 1}" + (" skipped" if update.skipped else "")
        first = update.micro_batches[0].index if update.micro_batches else float("inf")
        placed.append((first, update.index, Panel(f"update {name}", name, update.epoch, bars, carried)))
    lost = sorted(trace.lost, key=lambda micro: micro.index)
    # neighbours in one epoch make one panel: their index less their place is then the same
    for (epoch, _), group in groupby(enumerate(lost), key=lambda pair: (pair[1].epoch, pair[1].index - pair[0])):
        members = [micro for _, micro in group]
        bars = tuple(bar_of(micro, near) for micro in members)
        placed.append((members[0].index, -1, Panel("no update", "none", epoch, bars)))
    return [panel for _, _, panel in sorted(placed, key=lambda entry: entry[:2])]


def _round(value: float) -> float:
    """Keep five digits, so that a picture does not depend on a machine's last bits."""
    return float(f"{value:.5g}")
