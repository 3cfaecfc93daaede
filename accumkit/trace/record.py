"""What a trace holds: plain numbers about every event, micro-batch and update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import nan
from typing import NamedTuple

from accumkit.errors import several

EVENT_KINDS = (
    "batch", "forward", "evaluation", "backward", "zero_grad", "unscale", "clip", "step", "skipped step",
    "scaler update", "scheduler step", "ema update", "state saved",
)  # fmt: skip

new = tuple.__new__  # makes a record from all its fields; its own constructor costs a call in Python besides
FATES = ("kept", "erased", "leaked", "lost")


class Event(NamedTuple):
    """One thing that happened while a loop was watched."""

    kind: str  # one of EVENT_KINDS
    micro_batch: int  # index of the micro-batch it belongs to: for "batch" and "forward" the one about to begin, for
    # the rest the last whose backward has run; -1 before any
    location: str | None  # the line that did it: "train.py:12", or "cell 5, line 3" in a notebook
    value: float | None = None  # clip: the factor applied; unscale: the scale taken out; scaler update: the new scale;
    # scheduler step: the number of steps it was planned for, where it says; else None


class RunningStatistics(NamedTuple):
    """How a BatchNorm layer's running statistics moved while a loop was watched."""

    layer: str  # its name in the model
    momentum: float | None  # None: a plain average of all batches
    moves: int  # how often they moved; once an optimizer update is what the big batch does


class MicroBatch(NamedTuple):
    """One micro-batch, and the part it had in an update."""

    index: int  # from 0, over the whole trace
    epoch: int  # the pass over the data it came from, from 0
    examples: int
    count: float | None  # units: examples, tokens, class weights; None where no objective was given
    share: float | None  # measured part in the update, of unscaled gradients before clipping; None: not measured
    fair_share: float | None  # its count / the count of the window's own micro-batches
    fate: str  # "kept"; "erased" (cleared before the step); "leaked" (from an earlier epoch); "lost" (no update)
    location: str | None  # the line of its backward call
    repeats: int | None = None  # index of an earlier micro-batch in the same window with the same inputs
    scale: float | None = None  # what a GradScaler multiplied its loss by; None without one
    touched: float | None = None  # what .grad was multiplied by by hand after it, inside the window; None: nothing
    touched_norm: float | None = None  # the norm of .grad after that
    calls: int = 1  # forward calls that its backward reached

    @property
    def weight(self) -> float | None:
        """What one example weighs: share / fair share, 1 is fair; nan for a micro-batch that counts nothing."""
        if self.share is None or self.fair_share is None:
            return None
        return self.share / self.fair_share if self.fair_share else nan


class Update(NamedTuple):
    """One optimizer step, the window behind it, and how its gradient compares with the window's reference."""

    index: int  # from 0
    epoch: int
    micro_batches: tuple[MicroBatch, ...]  # all whose backward came since the step before
    count: float | None = None  # units in the window's own micro-batches (leaked ones left out)
    gradient_ratio: float | None = None  # <G,R>/<R,R>: G what the loop made, R the window's reference
    cosine: float | None = None
    relative_error: float | None = None  # |G - R| / |R|
    unexplained: float | None = None  # part of the loop's own increments that no multiple of the objective explains
    auxiliary: float | None = None  # how often the objective's once-an-update term counted; 1 is right
    carried: float = 0.0  # part of the gradient left over from earlier updates: |left over| / |gradient at the step|
    grad_norm: float | None = None  # of the unscaled gradient before clipping
    clip_factor: float | None = None  # what clipping multiplied the gradient by; None: no clipping seen
    expected_clip_factor: float | None = None  # what it should have been for the max_norm it was called with
    max_norm: float | None = None  # what clipping was called with: of the norm, or of each value
    clip_scale: float | None = None  # what the gradient was multiplied by when it was clipped; 1 is right
    by_hand: float | None = None  # what it was multiplied by by hand after the last backward; None: by nothing
    hand_scaled: float | None = None  # what it was multiplied by by hand while it was still scaled
    fed_again: bool | None = None  # its inputs are those of the update before; None: not known
    unused: int = 0  # forward calls in the window, for training, that no backward reached
    drew: int = 0  # micro-batches whose forward drew random numbers, such as dropout's masks
    masks_repeated: int = 0  # those of them that drew the same ones as an earlier micro-batch of the window
    skipped: bool = False  # a scaler skipped the step
    scaler: int | None = None  # which of the trace's scalers stepped; None without one
    sum_error: float | None = None  # low precision: |.grad - the sum of what backward gave| / |that sum|
    one_rounding: float | None = None  # the same, had the sum been rounded once, at its end
    kept_aside: bool = False  # the loop added its gradients up outside .grad
    floor: float | None = (
        None  # rounding: |m in the loop's precision - m in float64| / |m|, m the gradient of the window's
    )
    # first micro-batch; on a sample of windows
    rounding: float | None = None  # of the relative error, what rounding alone may have made, where gradients cancel
    location: str | None = None  # the line of the step
    why: str | None = None  # why its shares were not measured

    @property
    def examples(self) -> int:
        """Examples in the window's own micro-batches."""
        return sum(m.examples for m in self.micro_batches if m.fate != "leaked")

    @property
    def accumulated(self) -> int:
        """Micro-batches in the window, whatever became of them."""
        return len(self.micro_batches)


