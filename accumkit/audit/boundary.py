"""Where the windows of a run end, beside where its declared accumulation steps put their ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

from accumkit.audit.offered import joined, left_out, perhaps_joined, untrained
from accumkit.audit.passed_over import Missed, missed_steps
from accumkit.trace.record import MicroBatch, Trace, Update

EVERY = "a step after every"  # begins to say how a wrong count goes on from the first window

# why it is unclear how windows end
SEVERAL_LINES = (
    "a window has backward calls at several lines: they may serve several purposes (two networks, two losses)"
)
JOINED = (
    "each backward was for several forward calls: whether these are a window's micro-batches, their losses put "
    "together, or several calls for one micro-batch, the watch does not see. It can tell where every pass goes over a "
    "DataLoader itself"
)


@dataclass(frozen=True)
class Pass:
    """The micro-batches of one pass over the data, in the order of their backward.

    One backward on the losses of several batches counts as that many micro-batches.
    """

    epoch: int
    micro_batches: tuple[MicroBatch, ...]
    ends: tuple[int, ...]  # how many of them had run at each step, the last step of the pass included
    size: int  # micro-batches that the loader yielded or holds; more than ran where some never had a backward
    left_out: int = 0  # those fetched before a step of the pass that never had a backward
    untrained: int = 0  # all those fetched that never had one, as far as that is known
    fetched: int = 0  # batches that its loader gave; 0 where none was seen
    length: int = -1  # batches that its loader holds; -1 where it does not say
    batches: tuple[int, ...] = ()  # by micro-batch: how many batches its backward was for

    @property
    def ran(self) -> int:
        """Micro-batches that had a backward."""
        return sum(self.batches)

    @property
    def exhausted(self) -> bool:
        """Whether its loader gave all it holds."""
        return 0 < self.length <= self.fetched

    @property
    def after_step(self) -> int:
        """Batches fetched for no step of the pass that had no backward of their own."""
        return max(0, self.fetched - self.ran - self.left_out)

    @property
    def inner(self) -> tuple[int, ...]:
        """The ends before the pass was over; there the boundary's condition shows."""
        return tuple(end for end in self.ends if end < self.ran)

    @property
    def left_over(self) -> tuple[MicroBatch, ...]:
        """The micro-batches after the last step of the pass."""
        last = self.ends[-1] if self.ends else 0
        return tuple(m for m, end in zip(self.micro_batches, accumulate(self.batches), strict=True) if end > last)


@dataclass(frozen=True)
class Boundary:
    """How a run's windows end.

    ``kind`` is one of

    - "declared": at every N micro-batches of a pass, and where the pass ends;
    - "straddling": at every N micro-batches of the run, across the ends of passes;
    - "every micro-batch": N is more than 1, and each micro-batch has a step of its own;
    - "wrong count": at a constant distance from where they should be, every N - 1 or N + 1, or everywhere but there;
    - "unclear": in no such way; also where a window's backward calls stand at several lines, each for a purpose of
      its own (two networks, two losses), so that counting them says nothing.
    """

    kind: str
    windows: tuple[Update, ...]  # the updates that have micro-batches
    passes: tuple[Pass, ...]
    steps: int = 1  # N, as declared
    how: str = ""  # for a wrong count: what the condition seems to be
    last_of_pass: frozenset[int] = field(default_factory=frozenset)  # indices of updates that end with their pass
    left_out: dict[int, int] = field(default_factory=dict)  # by update: batches of its window that had no backward
    missed: tuple[Missed, ...] = ()  # steps that were left out together with a batch
    joined: dict[int, int] = field(default_factory=dict)  # by micro-batch: its batches, where there are several

    @property
    def crosses(self) -> bool:
        """Whether a window has micro-batches of two passes."""
        return any(map(_crosses, self.windows))

    @property
    def sizes(self) -> list[int]:
        """Micro-batches in each window."""
        return [sum(self.batches(update)) for update in self.windows]

    def batches(self, update: Update) -> list[int]:
        """Return how many batches each backward of a window was for."""
        return [self.joined.get(m.index, 1) for m in update.micro_batches]

    def begins_window(self, update: Update) -> bool:
        """Whether an update begins where a window of N should, counted from the beginning of its pass."""
        first = update.micro_batches[0]
        home = next(p for p in self.passes if p.epoch == first.epoch)
        before = [n for m, n in zip(home.micro_batches, home.batches, strict=True) if m.index < first.index]
        return sum(before) % self.steps == 0

    @property
    def pass_long(self) -> bool:
        """Whether every pass has one step, at its end."""
        return bool(self.passes) and all(p.ends == (p.ran,) for p in self.passes)

    def offered(self, update: Update) -> int:
        """Micro-batches of a window, with those that were fetched for it and left out."""
        return sum(self.batches(update)) + self.left_out.get(update.index, 0)

    def is_tail(self, update: Update) -> bool:
        """Whether an update is the short last window of a pass, and would be one with the boundary as declared."""
        if update.index not in self.last_of_pass or self.offered(update) >= self.steps:
            return False
        home = next(p for p in self.passes if p.epoch == update.micro_batches[-1].epoch)
        return self.kind == "declared" or (home.ran + home.left_out) % self.steps != 0


