"""What a trace's measured shares say about how the losses were divided."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan

from accumkit.audit.boundary import Boundary, read_boundary
from accumkit.audit.clearing import erased_in_evaluation
from accumkit.audit.suspect import suspected
from accumkit.trace.record import MicroBatch, Trace, Update

TOLERANCE = {"float64": 1e-6, "float32": 1e-3}  # of a weight, relative; other precisions:
LOW_PRECISION = 2e-2

# The ways to divide: from a window's facts to the share of each of its micro-batches. "sum" and "mean" say what
# the loss does over a micro-batch; W is the window's count, k its micro-batches, N the declared ones. The first that
# explains all windows is taken, so right ones come first.
DIVISORS = {
    "sum/W": lambda w: [n / w.count for n in w.counts],
    "mean/k": lambda w: [b / w.size for b in w.batches],
    "mean/N": lambda w: [b / w.steps for b in w.batches],
    "sum/F": lambda w: [n / w.full for n in w.counts] if w.full else None,
    "sum": lambda w: list(w.counts) if set(w.counts) <= {0, 1} else None,  # of one unit each: mean and sum are one
    "mean": lambda w: list(map(float, w.batches)),
    "sum/W/N": lambda w: [n / w.count / w.steps for n in w.counts],
    "sum/W/k": lambda w: [n / w.count / w.size for n in w.counts],
    "sum/W/W": lambda w: [n / w.count**2 for n in w.counts],
    "mean/N/N": lambda w: [b / w.steps**2 for b in w.batches],
    "mean/k/N": lambda w: [b / w.size / w.steps for b in w.batches],
    "mean/k/k": lambda w: [b / w.size**2 for b in w.batches],
    "mean/W": lambda w: [b / w.count for b in w.batches],
    "mean/W/N": lambda w: [b / w.count / w.steps for b in w.batches],
    "mean/W/k": lambda w: [b / w.count / w.size for b in w.batches],
    # text, say, has no examples that could be counted
    "examples": lambda w: [e / sum(w.examples) for e in w.examples] if any(w.examples) else None,
    "sum/examples": lambda w: [n / sum(w.examples) for n in w.counts] if any(w.examples) else None,
}
LEFT_OUT = "left out"  # the way of a window whose divisor also counts micro-batches that had no backward
TWICE = ("mean/W", *(name for name in DIVISORS if name.count("/") == 2))


@dataclass(frozen=True)
class Window:
    """One window whose shares can be judged."""

    update: Update
    members: tuple[MicroBatch, ...]
    steps: int  # N
    is_tail: bool
    full: float | None  # the count of full windows, where they all have the same
    tolerance: float
    left_out: int = 0  # batches that were fetched for it and had no backward
    largest: float = 0.0  # the largest count of all micro-batches of the run
    batches: tuple[int, ...] = ()  # by member: how many batches its backward was for

    @property
    def size(self) -> int:
        """Micro-batches, k; one backward on the losses of several batches is that many."""
        return sum(self.batches)

    @property
    def counts(self) -> list[float]:
        """Units of each micro-batch."""
        return [m.count for m in self.members]

    @property
    def examples(self) -> list[int]:
        """Examples of each micro-batch."""
        return [m.examples for m in self.members]

    @property
    def count(self) -> float:
        """Units of the window, W."""
        return sum(self.counts)

    @property
    def left(self) -> list[MicroBatch]:
        """The micro-batches that tell of its divisor: they count something, and no evaluation cleared them."""
        return [m for m in self.members if m.count and m.fate != "erased"]

    @property
    def shares(self) -> list[float]:
        """The shares of those as the divisor made them: what a scale that changed in the window did is taken out."""
        scale, by_hand = self.members[-1].scale, 1.0
        if self.left_out and self.count == 1 and self.update.max_norm is None and self.update.clip_factor:
            by_hand = self.update.clip_factor  # of one unit, the sum is the mean: its division looks like clipping
        return [m.share * by_hand * (scale / m.scale if scale and m.scale else 1.0) for m in self.left]

    @property
    def weights(self) -> list[float]:
        """What one example weighs by those shares; 1 is fair."""
        return [share * self.count / m.count for share, m in zip(self.shares, self.left, strict=True)]

    @property
    def coefficients(self) -> list[float]:
        """What each unit's loss was multiplied by; 1 / W is right."""
        return [share / m.count for share, m in zip(self.shares, self.left, strict=True)]

    @property
    def even(self) -> bool:
        """Whether all its examples weigh the same."""
        return near(self.weights, [max(self.weights, default=0.0)] * len(self.weights), self.tolerance)

    @property
    def fair(self) -> bool:
        """Whether all its examples weigh 1."""
        return near(self.weights, [1.0] * len(self.weights), self.tolerance)

    @property
    def equal(self) -> bool:
        """Whether all its micro-batches count the same."""
        return near(self.counts, [max(self.counts)] * len(self.members), self.tolerance)

    def follows(self, name: str) -> bool:
        """Whether its shares are those of one way to divide."""
        shares = DIVISORS[name](self)
        if shares is None:
            return False
        meant = [s for s, m in zip(shares, self.members, strict=True) if m.count and m.fate != "erased"]
        return near(self.shares, meant, self.tolerance)

    def counts_left_out(self, divided: float = 1.0) -> bool:
        """Whether its divisor also counts what was left out; ``divided``: everything was divided by that once more."""
        if not self.left_out or self.fair:
            return False
        offered = self.size + self.left_out
        shares = [share * divided for share in self.shares]
        members = zip(self.batches, self.members, strict=True)
        each = [n / offered for n, m in members if m.count and m.fate != "erased"]
        if near(shares, each, self.tolerance):
            return True
        if not self.even or not all(shares):
            return False
        more = 1 / (self.coefficients[0] * divided) - self.count
        slack = self.tolerance * self.count
        return slack < more <= self.left_out * self.largest + slack


