"""From what the hooks tell to records: which backward belongs to which micro-batch, window and update."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from accumkit.objective import Objective
from accumkit.trace.capture import SHOW_BATCHES, Capture
from accumkit.trace.clipping import tell_hand_clipping
from accumkit.trace.gradients import Columns
from accumkit.trace.hooks import in_closure, muted, step_failed, told
from accumkit.trace.measure import Gauge, Held, Measured, Open, measure, unmeasured, why_not
from accumkit.trace.record import Event, Trace, Update
from accumkit.trace.replay import COUPLING, Piece, Twin, undisturbed
from accumkit.trace.shares import factor_of

FLOOR_EVERY = 16  # windows between two measurements of rounding in float64, after the first two


class Recorder:
    """Listens to the hooks for one model and fills a trace."""

    def __init__(self, model: nn.Module, objective: Objective | None, trace: Trace) -> None:
        self.model, self.objective, self.trace = model, objective, trace
        self.capture = Capture(model, objective, trace)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.ids = {id(p) for p in self.parameters}
        self.active = self.parameters  # those that an optimizer is known to hold
        self.columns = Columns(self.parameters) if objective is not None else None
        self.kept: Tensor | None = None  # columns of the active parameters; None for all
        self.coupling = [(name, m) for name, m in model.named_modules() if isinstance(m, COUPLING)]
        self.twins: tuple[Twin, Twin | None] | None = None
        self.owners: weakref.WeakKeyDictionary[Any, set[int]] = weakref.WeakKeyDictionary()
        self.begun = 0  # micro-batches so far
        self.window = Open()
        self.pieces: list[Piece] = []  # forward calls since the last backward
        self.ready: tuple[Optimizer, Update] | None = None  # a step that has begun
        self.stepped: weakref.ref[Optimizer] | None = None  # the optimizer of the last update
        self.seen: list[tuple[weakref.ref | None, int]] = []  # each .grad and its version at the last look
        self.before: Tensor | None = None  # .grad before the backward that runs, None for nothing in it
        self.fresh = True  # it held nothing
        self._remember()

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
            self.window.versions = self._versions()

    def forward_ends(self) -> None:
        if self.objective is not None and self.pieces and torch.is_grad_enabled():
            self.capture.finish(self.pieces[-1])

    # backward
    def backward_begins(self) -> None:
        grads = [p.grad for p in self.active]
        window, row = self.window, None
        empty = all(grad is None for grad in grads)
        if self.columns is not None and not empty:
            row = self.columns.row([p.grad for p in self.parameters])
        if not window.held:
            self.fresh = empty or self._is_zero(row, grads)
        elif self._cleared(row, grads):
            window.multiply(0.0)
            self.fresh = True
        else:
            self.fresh = False
            if row is not None and not torch.equal(row, window.accumulated):
                window.multiply(factor_of(self._cut(window.accumulated), self._cut(row))[0])
        self.before = row
        self._remember()

    def backward_ends(self, location: str | None) -> None:
        if not self._touched():
            return  # a backward that did not reach this model
        window = self.window
        increment = after = None
        if self.columns is not None:
            after = self.columns.row([p.grad for p in self.parameters])
            increment = after if self.before is None else after - self.before
        pieces, self.pieces = self.pieces, []
        if not window.held and not self.fresh:
            window.carried = torch.ones(1) if self.before is None else self.before
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
        self._remember()
        self._event("backward", location)

    # what happens to .grad
    def zero_grad(self, owner: Any, location: str | None) -> None:
        if self._holds(owner):
            self._event("zero_grad", location)

    def scaled(self, optimizer: Optimizer, factor: float, location: str | None) -> None:
        if self._holds(optimizer):
            self.window.unscaled.append(factor)
            self._event("unscale", location, 1 / factor)

    def clipped(self, tensors: list, factor: float | None, max_norm: float | None, location: str | None) -> None:
        own = self.ids | {id(p.grad) for p in self.active}
        if any(id(tensor) in own for tensor in tensors):
            if factor is not None:
                self.window.clipped.append(factor)
            self.window.max_norm = max_norm
            self._event("clip", location, factor)

    # the step
    def step_begins(self, optimizer: Optimizer, location: str | None) -> None:
        if not self._holds(optimizer):
            return
        if not self.window.held and self.stepped is not None and self.stepped() is not optimizer:
            self._event("step", location)  # a second optimizer of the same model, at the same boundary
            return
        found_inf = getattr(optimizer, "found_inf", None)  # fused optimizers are told by the scaler and skip inside
        skipped = found_inf is not None and bool(found_inf.item())
        self.ready = (optimizer, self._close(optimizer, location, skipped))

    def step_ends(self, optimizer: Optimizer) -> None:
        if self.ready is not None and self.ready[0] is optimizer:
            update, self.ready = self.ready[1], None
            self._commit(update, optimizer)

    def step_skipped(self, optimizer: Optimizer, location: str | None) -> None:
        if self._holds(optimizer):
            self._commit(self._close(optimizer, location, skipped=True), optimizer)

    def _close(self, optimizer: Optimizer, location: str | None, skipped: bool) -> Update:
        window, grads = self.window, [p.grad for p in self.active]
        row = None
        if self.columns is not None:
            row = self.columns.row([p.grad for p in self.parameters])
            scale = getattr(optimizer, "grad_scale", None)
            row = row if scale is None else row / scale.to(row.device)
        if window.held and self._cleared(row, grads):
            window.multiply(0.0)
        self._part_lost()
        found = self._measure(optimizer, row, skipped)
        return Update(
            index=len(self.trace.updates),
            epoch=window.held[-1].epoch if window.held else max(self.capture.epoch, 0),
            micro_batches=tuple(
                held.record(share, found.count) for held, share in zip(window.held, found.shares, strict=True)
            ),
            count=found.count,
            gradient_ratio=found.gradient_ratio,
            cosine=found.cosine,
            relative_error=found.relative_error,
            unexplained=found.unexplained,
            auxiliary=found.auxiliary,
            carried=self._carried(row),
            grad_norm=found.grad_norm,
            clip_factor=found.clip_factor,
            expected_clip_factor=found.expected_clip_factor,
            skipped=skipped,
            floor=found.floor,
            location=location,
            why=found.why,
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
        count = sum(h.count for h in lost) if self.objective is not None else None
        self.trace.lost += [h.record(None, count, lost=True) for h in lost]

    def _measure(self, optimizer: Optimizer, row: Tensor | None, skipped: bool) -> Measured:
        window = self.window
        coupled = [name for name, m in self.coupling if m.training or m.running_mean is None]
        self.trace.coupled += [name for name in coupled if name not in self.trace.coupled]
        if self.objective is None or not window.held:
            why = None if self.objective is None else "a step without a backward since the one before"
            return unmeasured(window, None if self.objective is None else 0, why)
        count = sum(h.count for h in window.held if not h.leaked)
        if skipped:
            return unmeasured(window, count, "the scaler skipped this step: a gradient was not finite")
        why = why_not(window, self._versions())
        if why is not None:
            self.capture.copying |= "memory" in why
            return unmeasured(window, count, why)
        full = torch.stack([p.grad.norm() for p in self.active if p.grad is not None] or [torch.zeros(())]).norm()
        try:
            with undisturbed(self.capture.device), muted():
                found = measure(window, row, full.item(), self._gauge(bool(coupled)))
        except Exception as error:  # the reader's model or objective, on a copy
            unseen = any(piece.number < 0 for held in window.held for piece in held.pieces)
            hint = f" ({SHOW_BATCHES})" if unseen else ""
            return unmeasured(window, count, f"running the window again raised {type(error).__name__}: {error}{hint}")
        if found.coupled and not coupled:
            self.trace.coupled = self.trace.coupled or ["examples"]
        return found

    def _gauge(self, coupled: bool) -> Gauge:
        number = len(self.trace.updates)
        if self.twins is None:
            self.twins = (Twin(self.model, self.objective), None)
        narrow = self.columns.dtype == torch.float32 and not any(p.drew for h in self.window.held for p in h.pieces)
        sample = narrow and (number < 2 or number % FLOOR_EVERY == 0)
        return Gauge(self.columns, self.twins[0], self._wide, self.kept, coupled, sample)

    def _wide(self) -> Twin:
        """Return the float64 copy, made when it is first needed."""
        if self.twins[1] is None:
            self.twins = (self.twins[0], Twin(self.model, self.objective, torch.float64))
        self.twins[1].follow()
        return self.twins[1]

    def _carried(self, row: Tensor | None) -> float:
        window = self.window
        if not window.held:  # a step on what the step before it left
            return 1.0 if any(p.grad is not None for p in self.active) else 0.0
        if window.carried is None or window.carried_factor == 0.0:
            return 0.0
        if row is None:
            return 1.0
        norm = self._cut(window.accumulated).norm().item()
        return abs(window.carried_factor) * self._cut(window.carried).norm().item() / norm if norm else 0.0

    def _commit(self, update: Update, optimizer: Optimizer) -> None:
        self._event("skipped step" if update.skipped else "step", update.location)
        self.trace.updates.append(update)
        self.stepped = weakref.ref(optimizer)
        for micro_batch in update.micro_batches:
            self._count_epoch(micro_batch.epoch)
        self.capture.close([piece for held in self.window.held for piece in held.pieces])
        self.window = Open()
        self._remember()

    def _again(self) -> None:
        """Start a window over: its closure is evaluated again within one step."""
        if self.window.held:
            self.begun = self.window.held[0].index
        self.window, self.ready = Open(), None

    def finish(self) -> None:
        """Close the trace: what waits for a step that never came is lost."""
        self.trace.fetch = None
        if self.window.held:
            self._lose(self.window.held)
        for micro_batch in self.trace.lost:
            self._count_epoch(micro_batch.epoch)
        self.trace.updates[:] = tell_hand_clipping(self.trace.updates)
        sizes = {epoch: self.capture.fetches.sizes[number] for number, epoch in self.capture.epochs.items()}
        epochs = range(len(self.trace.epoch_sizes))
        self.trace.fetched_sizes = [sizes.get(epoch, (0, -1))[0] for epoch in epochs]
        self.trace.loader_sizes = [sizes.get(epoch, (0, -1))[1] for epoch in epochs]

    # small things
    def note(self, kind: str, location: str | None) -> None:
        self._event(kind, location)

    def failed(self, error: Exception) -> None:
        self.capture.reason(f"watching met {type(error).__name__}: {error}")

    def _event(self, kind: str, location: str | None, value: float | None = None) -> None:
        coming = kind in ("batch", "forward")
        self.trace.events.append(Event(kind, self.begun if coming else self.begun - 1, location, value))

    def _count_epoch(self, epoch: int) -> None:
        sizes = self.trace.epoch_sizes
        sizes.extend([0] * (epoch + 1 - len(sizes)))
        sizes[epoch] += 1

    def _holds(self, owner: Any) -> bool:
        """Say whether an optimizer or module holds parameters of this model; learn which ones are optimized."""
        held = self.owners.get(owner)
        if held is None:
            groups = owner.param_groups if isinstance(owner, Optimizer) else [{"params": owner.parameters()}]
            held = self.ids & {id(p) for group in groups for p in group["params"]}
            self.owners[owner] = held
            known = set().union(*(ids for other, ids in self.owners.items() if isinstance(other, Optimizer)))
            if known:
                self.active = [p for p in self.parameters if id(p) in known]
                self.kept = self.columns.covers(known) if self.columns is not None else None
        return bool(held)

    def _cut(self, row: Tensor) -> Tensor:
        return (row if self.kept is None else row[self.kept]).double()

    def _is_zero(self, row: Tensor | None, grads: list[Tensor | None]) -> bool:
        if row is not None:
            return not self._cut(row).any()
        return not any(grad is not None and grad.any() for grad in grads)

    def _cleared(self, row: Tensor | None, grads: list[Tensor | None]) -> bool:
        if all(grad is None for grad in grads):
            return True
        if row is not None:
            return self._is_zero(row, grads) and not self._is_zero(self.window.accumulated, [])
        return self._touched() and self._is_zero(None, grads)

    def _remember(self) -> None:
        self.seen = [(None, 0) if p.grad is None else (weakref.ref(p.grad), p.grad._version) for p in self.parameters]

    def _touched(self) -> bool:
        for p, (ref, version) in zip(self.parameters, self.seen, strict=True):
            grad = p.grad
            if grad is None:
                if ref is not None:
                    return True
            elif ref is None or ref() is not grad or grad._version != version:
                return True
        return False

    def _versions(self) -> list[int]:
        return [p._version for p in self.parameters]