def read_boundary(trace: Trace) -> Boundary:
    """Return how the windows of a trace end."""
    steps, order = trace.accumulation_steps, trace.micro_batches
    windows = tuple(update for update in trace.updates if update.micro_batches)
    several = joined(trace)
    batches = {m.index: several.get(m.index, 1) for m in order}
    rank = _places(order, batches)
    by_epoch: dict[int, list[MicroBatch]] = {}
    for micro_batch in order:
        by_epoch.setdefault(micro_batch.epoch, []).append(micro_batch)
    place: dict[int, int] = {}
    for members in by_epoch.values():
        place |= _places(members, batches)
    ends: dict[int, list[int]] = {epoch: [] for epoch in by_epoch}
    last_of_pass = set()
    for update in windows:
        last = update.micro_batches[-1]
        ends[last.epoch].append(place[last.index])
        if last.index == by_epoch[last.epoch][-1].index:
            last_of_pass.add(update.index)
    missing, fetched = left_out(trace), untrained(trace)
    passes = tuple(
        Pass(
            epoch,
            tuple(members),
            tuple(ends[epoch]),
            max(_size(trace, epoch), sum(batches[m.index] for m in members)),
            sum(missing.get(u.index, 0) for u in windows if u.micro_batches[-1].epoch == epoch),
            _at(fetched, epoch, 0),
            max(0, _at(trace.fetched_sizes, epoch, 0)),
            _at(trace.loader_sizes, epoch, -1),
            tuple(batches[m.index] for m in members),
        )
        for epoch, members in sorted(by_epoch.items())
    )
    overall = tuple(rank[u.micro_batches[-1].index] for u in windows)
    by_pass = [(p.inner, p.ran) for p in passes]
    total, sizes = sum(batches.values()), [sum(batches[m.index] for m in u.micro_batches) for u in windows]
    kind, how = _kind(by_pass, overall, total, steps, windows, sizes)
    if missing and kind not in ("declared", "straddling"):  # a loop may count what it fetches, and leave some out
        kind, how = _kind_of_offered(passes, overall, total, steps, windows, missing, sizes) or (kind, how)
    if kind == "wrong count" and _many_lines(windows):
        kind, how = "unclear", SEVERAL_LINES
    if kind == "every micro-batch" and perhaps_joined(trace):
        kind, how = "unclear", JOINED
    missed = _missed(trace, kind)
    if any(not m.last for m in missed) and kind == "wrong count":
        kind, how = "unclear", ""
    if kind == "declared" and any(size < steps for u, size in zip(windows, sizes, strict=True) if _crosses(u)):
        kind = "unclear"
    return Boundary(kind, windows, passes, steps, how, frozenset(last_of_pass), missing, missed, several)


def _missed(trace: Trace, kind: str) -> tuple[Missed, ...]:
    """Return the steps left out together with a batch; only lost ones where windows have their N micro-batches."""
    found = missed_steps(trace) if kind != "straddling" else ()
    return found if kind != "declared" else tuple(m for m in found if m.last)


def _places(order: list[MicroBatch], batches: dict[int, int]) -> dict[int, int]:
    """Return how many batches had a backward when each of some micro-batches had had its own."""
    ends = accumulate(batches[m.index] for m in order)
    return {m.index: end for m, end in zip(order, ends, strict=True)}