def near(values: list[float], expected: list[float], tolerance: float) -> bool:
    """Whether numbers agree, relative to the expected ones."""
    return all(abs(v - e) <= tolerance * abs(e) for v, e in zip(values, expected, strict=True))


def tolerance_of(trace: Trace) -> float:
    """Return how far a weight may be from 1, relative: the precision's own, or the rounding that was measured."""
    floor = max((update.floor or 0.0 for update in trace.updates), default=0.0)
    return max(TOLERANCE.get(trace.precision, LOW_PRECISION), min(floor, LOW_PRECISION))


@dataclass(frozen=True)
class Case:
    """A trace with what the rules need to know of it."""

    trace: Trace
    boundary: Boundary
    tolerance: float
    windows: tuple[Window, ...]  # those whose shares can be judged
    ways: dict[int, str | None]  # by update: the way of DIVISORS that explains its shares, None where none does
    constant: tuple[str, float] | None = None  # no way explains them, but one factor does over the whole run
    suspect: frozenset[int] = frozenset()  # updates where all that is wrong is as small as the objective's own misfit

    @property
    def steps(self) -> int:
        """N, as declared."""
        return self.trace.accumulation_steps

    def following(self, *ways: str) -> list[Window]:
        """Return the windows that were divided in one of these ways."""
        return [w for w in self.windows if self.ways[w.update.index] in ways]

    def foreign(self, update: Update) -> bool:
        """Whether the loop's own gradients are not those of the declared objective."""
        if update.unexplained is None:
            return False
        return update.index in self.suspect or update.unexplained > unexplained_limit(self.tolerance)


def unexplained_limit(tolerance: float) -> float:
    """Return how much of the loop's gradients may differ from the objective's: more than rounding, less than a loss."""
    return min(10 * tolerance, 0.1)


