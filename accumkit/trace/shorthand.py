"""Usual windows, noted in short while the loop runs, where no shares are measured."""

from __future__ import annotations

import threading
import weakref
from itertools import repeat
from threading import get_ident
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from accumkit.trace.pending import Held
from accumkit.trace.piece import Call
from accumkit.trace.record import Event, MicroBatch, Update, new
from accumkit.trace.recorder import Recorder

NOTHING, FETCHED, FORWARD, BACKWARD, STEP = range(5)  # what began last
PAIRS = (tuple, list)
NONE = repeat(None)
USUAL = Update(0, 0, ())[3:-2]  # what an update has that is seldom anything else


class Shorthand:
    """Stands before a recorder that looks at events only, so that watching costs little.

    A usual micro-batch is a pair that is fetched, whose first part goes forward, and whose backward adds to gradients
    that nobody touched since the last one; a usual window is one of them after the other, and a step by the optimizer
    that made the last update. These are noted in short. Of whatever else happens the recorder hears, and before it of
    all that was noted.
    """

    measured = False

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.model, self.gradients = recorder, recorder.model, recorder.gradients
        self.stage = NOTHING
        self.usual = False  # the recorder waits for nothing that would make the next micro-batch another one
        self.number = -1  # of the pass over the data that the window's batches come from
        self.batch, self.fetch_line, self.forward_line, self.step_line = None, None, None, None  # of what is at hand
        self.optimizer: Optimizer | None = None  # whose step runs
        self.most = recorder.capture.fetches.most  # batches kept where no step comes
        self.batches: list[Any] = []  # of the window's finished micro-batches
        self.notes: list[tuple] = []  # the numbers about them
        self.past: list[tuple] = []  # updates and events since, not yet told
        recorder.trace.catch_up = self._catch_up

    def __getattr__(self, name: str) -> Any:
        """Give what the recorder answers to, once it has heard what was noted."""
        if name.startswith("_") or "past" not in vars(self):  # asked by copy or pickle, before there is anything
            raise AttributeError(name)
        self.settle()
        return getattr(self.recorder, name)

    def failed(self, error: Exception) -> None:
        """Have it said that watching itself went wrong."""
        self.recorder.failed(error)

    def fetched(self, number: int, batch: Any, location: str | None) -> None:
        """Hear of a batch."""
        if self.stage == NOTHING and type(batch) in PAIRS and batch and (number == self.number or not self.notes):
            self.stage, self.number, self.fetch_line = FETCHED, number, location
            self.batch = batch if type(batch) is tuple else tuple(batch)  # the loop may take a list apart
        else:
            self.settle()
            self.recorder.fetched(number, batch, location)

    def forward_begins(self, args: tuple, kwargs: dict, location: str | None) -> None:
        """Hear of a forward call."""
        if (
            self.stage == FETCHED
            and len(args) == 1
            and args[0] is self.batch[0]
            and type(args[0]) is Tensor
            and args[0].dim()
            and torch.is_grad_enabled()
            and self.model.training
            and (self.usual or self._is_usual())
        ):
            self.stage, self.forward_line = FORWARD, location
            self.recorder.thread = get_ident()
        else:
            self.settle()
            self.recorder.forward_begins(args, kwargs, location)

    def forward_ends(self, output: Any) -> None:
        """Hear what a forward call gave, unless it is noted in short."""
        if self.stage != FORWARD:
            self.recorder.forward_ends(output)

    def _is_usual(self) -> bool:
        recorder, scaling = self.recorder, self.recorder.scaling
        waits = recorder.pieces or recorder.retained or recorder.ready or scaling.waiting or scaling.stepping
        self.usual = not waits and recorder.window.is_new
        return self.usual

    def backward_begins(self, roots: Any, retain: bool | None) -> None:
        """Hear of a backward, and look whether the gradients are as the last one left them."""
        if get_ident() != self.recorder.thread:
            return
        if self.stage == FORWARD and not retain:
            if not self.gradients.all_touched() if self.notes else self.gradients.starts_empty():
                self.stage = BACKWARD
                return
        self.settle()
        self.recorder.backward_begins(roots, retain)

    def backward_ends(self, location: str | None) -> None:
        """Hear that it has ended; with it the micro-batch is complete."""
        if get_ident() != self.recorder.thread:
            return
        if self.stage != BACKWARD:
            self.settle()
            self.recorder.backward_ends(location)
        elif self.gradients.added():
            self.stage, batch = NOTHING, self.batch
            self.batches.append(batch)
            self.notes.append((batch[0].size(0), self.fetch_line, self.forward_line, location))
            if len(self.batches) > self.most:
                self.settle()
        else:  # it did not reach this model
            self.stage = FORWARD

    def step_begins(self, optimizer: Optimizer, location: str | None) -> None:
        """Hear of a step."""
        usual = self.notes and self.stage == NOTHING and (self._made_the_last(optimizer) or self._is_first(optimizer))
        if usual and getattr(optimizer, "found_inf", None) is None and not self.gradients.all_touched():
            self.stage, self.optimizer, self.step_line = STEP, optimizer, location
        else:
            self.settle()
            self.recorder.step_begins(optimizer, location)

    def step_ends(self, optimizer: Optimizer) -> None:
        """Hear that a step has ended: the window is an update."""
        if self.optimizer is not optimizer:
            self.settle()
            self.recorder.step_ends(optimizer)
            return
        recorder, self.optimizer = self.recorder, None
        if recorder.stepped is None:
            recorder.stepped = weakref.ref(optimizer)
        recorder.meter.look()
        recorder.capture.fetches.queue.clear()  # passed over
        recorder.waiting = set()
        self.past.append((self.number, self.notes, self.step_line))
        self.notes, self.batch, self.stage = [], None, NOTHING
        self.batches.clear()

    def zero_grad(self, owner: Any, location: str | None) -> None:
        """Hear of a zero_grad, nearly always after a step."""
        if not self.notes and self.stage == NOTHING and self._made_the_last(owner):
            self.past.append(("zero_grad", None, location))
        else:
            self.settle()
            self.recorder.zero_grad(owner, location)

    def note(self, kind: str, location: str | None, value: float | None = None, scheduler: int | None = None) -> None:
        """Hear of what needs no thought."""
        if not self.notes and self.stage == NOTHING:
            self.recorder.trace.schedulers |= {scheduler} - {None}
            self.past.append((kind, value, location))
        else:
            self.settle()
            self.recorder.note(kind, location, value, scheduler)

    def _is_first(self, optimizer: Optimizer) -> bool:
        return self.recorder.stepped is None and self.gradients.held_by(optimizer)

    def _made_the_last(self, owner: Any) -> bool:
        stepped = self.recorder.stepped
        return stepped is not None and stepped() is owner

    def _catch_up(self) -> None:
        own = self.recorder.thread
        if own == get_ident() or all(own != thread.ident for thread in threading.enumerate()):
            self.settle()  # elsewhere the loop may be in the middle of a note

    def settle(self) -> None:
        """Tell all that was noted."""
        past, self.past, self.usual = self.past, [], False
        recorder = self.recorder
        for what, inside, location in past:
            if type(what) is int:
                self._update(what, inside, location)
            else:
                recorder.events.append(new(Event, (what, recorder.begun - 1, location, inside)))
        if self.notes or self.stage:
            self._open()

    def _update(self, number: int, notes: list[tuple], location: str | None) -> None:
        recorder = self.recorder
        events, epoch = recorder.events, recorder.capture.epoch_at(number)
        indices = range(recorder.begun, recorder.begun + len(notes))
        examples, *lines = zip(*notes, strict=True)
        told = [None] * (3 * len(notes))  # filled kind by kind: fewer calls than micro-batch by micro-batch
        for place, kind in enumerate(("batch", "forward", "backward")):
            told[place::3] = map(new, repeat(Event), zip(repeat(kind), indices, lines[place], NONE))
        events += told
        kept = zip(
            indices, repeat(epoch), examples, NONE, NONE, NONE, repeat("kept"), lines[2], NONE, NONE, NONE, NONE,
            repeat(1),
        )  # fmt: skip
        recorder.updates.append(self._usual_update(epoch, tuple(map(new, repeat(MicroBatch), kept)), location))
        recorder.begun = indices.stop
        fetches = recorder.capture.fetches
        fetches.sizes[number][0] += len(notes)
        fetches.ahead = bool(fetches.ahead)  # each was trained on as it came
        events.append(new(Event, ("step", recorder.begun - 1, location, None)))

    def _usual_update(self, epoch: int, records: tuple[MicroBatch, ...], location: str | None) -> Update:
        return new(Update, (len(self.recorder.updates), epoch, records, *USUAL, location, None))

    def _open(self) -> None:
        """Tell the recorder of a window that has not ended."""
        recorder, stage, batch = self.recorder, self.stage, self.batch
        noted = list(zip(self.notes, self.batches, strict=True))
        optimizer, self.optimizer = self.optimizer, None
        self.notes, self.batches, self.batch, self.stage = [], [], None, NOTHING
        for (examples, fetch_line, forward_line, line), fetched in noted:
            recorder.fetched(self.number, fetched, fetch_line)
            call = self._forward(examples, forward_line)
            recorder.window.held.append(Held(recorder.begun, recorder.capture.epoch_at(self.number), line, [call]))
            recorder.begun += 1
            recorder.note("backward", line)
        if stage in (FETCHED, FORWARD, BACKWARD):
            recorder.fetched(self.number, batch, self.fetch_line)
        if stage in (FORWARD, BACKWARD):
            recorder.pieces.append(self._forward(batch[0].size(0), self.forward_line))
        if stage == BACKWARD:
            recorder.reaches, recorder.retains = None, False
        if stage == STEP:  # as its gradients were when it began; by now they may be cleared
            recorder.meter.look()
            records = tuple(held.record(None, None) for held in recorder.window.held)
            recorder.ready = optimizer, self._usual_update(recorder.capture.epoch, records, self.step_line)

    def _forward(self, examples: int, location: str | None) -> Call:
        self.recorder.note("forward", location)
        fetches = self.recorder.capture.fetches
        fetches.use(fetches.queue[-1])
        return Call(examples, True, self.number)
