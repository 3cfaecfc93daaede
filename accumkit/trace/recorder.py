"""From what the hooks tell to records: which backward belongs to which micro-batch, window and update."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from accumkit.objective import Objective
from accumkit.trace.capture import Capture
from accumkit.trace.clipping import tell_hand_clipping
from accumkit.trace.gradients import Gradients
from accumkit.trace.listeners import in_closure, step_failed
from accumkit.trace.measure import Held, Open
from accumkit.trace.meter import Meter
from accumkit.trace.patches import told
from accumkit.trace.record import Event, Trace, Update
from accumkit.trace.replay import Piece
from accumkit.trace.shares import factor_of

SEVERAL = (
    "several optimizers step this model's parameters at different boundaries; the shares are those of the one that "
    "steps most often, for its own parameters"
)


class Recorder:
    """Listens to the hooks for one model and fills a trace."""

    def __init__(self, model: nn.Module, objective: Objective | None, trace: Trace) -> None:
        self.model, self.trace = model, trace
        self.measured = objective is not None
        self.capture = Capture(model, objective, trace)
        self.gradients = Gradients(model, rows=self.measured)
        self.meter = Meter(model, objective, self.gradients)
        self.begun = 0  # micro-batches so far
        self.window = Open()
        self.pieces: list[Piece] = []  # forward calls since the last backward
        self.ready: tuple[Optimizer, Update] | None = None  # a step that has begun
        self.stepped: weakref.ref[Optimizer] | None = None  # the optimizer of the last update
        self.before: Tensor | None = None  # .grad before the backward that runs, None for nothing in it
        self.fresh = True  # it held nothing
        self.waiting: set[int] = set()  # parameters whose gradient spans the last window and earlier ones

    # what the loop is fed
    def fetch(self, iterable: Any) -> Any:
        """Yield from an iterable, noting each batch."""
        return told(iter(iterable), iterable)

    def pass_begins(self, length: int) -> int:
        return self.capture.fetches.start(length)

    def fetched(self, number: int, batch: Any, location: str | None) -> None:
        self._event("batch", location)
        self.capture.fetches.add(number, batch)

    def forward_begins(self, args: tuple, kwargs: dict, location: str | None) -> None:
        if self.ready is not None:
            if in_closure():
                self._again()
            else:  # that step raised
                self.ready = None
                step_failed()
        if not torch.is_grad_enabled():
            self._event("evaluation", location)
            self.capture.evaluated(args, kwargs)
            return
        self._event("forward" if self.model.training else "evaluation", location)
        if self.pieces and self.pieces[-1].training != self.model.training:
            self.pieces.clear()  # an evaluation with gradients on, and no backward
        self.pieces.append(self.capture.piece(args, kwargs))
        if self.window.versions is None:
            self.window.versions = self.gradients.versions()

    def forward_ends(self) -> None:
        if self.measured and self.pieces and torch.is_grad_enabled():
            self.capture.finish(self.pieces[-1])

    # backward
    def backward_begins(self) -> None:
        window, gradients = self.window, self.gradients
        touched = gradients.touched()
        if not self.measured and window.held and not touched:
            self.fresh = False
            return
        row = None if gradients.empty() else gradients.row()
        if not window.held:
            self.fresh = gradients.empty() or gradients.zero(row)
            if not self.fresh:
                window.carried, window.left = row, gradients.left() if row is None else set()
        elif self._cleared(row, touched):
            window.multiply(0.0)
            self.fresh = True
        else:
            self.fresh = False
            if row is not None and not torch.equal(row, window.accumulated):
                window.multiply(factor_of(*(gradients.cut(r).double() for r in (window.accumulated, row)))[0])
        self.before = row
        if touched:
            gradients.remember()

    def _cleared(self, row: Tensor | None, touched: bool) -> bool:
        """Say whether the gradients that waited are gone: None, or zeros now and not before."""
        if self.gradients.empty():
            return True
        if row is None:
            return touched and self.gradients.zero(None)
        return self.gradients.zero(row) and not self.gradients.zero(self.window.accumulated)

    def backward_ends(self, location: str | None) -> None:
        if not self.gradients.touched():
            return  # a backward that did not reach this model
        window, after = self.window, self.gradients.row()
        increment = after if after is None or self.before is None else after - self.before
        pieces, self.pieces = self.pieces, []
        if pieces or not window.held:
            window.held.append(Held(self.begun, self.capture.epoch_of(pieces), location, pieces, increment))
            self.begun += 1
        else:  # a second backward for the same forward: another term of its loss
            last = window.held[-1]
            last.increment = None if increment is None else last.increment * last.factor + increment
            last.factor = 1.0
        window.accumulated = after
        window.unscaled.clear()
        window.clipped.clear()
        self.gradients.remember()
        self._event("backward", location)

    # what happens to .grad
    def zero_grad(self, owner: Any, location: str | None) -> None:
        if self.gradients.held_by(owner):
            self._event("zero_grad", location)

    def scaled(self, optimizer: Optimizer, factor: float, location: str | None) -> None:
        if self.gradients.held_by(optimizer):
            self.window.unscaled.append(factor)
            self._event("unscale", location, 1 / factor)

    def clipped(self, tensors: list, factor: float | None, max_norm: float | None, location: str | None) -> None:
        own = self.gradients.ids | {id(p.grad) for p in self.gradients.active}
        if any(id(tensor) in own for tensor in tensors):
            if factor is not None:
                self.window.clipped.append(factor)
            self.window.max_norm = max_norm
            self._event("clip", location, factor)

    # the step
    def step_begins(self, optimizer: Optimizer, location: str | None) -> None:
        if not self.gradients.held_by(optimizer):
            return
        if not self.window.held and self.stepped is not None and self.stepped() is not optimizer:
            self._event("step", location)  # a second optimizer of the same model, at the same boundary
            if self.waiting & self.gradients.ids_of(optimizer):
                self.capture.reason(SEVERAL)
            return
        found_inf = getattr(optimizer, "found_inf", None)  # fused optimizers are told by the scaler and skip inside
        skipped = found_inf is not None and bool(found_inf.item())
        self.ready = (optimizer, self._close(optimizer, location, skipped))

    def step_ends(self, optimizer: Optimizer) -> None:
        if self.ready is not None and self.ready[0] is optimizer:
            update, self.ready = self.ready[1], None
            self._commit(update, optimizer)

    def step_skipped(self, optimizer: Optimizer, location: str | None) -> None:
        if self.gradients.held_by(optimizer):
            self._commit(self._close(optimizer, location, skipped=True), optimizer)

    def _close(self, optimizer: Optimizer, location: str | None, skipped: bool) -> Update:
        window, row = self.window, self.gradients.row()
        scale = getattr(optimizer, "grad_scale", None)
        if row is not None and scale is not None:
            row = row / scale.to(row.device)
        if window.held and self._cleared(row, self.gradients.touched()):
            window.multiply(0.0)
        self._part_lost()
        found = self.meter.measure(window, optimizer, row, len(self.trace.updates), skipped)
        self.capture.copying |= found.why is not None and "memory" in found.why
        return Update(
            index=len(self.trace.updates),
            epoch=window.held[-1].epoch if window.held else max(self.capture.epoch, 0),
            micro_batches=tuple(
                held.record(share, found.count) for held, share in zip(window.held, found.shares, strict=True)
            ),
            carried=self._carried(optimizer),
            skipped=skipped,
            location=location,
            **found.numbers(),
        )

    def _part_lost(self) -> None:
        """Move micro-batches of an earlier epoch out of the window if cleared; mark them leaked if they are in it."""
        held = self.window.held
        last = held[-1].epoch if held else 0
        lost = [h for h in held if h.factor == 0.0 and h.epoch < last]
        if lost:
            self._lose(lost)
            self.window.held = held = [h for h in held if h not in lost]
        inside = [h for h in held if h.factor != 0.0]
        if len(inside) != self.trace.accumulation_steps:  # exactly N across two epochs is a window that straddles them
            for h in inside:
                h.leaked = h.epoch < last

    def _lose(self, lost: list[Held]) -> None:
        count = sum(h.count for h in lost) if self.measured else None
        self.trace.lost += [h.record(None, count, lost=True) for h in lost]

    def _carried(self, optimizer: Optimizer) -> float:
        """Return which part of an optimizer's gradient is left over from updates before."""
        window, gradients = self.window, self.gradients
        if not window.held:  # a step on what the step before it left
            return 0.0 if gradients.empty() else 1.0
        if window.carried_factor == 0.0:
            return 0.0
        if window.carried is None:
            return 1.0 if window.left & gradients.ids_of(optimizer) else 0.0
        kept = gradients.columns_of(optimizer)
        norms = [(row if kept is None else row[kept]).norm().item() for row in (window.carried, window.accumulated)]
        return abs(window.carried_factor) * norms[0] / norms[1] if norms[1] else 0.0

    def _commit(self, update: Update, optimizer: Optimizer) -> None:
        self._event("skipped step" if update.skipped else "step", update.location)
        self.trace.updates.append(update)
        self.stepped = weakref.ref(optimizer)
        self.waiting = self._waiting()
        self.capture.close([piece for held in self.window.held for piece in held.pieces])
        self.window = Open()
        self.gradients.remember()

    def _waiting(self) -> set[int]:
        """Return the parameters whose gradient was already there when this window began, and stayed."""
        window = self.window
        if window.carried is None or window.carried_factor == 0.0:
            return window.left if window.carried_factor else set()
        parts = window.carried.split(self.gradients.columns.sizes)
        return {id(p) for p, part in zip(self.gradients.parameters, parts, strict=True) if part.any()}

    def _again(self) -> None:
        """Start a window over: its closure is evaluated again within one step."""
        if self.window.held:
            self.begun = self.window.held[0].index
        self.window, self.ready = Open(), None

    def finish(self) -> None:
        """Close the trace: what waits for a step that never came is lost."""
        self.trace.fetch = None
        self.trace.coupled += self.meter.coupled
        if self.window.held:
            self._lose(self.window.held)
        self.trace.updates[:] = tell_hand_clipping(self.trace.updates)
        self.capture.count_epochs()

    # small things
    def note(self, kind: str, location: str | None) -> None:
        self._event(kind, location)

    def failed(self, error: Exception) -> None:
        self.capture.reason(f"watching met {type(error).__name__}: {error}")

    def _event(self, kind: str, location: str | None, value: float | None = None) -> None:
        coming = kind in ("batch", "forward")
        self.trace.events.append(Event(kind, self.begun if coming else self.begun - 1, location, value))
