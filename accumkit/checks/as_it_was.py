"""Torch, Python and the notebook's process as they were, whatever a reader's function did to them."""

from __future__ import annotations

import builtins
import contextlib
import functools
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any

import torch
from torch.nn.modules import module as nn_module
from torch.nn.utils import clip_grad
from torch.optim import optimizer as optim_optimizer
from torch.utils.data import dataloader
from torch.utils.data._utils import collate, fetch

from accumkit.checks.settings import settings

# Where a reader may have replaced something, by mistake or to look into it; and every class that these offer.
MODULES = (
    torch, torch.nn, torch.nn.functional, torch.nn.init, torch.nn.utils, clip_grad, torch.autograd, torch.optim,
    torch.optim.lr_scheduler, torch.utils.data, dataloader, collate, fetch, torch.amp,
)  # fmt: skip
OFFERING = (torch.nn, torch.optim, torch.optim.lr_scheduler, torch.utils.data, torch.autograd, torch.amp)
OTHERS = (time, random)
HOOKS = [
    held
    for module in (nn_module, optim_optimizer)
    for name, held in vars(module).items()
    if name.startswith("_global_") and isinstance(held, dict)
] + [collate.default_collate_fn_map]
STEP_WRAPPERS = [
    part for part in torch.optim.Optimizer.profile_hook_step.__code__.co_consts if isinstance(part, CodeType)
]  # what torch puts around the step of an optimizer's class, once


@contextlib.contextmanager
def as_it_was() -> Iterator[None]:
    """Put back at the end what a function may have changed beyond its arguments.

    Of torch: functions and methods, in the modules and classes that training loops use, replaced, deleted or added;
    hooks for all modules and all optimizers; settings (see `settings`); random generators, also Python's and numpy's.
    Of Python: warning filters, ``builtins``, ``time``, ``sys.modules``, the functions of the kit, and the settings of
    the process such as the current folder and ``os.environ``.

    What it does not put back: other modules of torch and of others; private names that are new; what is changed inside
    an object, such as the notebook's own variables; files; threads and processes that were started, and what they do
    later; and what C code was told without a way to ask for it, such as ``torch.set_flush_denormal``.

    Examples
    --------
    >>> import torch
    >>> with as_it_was():
    ...     torch.nn.Linear.forward = None
    >>> torch.nn.Linear.forward.__name__
    'forward'
    """
    loaded = dict(sys.modules)
    kit = [module for name, module in loaded.items() if name.partition(".")[0] == "accumkit"]
    places = [(place, vars(place).copy()) for place in (*MODULES, *_classes(), *OTHERS, *kit)]
    built_in = vars(builtins), vars(builtins).copy()
    hooks = [dict(held) for held in HOOKS]
    set_before = settings()
    states = torch.get_rng_state(), random.getstate(), torch.set_rng_state, random.setstate
    numpy = sys.modules.get("numpy")
    numpys = numpy.random.get_state() if numpy else None
    try:
        with warnings.catch_warnings():
            yield
    finally:
        built_in[0].update(built_in[1])  # first, since everything here stands on them
        for place, before in places:
            _put_back(place, before)
        sys.modules.update(loaded)
        for held, before in zip(HOOKS, hooks, strict=True):
            held.clear()
            held.update(before)
        for put_back in set_before:
            put_back()
        states[2](states[0])
        states[3](states[1])
        if numpy:
            numpy.random.set_state(numpys)


@functools.cache
def _classes() -> dict[type, None]:
    """Return torch's classes, with those that they inherit from."""
    offered = [thing for module in OFFERING for thing in vars(module).values() if isinstance(thing, type)]
    lines = [torch.Tensor.__mro__, *(c.__mro__ for c in offered)]
    return dict.fromkeys(c for line in lines for c in line if c.__module__.startswith("torch"))


def _put_back(place: Any, before: dict[str, Any]) -> None:
    if _nothing_changed(vars(place), before):
        return
    now = vars(place).copy()
    for name, value in before.items():
        if now.get(name) is not value and not _by_torch(now.get(name), value):
            setattr(place, name, value)
    for name in now.keys() - before.keys():
        if _is_added(place, name, now[name]):
            delattr(place, name)


def _nothing_changed(now: Any, before: dict[str, Any]) -> bool:
    """Whether two dicts hold the same: Python asks first whether a value is the very same, which is quick."""
    try:
        return bool(now == before)
    except Exception:  # of a reader's own, or a tensor
        return False


def _is_added(place: Any, name: str, value: Any) -> bool:
    """Whether a new name is a reader's: torch itself imports modules late, and remembers things under private names."""
    if isinstance(place, type):  # a method that was inherited, and now is not
        inherited = [vars(parent)[name] for parent in place.__mro__[1:] if name in vars(parent)]
        if inherited:
            return not _by_torch(value, inherited[0])
    if not _name_of(place).startswith("torch") or isinstance(value, ModuleType) or name.startswith("_"):
        return False
    made_in = getattr(value, "__module__", None)
    return not (isinstance(made_in, str) and made_in.startswith("torch"))


def _name_of(place: Any) -> str:
    return place.__module__ if isinstance(place, type) else place.__name__


def _by_torch(value: Any, before: Callable) -> bool:
    """Whether torch itself put it there: it wraps the step of an optimizer's class, once."""
    return getattr(value, "__code__", None) in STEP_WRAPPERS and getattr(value, "__wrapped__", None) is before
