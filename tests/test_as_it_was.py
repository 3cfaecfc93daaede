"""What a learner's function changed in torch, in Python or in the process is put back, and what torch does stays."""

from __future__ import annotations

import builtins
import functools
import gc
import logging
import os
import sys
import threading
import time
from types import ModuleType

import pytest
import torch
from torch.nn.modules import module as nn_module
from torch.optim.optimizer import _global_optimizer_post_hooks, register_optimizer_step_post_hook
from torch.utils.data._utils import collate

import accumkit as ak
from accumkit.checks.as_it_was import as_it_was


def wrap_a_step():
    step = torch.optim.SGD.step

    @functools.wraps(step)  # copies torch's own mark on it, too
    def wrapped(self, *arguments, **named):
        return step(self, *arguments, **named)

    torch.optim.SGD.step = wrapped


def take_torch_away():
    del sys.modules["torch.nn.init"]


DONE = {
    "a wrapped step": (wrap_a_step, lambda: torch.optim.SGD.step),
    "precision": (lambda: torch.set_float32_matmul_precision("medium"), torch.get_float32_matmul_precision),
    "printing": (lambda: torch.set_printoptions(precision=1), lambda: repr(torch.tensor(1 / 3))),
    "warnings": (lambda: torch.set_warn_always(True), torch.is_warn_always_enabled),
    "oneDNN": (lambda: torch.backends.mkldnn.set_flags(False), torch._C._get_mkldnn_enabled),
    "conversion": (
        lambda: torch.__future__.set_swap_module_params_on_conversion(True),
        torch.__future__.get_swap_module_params_on_conversion,
    ),
    "anomalies": (
        lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
    ),
    "gradients": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
    "a hook of every optimizer": (
        lambda: register_optimizer_step_post_hook(print),
        lambda: dict(_global_optimizer_post_hooks),
    ),
    "a hook of every module": (
        lambda: nn_module.register_module_forward_hook(print),
        lambda: dict(nn_module._global_forward_hooks),
    ),
    "collate": (lambda: setattr(collate, "default_collate", None), lambda: collate.default_collate),
    "a kind to collate": (lambda: collate.default_collate_fn_map.clear(), lambda: dict(collate.default_collate_fn_map)),
    "a name of a class": (lambda: setattr(torch.nn.Module, "foo", 1), lambda: hasattr(torch.nn.Module, "foo")),
    "a name of torch": (lambda: setattr(torch, "foo", lambda: 1), lambda: hasattr(torch, "foo")),
    "the folder": (lambda: os.chdir("/"), os.getcwd),
    "a variable more": (lambda: os.environ.update(ACCUMKIT_MORE="1"), lambda: dict(os.environ)),
    "a variable less": (lambda: os.environ.pop("PATH"), lambda: dict(os.environ)),
    "the path": (lambda: sys.path.insert(0, "nowhere"), lambda: list(sys.path)),
    "another path": (lambda: setattr(sys, "path", []), lambda: sys.path),
    "recursion": (lambda: sys.setrecursionlimit(5000), sys.getrecursionlimit),
    "garbage": (gc.disable, gc.isenabled),
    "switching": (lambda: sys.setswitchinterval(1), lambda: round(sys.getswitchinterval(), 6)),
    "input": (lambda: setattr(sys, "stdin", None), lambda: sys.stdin),
    "a hook of sys": (lambda: setattr(sys, "excepthook", None), lambda: sys.excepthook),
    "tracing": (lambda: threading.settrace(print), threading.gettrace),
    "logging": (lambda: logging.disable(50), lambda: logging.root.manager.disable),
    "time": (lambda: setattr(time, "monotonic", lambda: 0), lambda: time.monotonic),
    "the kit": (lambda: setattr(ak, "windows", None), lambda: ak.windows),
    "a builtin": (lambda: setattr(builtins, "len", lambda value: 3), lambda: builtins.len),
    "a module": (take_torch_away, lambda: sys.modules.get("torch.nn.init")),
}


@pytest.mark.parametrize("name", DONE)
def test_it_is_put_back(name):
    torch.optim.SGD([torch.zeros(1)])  # torch wraps the step of the first one
    change, look = DONE[name]
    before = look()
    with as_it_was():
        change()
        assert look() != before
    assert look() == before


def test_it_is_put_back_where_the_function_raises():
    here = os.getcwd()
    with pytest.raises(ZeroDivisionError), as_it_was():
        os.chdir("/")
        _ = 1 / 0
    assert os.getcwd() == here


def test_a_folder_that_is_gone_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    with as_it_was():
        os.chdir(tmp_path)
        (tmp_path / "gone").rmdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with as_it_was():
        os.chdir(tmp_path)


def test_what_torch_itself_does_stays():
    step = torch.optim.Rprop.step
    with as_it_was():
        torch.optim.Rprop([torch.zeros(1)])  # the first of its class
        late = torch.late = ModuleType("torch.late")  # as a module that is loaded when it is needed
    assert torch.optim.Rprop.step.__wrapped__ is step
    assert torch.late is late
    del torch.late


def test_progress_goes_where_it_went(tmp_path, monkeypatch):
    (tmp_path / ".accumkit").mkdir()
    monkeypatch.chdir(tmp_path)
    assert not ak.check_loop(lambda model, loader, optimizer, n: os.chdir("/")).ok
    assert os.getcwd() == str(tmp_path)
