"""Measures windows at their steps, on copies of the model that are made when first needed."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from accumkit.objective import Objective
from accumkit.trace.aside import rounding
from accumkit.trace.capture import Capture
from accumkit.trace.coupled import Gauge
from accumkit.trace.gradients import Gradients
from accumkit.trace.listeners import muted
from accumkit.trace.measure import Measured, measure, unmeasured, why_not
from accumkit.trace.mixing import Tracked, masks_of
from accumkit.trace.pending import Open
from accumkit.trace.record import Trace
from accumkit.trace.replay import COUPLING, Twin, other_draws, other_states, undisturbed
from accumkit.trace.scaling import clip_scale

FLOOR_EVERY = 32  # windows between two measurements of rounding in float64, after the first two
LOOKS = 4  # windows after which a replay that has not drawn on Python's or numpy's generator is taken not to


class Meter:
    """Measures one model's windows against one objective.

    Parameters
    ----------
    model, objective
        As watched; without an objective nothing is measured.
    gradients : Gradients
        The model's.
    """

    def __init__(self, model: nn.Module, objective: Objective | None, gradients: Gradients) -> None:
        self.model, self.objective, self.gradients = model, objective, gradients
        self.coupling = [(name, m) for name, m in model.named_modules() if isinstance(m, COUPLING)]
        self.tracked = Tracked(self.coupling)
        self.mixing: list[str] = []  # layers that do so at this step
        self.masks: dict[int, tuple[int, int]] = {}  # by a window's first micro-batch
        self.coupled: list[str] = []  # layers, or "examples", found to mix the examples of a micro-batch
        self.number = 0  # windows measured
        self.draws = False  # a replay has drawn on Python's or numpy's generator
        self.has_term = objective is not None and objective.per_update is not None
        self.twin: Twin | None = None
        self.wide: Twin | None = None

    def look(self) -> None:
        """Note which layers mix the examples of a micro-batch, as they are at a step."""
        if not self.coupling:
            return
        self.mixing = [name for name, m in self.coupling if m.training or m.running_mean is None]
        self.coupled += [name for name in self.mixing if name not in self.coupled]

    def numbers(
        self, window: Open, optimizer: Optimizer, at_step: Tensor | None, skipped: bool, capture: Capture
    ) -> dict[str, Any]:
        """Return what a window puts into its update: what was measured, or without an objective what can be had."""
        self.look()
        if self.objective is None:
            factor = prod(window.clipped) if window.clipped else None
            records = tuple([held.record(None, None) for held in window.held])
            return {"micro_batches": records, "clip_factor": factor, "clip_scale": clip_scale(window, factor)}
        found = self.measure(window, optimizer, at_step, skipped, capture)
        window.find_repeats()
        errors = (None, None) if skipped else rounding(window, self.gradients)
        capture.copying |= found.why is not None and "memory" in found.why
        shares = zip(window.held, found.shares, strict=True)
        return {
            "micro_batches": tuple([held.record(share, found.count) for held, share in shares]),
            "fed_again": capture.fed_again(window.marks),
            "clip_scale": clip_scale(window, found.clip_factor),
            "sum_error": errors[0],
            "one_rounding": errors[1],
            **found.numbers(),
        }

    def measure(
        self, window: Open, optimizer: Optimizer, at_step: Tensor | None, skipped: bool, capture: Capture
    ) -> Measured:
        """Measure a window; never raises: what cannot be had is said in ``why``."""
        count = sum(held.count for held in window.held if not held.leaked)
        why = "the scaler skipped this step: a gradient was not finite" if skipped else None
        why = why or why_not(window, self.gradients.versions())
        if why is not None:
            return unmeasured(window, count, why)
        pieces = [piece for held in window.held for piece in held.pieces]
        narrow = self.gradients.columns.dtype == torch.float32 and not any(piece.drew for piece in pieces)
        sample = narrow and (self.number < 2 or self.number % FLOOR_EVERY == 0)
        try:
            others = self.draws or self.number < LOOKS or any(piece.others is not None for piece in pieces)
            with undisturbed(self.gradients.columns.device, others) as before, muted():
                self.twin = self.twin or Twin(self.model, self.objective)
                kept = self.gradients.columns_of(optimizer)
                gauge = Gauge(
                    self.gradients.columns, self.twin, self._widened, kept, bool(self.mixing), sample, self.number == 0
                )
                whole = None if self.gradients.columns.complete else self.gradients.norms(optimizer)
                found = measure(window, at_step, whole, gauge)
                self.draws = self.draws or (before is not None and other_draws(before, other_states()))
        except Exception as error:  # the reader's model or objective, on a copy
            why = f"running the window again with the objective raised {type(error).__name__}: {error}"
            unknown = capture.fetches.torn or any(piece.number < 0 for piece in pieces)
            return unmeasured(window, count, f"{capture.stand_in()}; {why}" if unknown else why)
        self.number += 1
        if any(piece.drew for piece in pieces):
            self.masks[window.held[0].index] = masks_of(window)
        if found.coupled and not self.coupled:
            self.coupled.append("examples")
        return found

    def tell(self, trace: Trace) -> None:
        """Fill in what goes on between examples: layers that mix them, running statistics, and random masks."""
        trace.coupled += self.coupled
        trace.running += self.tracked.moved()
        for update in trace.updates if self.masks else ():
            drew, repeated = self.masks.get(update.micro_batches[0].index, (0, 0)) if update.micro_batches else (0, 0)
            if drew:
                trace.updates[update.index] = update._replace(drew=drew, masks_repeated=repeated)

    def _widened(self) -> Twin:
        self.wide = self.wide or Twin(self.model, self.objective, torch.float64)
        self.wide.follow()
        return self.wide