def _size(trace: Trace, epoch: int) -> int:
    """Return how many micro-batches a pass had to offer, as far as was seen."""
    return max(_at(sizes, epoch, 0) for sizes in (trace.epoch_sizes, trace.fetched_sizes, trace.loader_sizes))


def _at(sizes: list[int], epoch: int, otherwise: int) -> int:
    return sizes[epoch] if 0 <= epoch < len(sizes) else otherwise


Ends = list[tuple[tuple[int, ...], int]]  # of passes: the inner ends of windows, and the micro-batches


def _kind_of_offered(passes, overall, total, steps, windows, missing, sizes) -> tuple[str, str] | None:
    """Return how windows end among all batches that were fetched, those left out included; None for in no such way."""
    by_pass: Ends = []
    for p in passes:
        own = [u for u in windows if u.micro_batches[-1].epoch == p.epoch]
        before = accumulate(missing.get(u.index, 0) for u in own)
        ends = [end + out for end, out in zip(p.ends, before, strict=True)]
        by_pass.append((tuple(end for end in ends if end < p.ran + p.left_out), p.ran + p.left_out))
    before = accumulate(missing.get(u.index, 0) for u in windows)
    overall = tuple(end + out for end, out in zip(overall, before, strict=True))
    kind, how = _kind(by_pass, overall, total + sum(missing.values()), steps, windows, sizes)
    return None if kind == "unclear" else (kind, how)


def _kind(
    by_pass: Ends, overall: tuple[int, ...], total: int, steps: int, windows: tuple[Update, ...], sizes: list[int]
):
    run = [(tuple(end for end in overall if end < total), total)]  # the same, for a counter that is never reset
    if any(map(_crosses, windows)) and _fits(run, lambda n: range(steps, n, steps)):
        return "straddling", ""
    if _fits(by_pass, lambda n: range(steps, n, steps)):
        return "declared", ""
    if steps == 1:
        return "unclear", ""
    if windows and set(sizes) == {1}:
        return "every micro-batch", ""
    # windows of N across the ends of passes: the counter is not reset there, and places within a pass say nothing
    unbroken = {size for u, size in zip(windows, sizes, strict=True) if _crosses(u)} == {steps}
    for ends in (run,) if unbroken else (by_pass, run):
        longest = max((len(inner) for inner, _ in ends), default=0)
        for count in (steps - 1, steps + 1):
            if count > 1 and longest and _fits(ends, lambda n, count=count: range(count, n, count)):
                return "wrong count", f"{EVERY} {count} micro-batches"
        first = next((inner[0] for inner, _ in ends if inner), 0)
        # over the whole run, 1 and then 2 each may as well be a warm-up
        clear = (longest > 1 and steps > 2) if ends is run else (longest > 1 or first in (1, steps - 1))
        shifted = 0 < first < steps or first == steps + 1
        if shifted and clear and _fits(ends, lambda n, first=first: range(first, n, steps)):
            return "wrong count", f"the first step after {first}, then one after every {steps}"
        for gap in range(steps):
            if steps > 2 and max(n for _, n in ends) > steps and _fits(
                ends, lambda n, gap=gap: [i for i in range(1, n) if i % steps != gap]
            ):  # fmt: skip
                return (
                    "wrong count",
                    "a step everywhere but where it belongs: the condition is inverted",
                )
    return "unclear", ""


def _crosses(update: Update) -> bool:
    return update.micro_batches[0].epoch != update.micro_batches[-1].epoch


def _many_lines(windows: tuple[Update, ...]) -> bool:
    mixed = [len({m.location for m in u.micro_batches}) > 1 for u in windows if u.accumulated > 1]
    return 2 * sum(mixed) > len(mixed)


def _fits(ends: Ends, expected) -> bool:
    return all(inner == tuple(expected(n)) for inner, n in ends)


def declared_sizes(size: int, steps: int, tail: str = "step") -> list[int]:
    """Return the windows that N accumulation steps make of one pass."""
    full, rest = divmod(size, steps)
    return [steps] * full + ([rest] if rest and tail == "step" else [])
