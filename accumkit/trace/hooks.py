"""What torch lets one see: its functions, replaced while at least one watch is open, and put back afterwards.

Torch has hooks for an optimizer's step and none for the rest, so the rest is patched on modules and classes (never
on the reader's objects, so that copies and saved files hold nothing of it). The patches are global, as torch's
functions are: they are laid once, tell every open watch, and go with the last one, in whatever order watches close.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad
from torch.optim import Optimizer, lr_scheduler, swa_utils
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, dataloader

import accumkit.window
from accumkit.trace import feeds, patches, scalers, steps
from accumkit.trace.listeners import Listener, add, listeners, remove, reset

_undo: list[Callable[[], None]] = []
_made: dict[Callable, Callable] = {}  # what stands in for torch's own functions, made once and not for every watch
_calls: dict[type, Callable[[], None]] = {}  # by the class of a watched model: what puts its __call__ back


def listen(listener: Listener) -> None:
    """Open the hooks for a listener."""
    if not listeners:
        _lay()
    add(listener)
    kind = type(listener.model)
    if kind not in _calls:
        _calls[kind] = _patch(kind, "__call__", patches.model_call)


def dismiss(listener: Listener) -> None:
    """Close them again; with the last listener torch is as it was."""
    remove(listener)
    kind = type(listener.model)
    if not any(type(other.model) is kind for other in listeners):
        _calls.pop(kind)()
    if not listeners:
        while _undo:
            _undo.pop()()
        steps.forget()
        reset()


def _patch(
    owner: Any, name: str, make: Callable[[Callable], Callable], made: dict[Callable, Callable] | None = None
) -> Callable[[], None]:
    """Replace an attribute by ``make(original)``; return what puts it back, unless someone else replaced it since.

    ``made``: what was made before, by the original; what is not in it is put there.
    """
    own = vars(owner).get(name)
    original = getattr(owner, name)
    ours = made.get(original) if made else None
    if ours is None:
        ours = functools.wraps(original)(make(original))
        if made is not None:
            made[original] = ours
    setattr(owner, name, ours)

    def restore() -> None:
        if vars(owner).get(name) is ours:
            delattr(owner, name) if own is None else setattr(owner, name, own)

    return restore


def _places() -> list[tuple[Any, str, Callable[[Callable], Callable]]]:
    # private, but the one place that loss.backward(), autograd.backward(), scalers and frameworks all pass;
    # where a torch release lacks it, autograd.backward sees all but calls imported by name before the watch
    engine = "_engine_run_backward" if hasattr(torch.autograd, "_engine_run_backward") else "backward"
    places = [
        (torch.autograd, engine, patches.backward),
        (Optimizer, "zero_grad", patches.zero_grad),
        (nn.Module, "zero_grad", patches.zero_grad),
        (GradScaler, "unscale_", scalers.unscale),
        (GradScaler, "step", scalers.step),
        (GradScaler, "scale", scalers.scale),
        (GradScaler, "update", scalers.update),
        (GradScaler, "__init__", scalers.made),
        # clip_grad_value_ asks this private helper first, by whatever name it was imported
        (clip_grad, "_group_tensors_by_device_and_dtype", patches.group_for_clip),
        (swa_utils.AveragedModel, "update_parameters", patches.noting("ema update")),
        (torch, "save", patches.noting("state saved")),
        (DataLoader, "__iter__", feeds.loader_iter),
        (dataloader._BaseDataLoaderIter, "__next__", feeds.loader_next),
        (accumkit.window, "fetch", feeds.fetch),
    ]
    if hasattr(clip_grad, "_clip_grads_with_norm_"):  # private; clip_grad_norm_ calls it, also when imported by name
        places.append((clip_grad, "_clip_grads_with_norm_", patches.clip_with_norm))
    else:  # torch before 2.6
        places += [(module, "clip_grad_norm_", patches.clip_norm) for module in (clip_grad, nn.utils)]
    kinds = _subclasses(lr_scheduler.LRScheduler)
    return places + [(kind, "step", patches.scheduler_step) for kind in kinds if "step" in vars(kind)]


def _lay() -> None:
    _undo.extend(_patch(*place, _made) for place in _places())
    before = register_optimizer_step_pre_hook(steps.before_step)
    after = register_optimizer_step_post_hook(steps.after_step)
    _undo.extend([before.remove, after.remove])


def _subclasses(kind: type) -> list[type]:
    return [kind, *(below for child in kind.__subclasses__() for below in _subclasses(child))]