def read(trace: Trace) -> Case:
    """Return a trace as the rules see it."""
    boundary = read_boundary(trace)
    case = Case(trace, boundary, tolerance_of(trace), (), {})
    judged = [update for update in boundary.windows if _judged(case, update)]
    full = {round(sum(m.count for m in u.micro_batches), 9) for u in judged if sum(boundary.batches(u)) == case.steps}
    windows = tuple(
        Window(
            update=update,
            members=update.micro_batches,
            steps=case.steps,
            is_tail=boundary.is_tail(update),
            full=full.copy().pop() if len(full) == 1 else None,
            tolerance=case.tolerance,
            left_out=boundary.left_out.get(update.index, 0),
            largest=max(m.count / n for u in judged for m, n in zip(u.micro_batches, boundary.batches(u), strict=True)),
            batches=tuple(boundary.batches(update)),
        )
        for update in judged
    )
    ways = _ways(windows)
    suspect = suspected(trace, windows, ways, case.tolerance)
    windows = tuple(w for w in windows if w.update.index not in suspect)
    ways = {w.update.index: ways[w.update.index] for w in windows}
    kinds = set(ways.values()) - {LEFT_OUT}
    constant = _constant(windows, case.tolerance) if None in kinds or len(kinds) > 1 else None
    return Case(trace, boundary, case.tolerance, windows, dict.fromkeys(ways) if constant else ways, constant, suspect)


def without_evidence(update: Update) -> bool:
    """Whether a window was measured and its numbers say nothing: its gradient is 0, or too long to be squared."""
    shares = [m.share for m in update.micro_batches]
    if None in shares or update.gradient_ratio is None:
        return False
    return isnan(update.gradient_ratio) or any(map(isnan, shares))


def _judged(case: Case, update: Update) -> bool:
    """Whether a window's weights speak of its divisor, and not of a boundary or of a gradient that was cleared."""
    fates = {m.fate for m in update.micro_batches}
    if update.skipped or any(m.share is None or m.count is None for m in update.micro_batches):
        return False
    if not sum(m.count for m in update.micro_batches) or case.foreign(update):
        return False
    if without_evidence(update):
        return False
    if "leaked" in fates and case.boundary.kind != "straddling":
        return False
    if "erased" in fates and not ("kept" in fates and erased_in_evaluation(case.trace, update)):
        return False
    if case.boundary.kind in ("declared", "straddling", "unclear"):
        return True
    whole = case.boundary.offered(update) == case.steps or case.boundary.pass_long
    return case.boundary.kind == "wrong count" and (whole or case.boundary.is_tail(update))


def _ways(windows: tuple[Window, ...]) -> dict[int, str | None]:
    """Explain every window by one way to divide if one will do, else by as few as possible."""
    fitting = {name: {w.update.index for w in windows if w.follows(name)} for name in DIVISORS}
    ways: dict[int, str | None] = {w.update.index: None for w in windows}
    ways |= {w.update.index: LEFT_OUT for w in windows if w.counts_left_out()}
    ways |= {w.update.index: "sum/W/N" for w in windows if not w.counts_left_out() and w.counts_left_out(w.steps)}
    open_ = {index for index, way in ways.items() if way is None}
    while open_:
        # the one that explains most; of several, one that explained other windows, or the first
        name = max(DIVISORS, key=lambda name: (len(fitting[name] & open_), name in ways.values()))
        explained = fitting[name] & open_
        if not explained:
            break
        ways.update(dict.fromkeys(explained, name))
        open_ -= explained
    return ways


def _constant(windows: tuple[Window, ...], tolerance: float) -> tuple[str, float] | None:
    """Return the factor by which every example of the run weighs the same: a multiplier of its loss, or its weight."""
    found = []
    for kind in ("coefficients", "weights"):
        factors = [factor for w in windows for factor in getattr(w, kind)]
        if factors and factors[0] and near(factors, [factors[0]] * len(factors), 2 * tolerance):
            found.append((kind[:-1], factors[0]))
    turned = [(kind, factor) for kind, factor in found if kind == "weight" and near([factor], [-1.0], 2 * tolerance)]
    return next(iter(turned or found), None)
