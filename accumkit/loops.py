"""The right loop: every example weighs the same in every update."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from math import isfinite
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from accumkit.arguments import (
    check_accumulate_dtype,
    check_accumulation_steps,
    check_buffered,
    check_device,
    check_max_grad_norm,
    check_model,
    check_objective,
    check_optimizer,
    check_precision,
    check_scheduler,
    check_tail,
    parameters_in,
)
from accumkit.epoch_log import EpochLog, UpdateLog
from accumkit.errors import AccumkitError, several
from accumkit.finite import Finite, clip, gradient_not_finite, read
from accumkit.objective import Objective
from accumkit.safety import Undo, added_within, bad_loss, explain, not_finite, nothing_counts
from accumkit.stream import divide, provisional_divisor, stream
from accumkit.sums import Sums
from accumkit.window import gather


def train_epoch(
    model: nn.Module,
    loader: Iterable,
    optimizer: torch.optim.Optimizer,
    objective: Objective,
    *,
    accumulation_steps: int,
    device: torch.device | str | int | None = None,
    scheduler_per_update: Any = None,
    scaler: torch.amp.GradScaler | None = None,
    autocast_dtype: torch.dtype | None = None,
    accumulate_dtype: torch.dtype | None = None,
    max_grad_norm: float | None = None,
    tail: str = "step",
    buffered: bool = True,
) -> EpochLog:
    """Train for one pass over the data, one update for each window of micro-batches.

    Each update's gradient is that of (sum of losses in the window) / (count of the window), as if the window were one
    batch: also for micro-batches of unequal size, tokens, class weights, micro-batches without a valid target, and the
    tail. (Layers that mix the examples of a micro-batch, such as BatchNorm, still see one micro-batch at a time.)

    Parameters
    ----------
    model : nn.Module
        In training mode.
    loader : iterable
        Gives batches; needs no length and is gone through once.
    optimizer : torch.optim.Optimizer
        Makes one step an update. Gradients found before the epoch are set aside, those of frozen parameters too; none
        are left after it. Between two updates parameters may be frozen, unfrozen, or added to it.
    objective : Objective
        What to minimise, and how units are counted.
    accumulation_steps : int
        Micro-batches in a full window, 1 or more.
    device : torch.device, str or int, optional
        Where batches go, one at a time; by default where the model's parameters are.
    scheduler_per_update : scheduler, optional
        Stepped once an update, and not when a scaler skipped it. One that counts epochs is the caller's to step.
    scaler : torch.amp.GradScaler, optional
        Its scale holds for a whole window. A gradient that is not finite is then a skipped update, not an error.
    autocast_dtype : torch.dtype, optional
        Forward and objective run under autocast with this type: ``torch.bfloat16`` or ``torch.float16``.
    accumulate_dtype : torch.dtype, optional
        For a model kept in bfloat16 or float16: gradients are added up in this type, ``torch.float32``, beside
        ``.grad``, divided and clipped there, and rounded once before the step. Costs four bytes a parameter. (Under
        autocast parameters and gradients are float32 already.)
    max_grad_norm : float, optional
        Largest norm of an update's gradient; clipped once an update, after unscaling.
    tail : {"step", "drop"}
        Whether the last, shorter window makes an update.
    buffered : bool
        True holds one window of batches, so that its count is known before the first backward. False holds none, for
        streams and huge inputs: the summed loss is accumulated and the gradients are divided once, before clipping.

    Returns
    -------
    EpochLog
        Updates, micro-batches, examples and units, counted apart, and the true mean loss.

    Raises
    ------
    AccumkitError
        For arguments or batches that cannot work, and for a loss or a gradient that is not finite (with a scaler,
        such a gradient is a skipped update). Whatever stops a window (an interrupt too) leaves parameters, buffers,
        gradients and optimizer as they were before it; updates made earlier are kept.

    Notes
    -----
    Not put back when a window is stopped: what forward itself writes into parameters (a clamp under ``no_grad``), its
    plain Python attributes, buffers of modules outside ``model`` (such as a loss's own), and random generators.

    Examples
    --------
    >>> import accumkit as ak, torch
    >>> data = torch.randn(19, 2), torch.zeros(19, dtype=torch.long)
    >>> model = torch.nn.Linear(2, 3)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> loader = list(zip(*(part.split(4) for part in data)))
    >>> log = ak.train_epoch(model, loader, optimizer, ak.classification(), accumulation_steps=3)
    >>> [update.examples for update in log.updates]
    [12, 7]
    """
    steps = check_accumulation_steps(accumulation_steps)
    check_tail(tail)
    check_buffered(buffered)
    check_objective(objective)
    check_model(model)
    held = check_optimizer(model, optimizer)
    place = check_device(model, device)
    check_scheduler(scheduler_per_update, optimizer)
    max_norm = check_max_grad_norm(max_grad_norm)
    scaler = check_precision(autocast_dtype, scaler, held)
    check_accumulate_dtype(accumulate_dtype, held)
    total = _total(objective, autocast_dtype, place)
    scale = scaler.get_scale() if scaler else 1.0
    on_host = place.type == "cpu"  # there .item() waits for nothing; elsewhere losses are read once a window

    undo, listed = Undo(model), []
    updates: list[UpdateLog] = []
    dropped = (0, 0)
    divisor, gradient = None, None  # what the summed loss is divided by, and one over it
    doing, batch, losses, unscaled = "fetch", None, [], False
    try:
        torch.clear_autocast_cache()  # in an autocast around the epoch it holds copies of weights, and outlives a step
        for window in (gather if buffered else stream)(loader, steps, objective, place):
            if buffered and window.is_tail and tail == "drop":
                dropped = (len(window), window.examples)
                left = undo.restore()
                break
            if buffered and not window.count:
                raise nothing_counts(window, _at(updates))
            if buffered and window.count != divisor:
                divisor, gradient = window.count, None
            doing, losses = "train", []
            if not _same(now := parameters_in(optimizer), listed):  # at first, and where some were added
                listed, held = now, list(dict.fromkeys(now))
                undo.set_aside([*held, *model.parameters()])
                finite, sums = Finite(held), accumulate_dtype and Sums(held, accumulate_dtype)
            undo.remember()
            for batch in window:
                loss = total(model, batch)
                if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
                    raise bad_loss(loss, f"{_at(updates)}, micro-batch {len(losses) + 1}")
                if gradient is None or gradient.dtype is not loss.dtype:
                    if loss.is_complex():
                        raise bad_loss(loss, f"{_at(updates)}, micro-batch {len(losses) + 1}")
                    # backward(1 / W) is (loss / W).backward() without a division in each graph
                    divisor = divisor or provisional_divisor(window.counts[0], steps)
                    gradient = torch.ones((), dtype=loss.dtype, device=loss.device) / divisor
                (scaler.scale(loss) if scaler else loss).backward(gradient)
                if sums:
                    sums.take()
                losses.append(loss.item() if on_host else loss.detach())
                loss = batch = None  # so that the next micro-batch finds the device free of this one

            doing = "finish"
            if not _same(parameters_in(optimizer), listed):
                raise added_within(_at(updates))
            if not buffered:
                if window.is_tail and tail == "drop":
                    dropped = (len(window), window.examples)
                    left = undo.restore()
                    break
                if not window.count:
                    raise nothing_counts(window, _at(updates))
                sums.divide(window.count / divisor) if sums else divide(held, window.count / divisor)
            norm = term = None
            if objective.per_update is not None:
                term = _per_update(objective, model, scaler, _at(updates))
            if sums:
                sums.take()  # of the term
                if max_norm is not None and not scaler:
                    norm = sums.clip(max_norm).item()
                sums.put_back()
            if max_norm is not None and norm is None:
                if scaler:
                    unscaled = True
                    scaler.unscale_(optimizer)
                norm = clip(held, max_norm, _at(updates))
            # sums are clipped before they are rounded, and may be too large for the type of their parameter
            flag = finite.found() if (norm is None or sums) and not scaler else None
            if on_host:
                broken = flag is not None and flag.item()
            else:
                losses, broken = read(losses, flag)
            mean = sum(losses) / window.count
            if not (isfinite(mean) and isfinite(term or 0.0)):
                if scaler and not unscaled:
                    unscaled = True
                    scaler.unscale_(optimizer)
                if not (scaler and Finite(held).found()):  # a scaler skips an update by its gradient, not by its loss
                    raise not_finite(losses, window.counts, term, model, _at(updates))
            if not scaler and (broken or not isfinite(norm or 0.0)):
                raise gradient_not_finite(model, None if isfinite(norm or 0.0) else norm, _at(updates))

            doing, skipped = "step", False
            if scaler:
                unscaled = True
                scaler.step(optimizer)
                scaler.update()
                before, scale, unscaled = scale, scaler.get_scale(), False
                skipped = scale < before or scale == 0  # a scaler shrinks its scale when it skipped, and only then
            else:
                optimizer.step()
            torch.clear_autocast_cache()
            undo.settle()
            updates.append(UpdateLog(len(window), window.examples, window.count, mean, term, norm, skipped))
            doing = "schedule"
            if scheduler_per_update is not None and not skipped:
                scheduler_per_update.step()
            doing = "fetch"
    except BaseException as error:
        left = undo.settle() if doing in ("step", "schedule") else undo.restore()
        if unscaled:
            scaler.update(scale)  # the same scale: only forgets that this window's gradients were unscaled
        number = len(updates) + (doing != "schedule")
        problem = explain(error, doing, number, len(losses) + 1, batch)
        if left:
            problem.add_note(f"Not put back: {'; '.join(left)}.")
        if problem is error:
            raise
        raise problem from (error.__cause__ if isinstance(error, AccumkitError) else error)
    if dropped[0] and left:
        warnings.warn(f"the tail was dropped, but not put back: {'; '.join(left)}", UserWarning, stacklevel=2)
    if not updates:
        warnings.warn(
            f"no update was made: the data ended after {several(dropped[0], 'micro-batch')}, a window needs {steps}, "
            'and tail="drop" leaves the rest out; give tail="step" or fewer accumulation_steps',
            UserWarning,
            stacklevel=2,
        )
    return EpochLog(tuple(updates), objective.unit, *dropped)


def _total(objective: Objective, dtype: torch.dtype | None, place: torch.device) -> Callable[[nn.Module, Any], Tensor]:
    if dtype is None:  # an autocast that is off would cost as much as all the bookkeeping
        return objective.total

    def total(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast(place.type, dtype=dtype):
            return objective.total(model, batch)

    return total


def _same(now: list, before: list) -> bool:
    return len(now) == len(before) and all(map(is_, now, before))


def _at(updates: list[UpdateLog]) -> str:
    return f"update {len(updates) + 1}"


def _per_update(objective: Objective, model: nn.Module, scaler: Any, where: str) -> float:
    term = objective.per_update(model)
    if not isinstance(term, Tensor) or term.dim() or not term.requires_grad or term.is_complex():
        raise bad_loss(term, f"{where}, per_update")
    (scaler.scale(term) if scaler else term).backward()
    return term.item()
