"""Who is told what a loop does: the open watches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer


class Listener(Protocol):  # what each call means stands where it is made
    """What a watch answers to; each call names the reader's line where there is one."""

    model: nn.Module
    measured: bool  # it looks at what forward gave

    def pass_begins(self, length: int, size: int | None) -> int: ...  # batches, -1 where unknown; examples in one
    def fetched(self, number: int, batch: Any, location: str | None) -> None: ...
    def forward_begins(self, args: tuple, kwargs: dict, location: str | None) -> None: ...
    def forward_ends(self, output: Any) -> None: ...
    def backward_begins(self, roots: Any, retain: bool | None) -> None: ...
    def backward_ends(self, location: str | None) -> None: ...
    def zero_grad(self, owner: Any, location: str | None) -> None: ...
    def scaler_made(self, scaler: GradScaler, location: str | None) -> None: ...
    def loss_scaled(self, scaler: GradScaler, scale: float) -> None: ...
    def unscale_begins(self, optimizer: Optimizer) -> None: ...
    def scaler_steps(self, scaler: GradScaler | None) -> None: ...
    def scaler_updated(self, scaler: GradScaler, scale: float, location: str | None) -> None: ...
    def scaled(self, optimizer: Optimizer, factor: float, location: str | None) -> None: ...
    def clip_begins(self, tensors: list, total_norm: float | None) -> None: ...
    def clipped(self, tensors: list, factor: float | None, max_norm: float | None, location: str | None) -> None: ...
    def step_begins(self, optimizer: Optimizer, location: str | None) -> None: ...
    def step_ends(self, optimizer: Optimizer) -> None: ...
    def step_skipped(self, optimizer: Optimizer, location: str | None) -> None: ...
    def note(
        self, kind: str, location: str | None, value: float | None = None, scheduler: int | None = None
    ) -> None: ...
    def failed(self, error: Exception) -> None: ...


listeners: list[Listener] = []
by_model: dict[int, list[Listener]] = {}  # the same, by the id of the model that they watch, and so keep alive


def add(listener: Listener) -> None:
    """Tell this one too."""
    listeners.append(listener)
    by_model.setdefault(id(listener.model), []).append(listener)


def remove(listener: Listener) -> None:
    """Tell this one no more."""
    listeners.remove(listener)
    of_model = by_model[id(listener.model)]
    of_model.remove(listener)
    if not of_model:
        del by_model[id(listener.model)]


class Here:
    """How deep one thread is in calls within calls."""

    __slots__ = ("backward", "calling", "closure", "scheduler")

    def __init__(self) -> None:
        self.backward = self.scheduler = self.closure = 0
        self.calling = 0  # id of the watched module whose forward runs


class Depth(threading.local):
    """The ``here`` of the running thread; another thread's training is its own."""

    def __init__(self) -> None:
        self.here = Here()  # looked up once a call, for every look at a thread's own costs


depth = Depth()
stepping: dict[Optimizer, int] = {}  # steps that run: 1, and more for nested super().step() calls


def tell(name: str, *args: Any) -> None:
    """Tell every listener."""
    for listener in listeners[:]:
        try:
            getattr(listener, name)(*args)
        except Exception as error:
            listener.failed(error)


def call(listener: Listener, name: str, *args: Any) -> Any:
    """Tell one listener; what goes wrong there is its own affair and never the watched loop's."""
    try:
        return getattr(listener, name)(*args)
    except Exception as error:
        listener.failed(error)


@contextmanager
def muted() -> Iterator[None]:
    """Tell no one about the calls and backwards in a block: they are the measurement's own."""
    here = depth.here
    here.backward += 1
    try:
        yield
    finally:
        here.backward -= 1


def in_closure() -> bool:
    """Say whether an optimizer's closure is running, as L-BFGS evaluates it several times a step."""
    return depth.here.closure > 0


def step_failed() -> None:
    """Forget steps that raised and so never reached their end; called when the loop goes on without them."""
    stepping.clear()


def reset() -> None:
    """Start afresh, when the last listener has gone."""
    stepping.clear()
    depth.__init__()