@dataclass
class Trace:
    """Everything a watched loop did, in numbers.

    ``updates`` and ``lost`` hold each micro-batch once: those in no update are in ``lost``.
    """

    accumulation_steps: int
    tail: str = "step"
    unit: str | None = None  # of the objective; None where none was given
    precision: str = "float32"  # of the model's parameters
    events: list[Event] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    lost: list[MicroBatch] = field(default_factory=list)
    epoch_sizes: list[int] = field(default_factory=list)  # micro-batches in each pass over the data
    fetched_sizes: list[int] = field(default_factory=list)  # batches fetched in each pass, trained on or not
    loader_sizes: list[int] = field(default_factory=list)  # batches that its loader had, -1 where it did not say
    scalers: list[str | None] = field(default_factory=list)  # each GradScaler's line; None: made before the watch
    schedulers: set[int] = field(default_factory=set)  # the id of each that stepped
    graphs_kept: int = 0  # micro-batches whose graph was alive at the next update's step; with an objective
    graphs_retained: int = 0  # backward calls with retain_graph=True whose graph was not used again
    coupled: list[str] = field(default_factory=list)  # layers that mix the examples of a micro-batch, by name
    running: list[RunningStatistics] = field(default_factory=list)  # of layers whose running statistics moved
    reasons: list[str] = field(default_factory=list)  # what could not be seen, each a sentence
    fetch: Callable[[Iterable], Iterator] | None = field(default=None, repr=False)  # set while a watch is open
    catch_up: Callable[[], None] | None = field(default=None, repr=False)  # as is this; notes what happened so far

    @property
    def micro_batches(self) -> list[MicroBatch]:
        """Every micro-batch in the order of its backward."""
        return sorted([m for u in self.updates for m in u.micro_batches] + self.lost, key=lambda m: m.index)

    def count_of(self, kind: str) -> int:
        """How many events of a kind there were."""
        return sum(event.kind == kind for event in self.events)

    def batches(self, iterable: Iterable) -> Iterator:
        """Yield from ``iterable``, telling the trace about each batch; for loops without a DataLoader.

        Examples
        --------
        >>> import accumkit as ak, torch
        >>> with ak.watch(torch.nn.Linear(2, 1), accumulation_steps=1) as trace:
        ...     for batch in trace.batches([torch.ones(3, 2)]):
        ...         pass
        >>> trace.count_of("batch")
        1
        """
        return self.fetch(iterable) if self.fetch else iter(iterable)

    def __repr__(self) -> str:
        rows = ["update  micro-batches  examples  ratio     cosine    weights"]
        for update in self.updates[:20]:
            weights = " ".join(_short(m.weight) for m in update.micro_batches[:12])
            more = " ..." if update.accumulated > 12 else ""
            rows.append(
                f"{update.index + 1:>6}  {update.accumulated:>13}  {update.examples:>8}  "
                f"{_short(update.gradient_ratio):<8}  {_short(update.cosine):<8}  {weights}{more}"
            )
        if len(self.updates) > 20:
            rows.append(f"... {len(self.updates) - 20} more updates")
        if self.lost:
            examples = several(sum(m.examples for m in self.lost), "example")
            rows.append(f"in no update: {several(len(self.lost), 'micro-batch')}, {examples}")
        return "\n".join(rows)


def _up_to_date(name: str) -> property:
    """Return an attribute that, while a watch is open, is brought up to date when it is read."""

    def get(trace: Trace) -> list:
        if trace.catch_up is not None:
            trace.catch_up()
        return vars(trace)[name]

    return property(get, lambda trace, value: vars(trace).__setitem__(name, value))


Trace.events, Trace.updates = _up_to_date("events"), _up_to_date("updates")


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
