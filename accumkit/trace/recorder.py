"""From what the hooks tell to records: which backward belongs to which micro-batch, window and update."""

from __future__ import annotations

import weakref
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from accumkit.objective import Objective
from accumkit.trace.aside import ASIDE, put_back
from accumkit.trace.capture import Capture
from accumkit.trace.clipping import tell_hand_clipping
from accumkit.trace.feeds import told
from accumkit.trace.gradients import Gradients
from accumkit.trace.graph import UNTAGGED, Tag, passes_untagged, reached
from accumkit.trace.leftover import SEVERAL, carried, note_joined, waiting, why_not_second
from accumkit.trace.listeners import in_closure, step_failed
from accumkit.trace.meter import Meter
from accumkit.trace.pending import Held, Open
from accumkit.trace.piece import Call
from accumkit.trace.record import Event, Trace, Update, new
from accumkit.trace.scaling import Scaling
from accumkit.trace.shares import factor_of
from accumkit.trace.touches import Touches


class Recorder(Touches):
    """Listens to the hooks for one model and fills a trace."""

    def __init__(self, model: nn.Module, objective: Objective | None, trace: Trace) -> None:
        self.model, self.trace, self.events, self.updates = model, trace, trace.events, trace.updates
        self.measured = objective is not None
        self.capture = Capture(model, objective, trace)
        self.gradients = Gradients(model, rows=self.measured)
        self.scaling = Scaling(trace)
        self.meter = Meter(model, objective, self.gradients)
        self.thread = get_ident()  # the one in which the model's forward runs
        self.begun = 0  # micro-batches so far
        self.window = Open()
        self.pieces: list[Call] = []  # forward calls since the last backward
        self.ready: tuple[Optimizer, Update] | None = None  # a step that has begun
        self.stepped: weakref.ref[Optimizer] | None = None  # the optimizer of the last update
        self.before: Tensor | None = None  # .grad before the backward that runs, None for nothing in it
        self.reaches: set[Tag] | None = None  # the graphs that the running backward passes
        self.retains = self.retained = False  # whether the running, and the last, backward keeps its graph
        self.graphs: list[weakref.ref[Tag]] = []  # of the last window
        self.at_step: Tensor | None = None  # .grad at the last step
        self.waiting: set[int] = set()  # parameters whose gradient spans the last window and earlier ones

    # what the loop is fed
    def fetch(self, iterable: Any) -> Any:
        """Yield from an iterable, noting each batch."""
        return told(iter(iterable), iterable)

    def pass_begins(self, length: int, size: int | None) -> int:
        return self.capture.fetches.start(length, size)

    def fetched(self, number: int, batch: Any, location: str | None) -> None:
        self.events.append(new(Event, ("batch", self.begun, location, None)))
        self.capture.fetches.add(number, batch)

    def forward_begins(self, args: tuple, kwargs: dict, location: str | None) -> None:
        if self.ready is not None:
            if in_closure():
                self._again()
            else:  # that step raised
                self.ready = None
                step_failed()
        self.thread = get_ident()
        if not torch.is_grad_enabled():
            self._event("evaluation", location)
            self.capture.evaluated(args, kwargs)
            return
        training, pieces = self.model.training, self.pieces
        self._event("forward" if training else "evaluation", location)
        if pieces and pieces[-1].training != training:
            pieces.clear()  # an evaluation with gradients on, and no backward
        pieces.append(self.capture.call(args, kwargs))
        if self.measured and self.window.versions is None:
            self.window.versions = self.gradients.versions()

    def forward_ends(self, output: Any) -> None:
        # without an objective, a forward that waits alone needs no tag
        if self.pieces and (self.measured or len(self.pieces) > 1) and torch.is_grad_enabled():
            self.capture.finish(self.pieces[-1], output)

    # backward
    def backward_begins(self, roots: Any, retain: bool | None) -> None:
        if get_ident() != self.thread:
            return  # another thread trains another model
        window, gradients = self.window, self.gradients
        if not window.held and gradients.begin_window():
            window.versions, self.meter.twin, self.meter.wide = gradients.versions(), None, None
        # one forward that waits is the one; of several, the graph tells which
        self.reaches, self.retains = reached(roots) if len(self.pieces) > 1 else None, bool(retain)
        if not self.measured and self.reaches is not None and passes_untagged(roots, gradients.ids):
            self.reaches.add(UNTAGGED)
        touched = gradients.touched()
        if not self.measured and window.held and not touched:
            if self.capture.new_pass(self.pieces) and gradients.zero(None):  # .data hides a write; once a pass, a look
                window.multiply(0.0)
            return
        gradients.forget_given()
        empty = gradients.empty()
        row = None if empty else gradients.row()
        if not window.held:
            if not empty and not gradients.zero(row):
                window.carried, window.left = row, gradients.left() if row is None else set()
        elif row is not None and torch.equal(row, window.accumulated):
            pass  # as the last backward left it
        elif gradients.cleared(row, touched, window.accumulated):
            window.multiply(0.0)
        elif row is not None:
            factor = factor_of(*(gradients.cut(r).double() for r in (window.accumulated, row)))[0]
            if not window.clipped and not window.unscaled:
                window.held[-1].touched, window.held[-1].touched_norm = factor, row.norm().item()
            window.multiply(factor)
        self.before = row
        if touched:
            gradients.remember()

    def backward_ends(self, location: str | None) -> None:
        if get_ident() != self.thread:
            return
        touched = self.gradients.remember()
        scale = self.scaling.taken(own=touched) if self.scaling.waiting else None
        if not touched:
            return  # a backward that did not reach this model
        window, increment = self.window, None
        if self.measured:
            window.accumulated = after = self.gradients.row()
            increment = self.gradients.given()
            if increment is None:
                increment = after if self.before is None else after - self.before
        pieces = self._take_pieces()
        last = window.held[-1] if window.held else None
        if pieces and last is not None and not last.pieces and self.meter.has_term:
            last.pieces, last.epoch = pieces, self.capture.epoch_of(pieces)  # the objective's own term came first
            last.increment, last.factor = last.increment * last.factor + increment, 1.0
        elif pieces or last is None or not last.pieces:
            window.held.append(Held(self.begun, self.capture.epoch_of(pieces), location, pieces, increment, scale))
            self.begun += 1
        else:  # a second backward for the same forward: another term of its loss
            last.increment = None if increment is None else last.increment * last.factor + increment
            last.factor = 1.0
        window.renew()
        self.events.append(new(Event, ("backward", self.begun - 1, location, None)))

    def _take_pieces(self) -> list[Call]:
        """Return the forward calls that this backward reached; all that wait, where the graph does not say."""
        if self.reaches:
            taken = [p for p in self.pieces if (UNTAGGED if p.tag is None else p.tag()) in self.reaches]
            self.pieces = [piece for piece in self.pieces if piece not in taken]
        else:
            taken, self.pieces = self.pieces, []
        if self.retained and taken:  # no second backward went through that one
            self.trace.graphs_retained += 1
        self.retained = self.retains
        return taken

    # the step
    def step_begins(self, optimizer: Optimizer, location: str | None) -> None:
        if not self.gradients.held_by(optimizer):
            return
        if not self.window.held and self.stepped is not None and self.stepped() is not optimizer:
            self._event("step", location)  # a second optimizer of the same model, at the same boundary
            self._second(optimizer)
            return
        found_inf = getattr(optimizer, "found_inf", None)  # fused optimizers are told by the scaler and skip inside
        skipped = found_inf is not None and bool(found_inf.item())
        self.ready = (optimizer, self._close(optimizer, location, skipped))

    def _second(self, optimizer: Optimizer) -> None:
        """Look whether another optimizer's step uses the gradient that the window made, and nothing older."""
        why = why_not_second(self.waiting, self.at_step, self.window, self.gradients, optimizer)
        if why == SEVERAL:
            self.capture.reason(SEVERAL)
        updates = self.updates
        if why is not None and self.measured and updates:
            hidden = tuple(m._replace(share=None) for m in updates[-1].micro_batches)
            updates[-1] = updates[-1]._replace(why=why, micro_batches=hidden)

    def step_ends(self, optimizer: Optimizer) -> None:
        if self.ready is not None and self.ready[0] is optimizer:
            update, self.ready = self.ready[1], None
            self._commit(update, optimizer)

    def step_skipped(self, optimizer: Optimizer, location: str | None) -> None:
        if self.gradients.held_by(optimizer):
            self._commit(self._close(optimizer, location, skipped=True), optimizer)

    def _close(self, optimizer: Optimizer, location: str | None, skipped: bool) -> Update:
        window, row = self.window, self.gradients.row()
        note_joined(self.gradients, optimizer)
        scale = getattr(optimizer, "grad_scale", None)  # a fused optimizer unscales inside its step
        if row is not None and scale is not None:
            window.done_by_hand(row)
            row = row / scale.to(row.device)
            window.unscaled.append(1 / scale.item())
        if window.held:  # values, where they are looked at, show what versions hide
            as_left = row is not None and not self.gradients.empty() and torch.equal(row, window.accumulated)
            row = window.accumulated if as_left else row  # one tensor, which says so
            touched = not as_left and (row is not None or self.gradients.touched())
            if touched and self.gradients.cleared(row, touched, window.accumulated):
                window.multiply(0.0)
        aside = put_back(window, row, self.gradients)
        if aside and row is None:
            self.capture.reason(ASIDE)
        self._lose(window.part_lost(self.trace.accumulation_steps))
        self.at_step = row
        return Update(
            index=len(self.updates),
            epoch=window.held[-1].epoch if window.held else max(self.capture.epoch, 0),
            carried=carried(window, self.gradients, optimizer),
            unused=len(self.pieces),
            max_norm=window.max_norm,
            hand_scaled=window.hand[0] if window.hand else None,
            skipped=skipped,
            scaler=self.scaling.number_of_stepping(),
            kept_aside=aside,
            location=location,
            **self.meter.numbers(window, optimizer, row, skipped, self.capture),
        )

    def _lose(self, lost: list[Held]) -> None:
        count = sum(h.count for h in lost) if lost and self.measured else None
        self.trace.lost += [h.record(None, count, lost=True) for h in lost]

    def _commit(self, update: Update, optimizer: Optimizer) -> None:
        self._event("skipped step" if update.skipped else "step", update.location)
        self.updates.append(update)
        self.stepped = weakref.ref(optimizer)
        self.waiting = waiting(self.window, self.gradients)
        self.pieces.clear()
        if self.measured:
            pieces = [piece for held in self.window.held for piece in held.pieces]
            for graph in self.graphs:  # of the window before: by now nothing should hold on to them
                self.trace.graphs_kept += graph() is not None
            self.graphs = [piece.tag for piece in pieces if piece.tag is not None]
            self.capture.look_for_copies(pieces)
        self.capture.fetches.close_window()
        self.window = Open()

    def _again(self) -> None:
        """Start a window over: its closure is evaluated again within one step."""
        if self.window.held:
            self.begun = self.window.held[0].index
        self.window, self.ready = Open(), None

    def finish(self) -> None:
        """Close the trace: what waits for a step that never came is lost."""
        self.trace.fetch = self.trace.catch_up = None
        self.fetched = lambda *_: None  # an iterator may outlive the watch
        self.trace.graphs_retained += self.retained
        self.gradients.close()
        for reason in self.gradients.reasons:
            self.capture.reason(reason)
        self.meter.tell(self.trace)
        if self.window.held:
            self._lose(self.window.held)
        if self.measured:
            self.updates[:] = tell_hand_clipping(self.updates)
        self.capture.count_epochs()
        self.capture.fetches.queue.clear()

    # small things
    def note(self, kind: str, location: str | None, value: float | None = None, scheduler: int | None = None) -> None:
        self.trace.schedulers |= {scheduler} - {None}
        self._event(kind, location, value)

    def failed(self, error: Exception) -> None:
        self.capture.reason(f"watching met {type(error).__name__}: {error}")

    def _event(self, kind: str, location: str | None, value: float | None = None) -> None:
        index = self.begun if kind == "batch" or kind == "forward" else self.begun - 1
        self.events.append(new(Event, (kind, index, location, value)))
