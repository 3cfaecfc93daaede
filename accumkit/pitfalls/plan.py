"""What a run will have before it runs: micro-batches, their windows, and why a fault cannot show in them."""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose


@dataclass(frozen=True)
class Plan:
    """The micro-batches of one pass, as the loops will see them.

    Parameters
    ----------
    counts : tuple of float
        Units in each micro-batch: examples, tokens or class weights.
    sizes : tuple of int
        Examples in each micro-batch.
    steps : int
        Accumulation steps, N.
    epochs : int
        Passes over the data.
    """

    counts: tuple[float, ...]
    sizes: tuple[int, ...]
    steps: int
    epochs: int

    @property
    def passes(self) -> int:
        """Micro-batches in a pass."""
        return len(self.sizes)

    @property
    def windows(self) -> list[tuple[float, ...]]:
        """The counts of each window of a pass."""
        return [self.counts[i : i + self.steps] for i in range(0, len(self.counts), self.steps)]

    @property
    def updates(self) -> int:
        """Updates in the whole run."""
        return self.epochs * len(self.windows)

    @property
    def even(self) -> bool:
        """Whether the micro-batches of each window count the same."""
        return all(isclose(count, window[0], rel_tol=1e-9) for window in self.windows for count in window)


# Why a fault cannot show: each returns a sentence, or None where the fault does show.
def never(plan: Plan) -> str | None:
    """Shows everywhere."""
    return None


def needs_accumulation(plan: Plan) -> str | None:
    """Shows where a window has several micro-batches."""
    if plan.steps == 1:
        return "With N = 1 every window is one micro-batch, so nothing is accumulated."
    if plan.passes == 1:
        return "A pass has only one micro-batch, so nothing is accumulated."
    return None if max(map(len, plan.windows)) > 1 else "Every window is one micro-batch, so nothing is accumulated."


def needs_long_sum(plan: Plan) -> str | None:
    """Shows where a window adds up four gradients or more."""
    if said := needs_accumulation(plan):
        return said
    if max(map(len, plan.windows)) > 3:
        return None
    return "A sum of two or three gradients in bfloat16 is off by little more than the rounding of each of them."


def needs_several_steps(plan: Plan) -> str | None:
    """Shows where N is more than 1, and a window has several micro-batches."""
    if plan.steps == 1:
        return "With N = 1 a division by N changes nothing."
    if plan.passes == 1:
        return (
            "A pass has only one micro-batch: to divide it by N once too often and to take its short window for a full "
            "one (tail-divisor) is the same."
        )
    return None


def needs_shift(plan: Plan) -> str | None:
    """Shows where windows that are shifted by one differ from windows of one micro-batch each."""
    if said := needs_accumulation(plan):
        return said
    if plan.passes == 2:
        return "A pass has only two micro-batches: shifted by one, each is a window by itself (step-every-micro-batch)."
    return None


def needs_tail(plan: Plan) -> str | None:
    """Shows where the last window of a pass is short."""
    if len(plan.windows[-1]) < plan.steps:
        return None
    if plan.steps == 1:
        return "With N = 1 every window is full: there is no short last one."
    return f"A pass has {plan.passes} micro-batches, a multiple of N = {plan.steps}: there is no short last window."


def needs_leak(plan: Plan) -> str | None:
    """Shows where a short last window has a next pass to go into."""
    if said := needs_tail(plan):
        return said
    if plan.passes < plan.steps:
        return f"A pass has fewer than N = {plan.steps} micro-batches, so there is no step at all: everything is lost."
    if plan.epochs == 1:
        return "There is one pass only, so the rest has no next pass to leak into: it is lost."
    return None


def needs_second_update(plan: Plan) -> str | None:
    """Shows where one update follows another."""
    return "There is one update only, and none before it." if plan.updates < 2 else None


def needs_second_window(plan: Plan) -> str | None:
    """Shows where a pass has several windows."""
    return "A pass is one window, so there is no second one." if len(plan.windows) < 2 else None


def needs_unequal(plan: Plan) -> str | None:
    """Shows where the micro-batches of a window count differently."""
    if said := needs_accumulation(plan):
        return said
    return (
        "In each window all micro-batches count the same, so the mean of their means is right." if plan.even else None
    )


def needs_middle(plan: Plan) -> str | None:
    """Shows where a multiple of 3 micro-batches lies inside a window."""
    inside = [i for i in range(3, plan.passes, 3) if i % plan.steps]
    if inside:
        return None
    return "After every third micro-batch a window has just ended (or none is complete), so nothing waits there."


def needs_schedule(plan: Plan) -> str | None:
    """Shows where a plan made in micro-batches is longer than one made in updates, and is followed."""
    if plan.passes == len(plan.windows):
        return "Each micro-batch makes an update, so a schedule in micro-batches is one in updates."
    return "There is one update only, so no schedule is followed." if plan.updates < 2 else None


def needs_nesting(plan: Plan) -> str | None:
    """Shows where a pass has several windows, which the tool inside takes for micro-batches."""
    if plan.steps == 1:
        return "With N = 1 neither the loop nor the tool inside it accumulates anything."
    if len(plan.windows) == 1:
        return (
            "A pass is one window, so the tool inside is called once and waits for nothing: all that is left of the "
            "fault is a second division."
        )
    return None
