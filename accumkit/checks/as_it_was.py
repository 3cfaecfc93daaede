"""Torch, random generators and warnings as they were, whatever a reader's function did to them."""

from __future__ import annotations

import contextlib
import random
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.utils import clip_grad

# Where a reader may have replaced something, by mistake or to look into it; and every class that these offer.
MODULES = (
    torch, torch.nn, torch.nn.functional, torch.nn.init, torch.nn.utils, clip_grad, torch.autograd, torch.optim,
    torch.optim.lr_scheduler, torch.utils.data, torch.amp,
)  # fmt: skip
OFFERING = (torch.nn, torch.optim, torch.optim.lr_scheduler, torch.utils.data, torch.autograd, torch.amp)


@contextlib.contextmanager
def as_it_was() -> Iterator[None]:
    """Put back functions, methods, settings, warning filters and every random generator at the end.

    Examples
    --------
    >>> import torch
    >>> with as_it_was():
    ...     torch.nn.Linear.forward = None
    >>> torch.nn.Linear.forward.__name__
    'forward'
    """
    attributes = [(place, dict(vars(place))) for place in (*MODULES, *_classes())]
    settings = _settings()
    states = torch.get_rng_state(), random.getstate()
    numpy = sys.modules.get("numpy")
    numpys = numpy.random.get_state() if numpy else None
    try:
        with warnings.catch_warnings():
            yield
    finally:
        for place, before in attributes:
            _put_back(place, before)
        for setting, value in settings:
            setting(value)
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        if numpy:
            numpy.random.set_state(numpys)


def _classes() -> dict[type, None]:
    """Return torch's classes, with those that they inherit from."""
    offered = [thing for module in OFFERING for thing in vars(module).values() if isinstance(thing, type)]
    lines = [torch.Tensor.__mro__, *(c.__mro__ for c in offered)]
    return dict.fromkeys(c for line in lines for c in line if c.__module__.startswith("torch"))


def _settings() -> list[tuple[Any, Any]]:
    cudnn = torch.backends.cudnn
    return [
        (torch.set_default_dtype, torch.get_default_dtype()),
        (torch.set_num_threads, torch.get_num_threads()),
        (torch.autograd.set_detect_anomaly, torch.is_anomaly_enabled()),
        (torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode()),
        (lambda value: setattr(cudnn, "benchmark", value), cudnn.benchmark),
        (lambda value: setattr(cudnn, "deterministic", value), cudnn.deterministic),
    ]


def _put_back(place: Any, before: dict[str, Any]) -> None:
    now = dict(vars(place))
    for name, value in before.items():
        if now.get(name) is not value and not _by_torch(now.get(name)):
            setattr(place, name, value)
    if isinstance(place, type):  # a method that was inherited, and now is not
        for name in now.keys() - before.keys():
            if any(name in vars(parent) for parent in place.__mro__[1:]) and not _by_torch(now[name]):
                delattr(place, name)


def _by_torch(value: Any) -> bool:
    """Whether torch itself put it there: it wraps the step of an optimizer's class, once."""
    return vars(value).get("hooked", False) is True if hasattr(value, "__dict__") else False
