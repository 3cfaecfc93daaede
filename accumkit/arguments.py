"""What the loops need of their arguments, checked once before an epoch."""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import ReduceLROnPlateau

from accumkit.errors import AccumkitError, said, several

TAILS = ("step", "drop")


def check_accumulation_steps(given: Any) -> int:
    """Return ``given`` as an int of 1 or more, or say what is wrong with it."""
    truth = isinstance(given, bool) or getattr(given, "dtype", None) is torch.bool
    try:
        steps = 0 if truth else operator.index(given)
    except TypeError:
        steps = 0
    if steps < 1:
        raise AccumkitError(
            f"accumulation_steps={given!r}: micro-batches are counted, so this must be a whole number of 1 or more "
            "(an int; 1 means an update after every micro-batch)"
        )
    return steps


def check_tail(tail: Any) -> None:
    """Raise unless ``tail`` is a known word."""
    if not isinstance(tail, str) or tail not in TAILS:
        raise AccumkitError(
            f'tail={tail!r}: give "step" to make an update of the last, shorter window, or "drop" to leave it out'
        )


def check_buffered(given: Any) -> None:
    """Raise unless ``given`` is True or False: a word such as "no" would count as True."""
    if not isinstance(given, (bool, int)) or given not in (True, False):
        raise AccumkitError(
            f"buffered={given!r}: give True to hold one window of batches, or False to hold none and divide at the end"
        )


def check_objective(objective: Any) -> None:
    """Raise unless ``objective`` can sum a batch's losses and count it; a string, a list and a tuple have a count."""
    if not all(callable(getattr(objective, name, None)) for name in ("total", "count")):
        raise AccumkitError(
            f"the objective is {objective!r}; give an Objective, such as ak.classification() or "
            "ak.Objective(loss=..., count=...)"
        )


def check_place(device: Any) -> torch.device | None:
    """Return ``device`` as a torch.device, None for None, or say that there is no such device."""
    try:
        return None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise AccumkitError(
            f'device={device!r} is no device of torch ({said(error)}); give "cpu", "cuda", a torch.device, or leave it '
            "out"
        ) from error


