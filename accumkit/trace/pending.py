"""A window while it is accumulated: its micro-batches, and what became of ``.grad``."""

from __future__ import annotations

from collections.abc import Set
from math import prod

import torch
from torch import Tensor

from accumkit.trace.piece import Call
from accumkit.trace.record import MicroBatch, new
from accumkit.trace.shares import SAME, factor_of


class Held:
    """A micro-batch whose gradient waits for a step.

    What is seldom anything else than its default stands on the class until it is.

    Parameters
    ----------
    increment : Tensor of shape (columns,), optional
        What its backward added to ``.grad``.
    scale : float, optional
        What a scaler multiplied its loss by.
    """

    factor: float = 1.0  # what has become of the increment since; 0 when it was cleared
    leaked: bool = False
    repeats: int | None = None  # index of an earlier micro-batch with the same inputs
    touched: float | None = None  # what .grad was multiplied by by hand after it, before the next one's backward
    touched_norm: float | None = None

    def __init__(
        self, index: int, epoch: int, location: str | None, pieces: list[Call], increment: Tensor | None = None,
        scale: float | None = None,
    ) -> None:  # fmt: skip
        self.index, self.epoch, self.location, self.pieces = index, epoch, location, pieces
        self.increment, self.scale = increment, scale

    @property
    def examples(self) -> int:
        """Examples in it."""
        pieces = self.pieces
        return pieces[0].examples if len(pieces) == 1 else sum(piece.examples for piece in pieces)

    @property
    def count(self) -> float:
        """Units in it, by the objective."""
        pieces = self.pieces
        return pieces[0].count if len(pieces) == 1 else sum(piece.count for piece in pieces)

    def record(self, share: float | None, window_count: float | None, lost: bool = False) -> MicroBatch:
        """Return the plain numbers about it."""
        count, fair_share = None, None
        if window_count is not None:
            count = self.count
            fair_share = count / window_count if window_count else None
        gone = lost or self.factor == 0.0
        share = 0.0 if gone else share
        fate = "lost" if lost else "erased" if gone else "leaked" if self.leaked else "kept"
        return new(MicroBatch, (
            self.index, self.epoch, self.examples, count, share, fair_share,
            fate, self.location, self.repeats, self.scale, self.touched, self.touched_norm, len(self.pieces),
        ))  # fmt: skip


class Open:
    """The window that is being accumulated; as for a micro-batch, defaults stand on the class."""

    accumulated: Tensor | None = None  # .grad after the last backward, shape (columns,)
    carried: Tensor | None = None  # .grad left over from an earlier update, at the window's first backward
    left: Set[int] = frozenset()  # the parameters it was left over in, where rows are not looked at
    carried_factor: float = 1.0
    multiplied: bool = False  # some of it, as a whole
    before_clip: Tensor | None = None  # .grad before a clip that no one factor describes, shape (columns,)
    unscaled_before: int = 0  # how many of the unscaling factors came before that
    max_norm: float | None = None
    by_value: bool = False  # clipped entry by entry, max_norm being the limit of each
    clip_scale: float | None = None  # what the gradient was multiplied by when it was clipped
    hand: tuple[float, float] | None = None  # what was done to it by hand while scaled: a factor, and what is no factor
    versions: list[int] | None = None  # of the parameters at the first forward

    def __init__(self) -> None:
        self.held: list[Held] = []
        self.unscaled: list[float] = []  # factors applied since the last backward
        self.clipped: list[float] = []

    @property
    def is_new(self) -> bool:
        """Nothing has come to it yet: it holds its lists alone, which are empty, and no default has been replaced."""
        return len(vars(self)) == 3 and not any(vars(self).values())

    @property
    def scale(self) -> float:
        """What the gradient is multiplied by now: the last loss's scale, as far as it was not taken out."""
        scales = [held.scale for held in self.held if held.scale is not None]
        return (scales[-1] if scales else 1.0) * prod(self.unscaled)

    @property
    def marks(self) -> tuple[tuple[float, ...], ...]:
        """Fingerprints of what its forward calls were fed."""
        return tuple(piece.marks for held in self.held for piece in held.pieces)

    def find_repeats(self) -> None:
        """Note which micro-batches were fed the same inputs as an earlier one."""
        first: dict[tuple, Held] = {}
        for held in self.held:
            key = tuple(piece.marks for piece in held.pieces)
            earlier = first.setdefault(key, held) if all(key) else held
            pairs = zip(earlier.pieces, held.pieces, strict=True)
            if earlier is not held and all(same(a.tensors, b.tensors) for a, b in pairs):
                held.repeats = earlier.index

    def part_lost(self, steps: int) -> list[Held]:
        """Take out and return micro-batches of an earlier epoch that were cleared; mark those leaked that were not."""
        held = self.held
        last = held[-1].epoch if held else 0
        if not held or held[0].epoch == last:  # one epoch, as nearly always
            return []
        lost = [h for h in held if h.factor == 0.0 and h.epoch < last]
        self.held = [h for h in held if h not in lost]
        inside = [h for h in self.held if h.factor != 0.0]
        if len(inside) != steps:  # exactly N across two epochs is a window that straddles them
            for h in inside:
                h.leaked = h.epoch < last
        return lost

    def multiply(self, factor: float) -> None:
        """Note that ``.grad`` as a whole was multiplied; 0: it was cleared."""
        for held in self.held:
            held.factor *= factor
        self.carried_factor *= factor
        self.multiplied = True
        self.renew()

    def done_by_hand(self, row: Tensor) -> None:
        """Note what became of the accumulated gradient by hand, just before it is unscaled."""
        factor, rest = factor_of(self.accumulated.double(), row.double())
        factor /= prod(self.clipped)
        if not self.by_value and abs(factor - 1) > SAME:
            self.hand = factor, rest

    def renew(self) -> None:
        """Forget what was done to ``.grad``, for a backward has added to it."""
        done = self.unscaled or self.clipped or self.hand or self.clip_scale is not None
        if not done and self.before_clip is None:
            return  # nearly always
        self.unscaled.clear()
        self.clipped.clear()
        self.max_norm = self.clip_scale = self.hand = self.before_clip = None
        self.by_value = False


def same(some: list[Tensor], others: list[Tensor]) -> bool:
    """Say whether two lists hold equal tensors."""
    return len(some) == len(others) and all(torch.equal(a, b) for a, b in zip(some, others, strict=True))
