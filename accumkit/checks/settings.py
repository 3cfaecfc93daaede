"""What can be set for the whole process, by torch's and by Python's own functions, and how to set it as it was."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

HOOKS = ("stdin", "excepthook", "unraisablehook", "displayhook", "breakpointhook")  # of sys


def settings() -> list[Callable[[], None]]:
    """Return what sets everything as it is now, to be called later, one after the other.

    Of torch: the default dtype, threads, gradient mode, anomaly detection, determinism, precision of float32, cuDNN,
    oneDNN, warnings, how tensors are printed, and how ``Module.to`` replaces parameters. Of Python: recursion limit,
    garbage collection, switch interval, ``sys.path``, the current folder, environment variables, standard input, the
    hooks of ``sys``, tracing of threads, and the level at which logging is off.

    Examples
    --------
    >>> import sys
    >>> from accumkit.checks.settings import settings
    >>> before, limit = settings(), sys.getrecursionlimit()
    >>> sys.setrecursionlimit(limit + 1)
    >>> for put_back in before:
    ...     put_back()
    >>> sys.getrecursionlimit() == limit
    True
    """
    return [*_of_python(), *_of_torch()]


def _of_python() -> list[Callable[[], None]]:
    return [
        _setting(sys.setrecursionlimit, sys.getrecursionlimit),  # first: all else needs some room
        _setting(sys.setswitchinterval, sys.getswitchinterval),
        _setting(lambda on: gc.enable() if on else gc.disable(), gc.isenabled),
        _setting(_go_to, _current_folder),
        _setting(threading.settrace, threading.gettrace),
        _setting(threading.setprofile, threading.getprofile),
        _setting(logging.disable, lambda: logging.root.manager.disable),
        *(_attribute(sys, name) for name in HOOKS),
        _attribute(threading, "excepthook"),
        _attribute(sys, "path"),
        _list(sys.path),
        _attribute(os, "environ"),
        _dict(os.environ),
    ]


def _of_torch() -> list[Callable[[], None]]:
    cudnn, future = torch.backends.cudnn, torch.__future__
    return [
        _setting(torch.set_default_dtype, torch.get_default_dtype),
        _setting(torch.set_num_threads, torch.get_num_threads),
        _setting(torch.set_grad_enabled, torch.is_grad_enabled),
        _setting(
            lambda both: torch.autograd.set_detect_anomaly(*both),
            lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        ),
        _setting(torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode),
        _setting(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision),
        _setting(torch.set_warn_always, torch.is_warn_always_enabled),
        _setting(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled),
        _setting(future.set_swap_module_params_on_conversion, future.get_swap_module_params_on_conversion),
        _setting(future.set_overwrite_module_params_on_conversion, future.get_overwrite_module_params_on_conversion),
        _attribute(cudnn, "benchmark"),
        _attribute(cudnn, "deterministic"),
        _dict(vars(torch._tensor_str.PRINT_OPTS)),
    ]


def _setting(put: Callable[[Any], Any], get: Callable[[], Any]) -> Callable[[], None]:
    before = get()
    return lambda: None if get() == before else put(before)


def _attribute(place: Any, name: str) -> Callable[[], None]:
    before = getattr(place, name)
    return lambda: None if getattr(place, name, None) is before else setattr(place, name, before)


def _list(held: list) -> Callable[[], None]:
    before = list(held)

    def put_back() -> None:
        if held != before:
            held[:] = before

    return put_back


def _dict(held: Any) -> Callable[[], None]:
    """For a dict, and for what is like one and acts on every change, such as ``os.environ``."""
    before = dict(held)

    def put_back() -> None:
        for name in [name for name in held if name not in before]:
            del held[name]
        for name, value in before.items():
            if name not in held or held[name] != value:
                held[name] = value

    return put_back


def _go_to(folder: str | None) -> None:
    if folder is not None:
        with contextlib.suppress(OSError):  # it is gone by now
            os.chdir(folder)


def _current_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it is gone: there is no way back
        return None