def check_model(model: Any) -> None:
    """Raise unless the model can be trained; warn when it is in eval mode."""
    if not isinstance(model, nn.Module):
        raise AccumkitError(f"the model is {type(model).__name__!r}; give a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        frozen = sum(1 for _ in model.parameters())
        raise AccumkitError(
            f"the model has nothing to train: {several(frozen, 'parameter')}, none requires a gradient; call "
            "requires_grad_(True) on those to train"
        )
    lazy = [name for name, buffer in model.named_buffers() if is_lazy(buffer)]
    if lazy:
        raise AccumkitError(
            f"the model has layers that wait for their first batch ({', '.join(lazy[:3])} not made yet), so it cannot "
            "be put back when a window is stopped; call the model on one batch before making the optimizer"
        )
    if not model.training:
        warnings.warn(
            "the model is in eval mode, so dropout is off and BatchNorm uses its running statistics; call "
            "model.train() before training, or ignore this if it is meant",
            UserWarning,
            stacklevel=3,
        )


def parameters_in(optimizer: Any) -> list[nn.Parameter]:
    """Return every parameter in an optimizer's groups, in order: a step applies each ``.grad``, frozen or not."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def check_optimizer(model: nn.Module, optimizer: Any) -> list[nn.Parameter]:
    """Return the parameters that the optimizer holds, each once, or say why it cannot train this model."""
    if not hasattr(optimizer, "param_groups") or not hasattr(optimizer, "step"):
        raise AccumkitError(f"the optimizer is {type(optimizer).__name__!r}; give a torch.optim.Optimizer")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise AccumkitError(
            f"{type(optimizer).__name__} needs a closure that evaluates the whole window again, which train_epoch does "
            "not do; go through the window inside the closure yourself: "
            "for window in ak.windows(...): optimizer.step(closure)"
        )
    listed = dict.fromkeys(parameters_in(optimizer))
    if not any(p.requires_grad and p in listed for p in model.parameters()):
        raise AccumkitError(
            "the optimizer holds none of the model's trainable parameters, so no step would change the model; make it "
            "from model.parameters(), after the model was moved or replaced"
        )
    return list(listed)


def check_device(model: nn.Module, device: Any) -> torch.device:
    """Return where batches go: ``device``, which must hold a parameter, or the one that all parameters are on."""
    held = {parameter.device: None for parameter in model.parameters()}
    names = ", ".join(str(place) for place in held)
    if device is None:
        if len(held) > 1:
            raise AccumkitError(
                f"the model's parameters are on several devices ({names}); move it to one with model.to(device), or "
                "say with device= which one its inputs go to"
            )
        return next(iter(held))
    wanted = check_place(device)
    if wanted.type == "cpu":
        wanted = torch.device("cpu")  # there is one, whatever its number
    if not any(place.type == wanted.type and wanted.index in (None, place.index) for place in held):
        raise AccumkitError(
            f"device={str(wanted)!r}, but the model's parameters are on {names}; call model.to({str(wanted)!r}) before "
            "making the optimizer, or leave device= out"
        )
    return wanted


def check_scheduler(scheduler: Any, optimizer: Any) -> None:
    """Raise unless the scheduler may be stepped once an update."""
    if scheduler is None:
        return
    if isinstance(scheduler, type):
        raise AccumkitError(
            f"scheduler_per_update is the class {scheduler.__name__}, not a scheduler; make one: "
            f"{scheduler.__name__}(optimizer, ...)"
        )
    parts = [scheduler, *getattr(scheduler, "_schedulers", [])]  # those of a SequentialLR or ChainedScheduler
    if any(isinstance(part, ReduceLROnPlateau) for part in parts):
        raise AccumkitError(
            "ReduceLROnPlateau watches a validation figure, which an update does not have; leave "
            "scheduler_per_update out and call scheduler.step(validation_loss) yourself after each epoch"
        )
    if not callable(getattr(scheduler, "step", None)):
        raise AccumkitError(
            f"scheduler_per_update is {type(scheduler).__name__!r}, which has no step(); give a scheduler"
        )
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise AccumkitError(
            "scheduler_per_update belongs to another optimizer, so it would not change this one's learning rate; make "
            f"it from the optimizer given: {type(scheduler).__name__}(optimizer, ...)"
        )


def check_max_grad_norm(given: Any) -> float | None:
    """Return ``given`` as a float above 0, or None."""
    if given is None:
        return None
    number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not number or not given > 0:
        raise AccumkitError(
            f"max_grad_norm={given!r}: give a number above 0 (float('inf') measures the norm and clips nothing), or "
            "None to leave clipping out"
        )
    try:
        return float(given)
    except OverflowError as error:  # its digits may be too many to be printed
        raise AccumkitError(
            "max_grad_norm is a whole number that no float can hold; float('inf') measures the norm and clips nothing"
        ) from error


def check_precision(autocast_dtype: Any, scaler: Any, held: Iterable[nn.Parameter]) -> torch.amp.GradScaler | None:
    """Return the scaler, None for one that is off, or say why autocast or scaler cannot work."""
    if not any(autocast_dtype is known for known in (None, torch.float16, torch.bfloat16)):
        raise AccumkitError(
            f"autocast_dtype={autocast_dtype!r}: give torch.bfloat16 or torch.float16, or None for no autocast"
        )
    if scaler is not None and not all(hasattr(scaler, name) for name in ("scale", "unscale_", "step", "update")):
        raise AccumkitError(f"scaler is {type(scaler).__name__!r}; give a torch.amp.GradScaler")
    if scaler is not None and scaler.is_enabled() and any(p.requires_grad and p.dtype == torch.float16 for p in held):
        raise AccumkitError(
            "a scaler cannot unscale gradients of float16 parameters (torch refuses); keep the model in float32 and "
            "give autocast_dtype=torch.float16"
        )
    return scaler if scaler is not None and scaler.is_enabled() else None


def check_accumulate_dtype(given: Any, held: Iterable[nn.Parameter]) -> torch.dtype | None:
    """Return ``given``, or say why gradients of these parameters cannot be added up in it."""
    if given is None:
        return None
    if not isinstance(given, torch.dtype) or not given.is_floating_point:
        raise AccumkitError(
            f"accumulate_dtype={given!r}: give the type to add gradients up in, torch.float32 for a model kept in "
            "bfloat16 or float16, or None to add them up in .grad"
        )
    for p in held:
        if p.requires_grad and torch.promote_types(given, p.dtype) != given:
            raise AccumkitError(
                f"accumulate_dtype={given} cannot hold what a parameter of {p.dtype} can; sums need a type at least as "
                "wide as every parameter's, such as torch.float32 for bfloat16 and float16"
            )
    return given
