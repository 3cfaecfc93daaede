"""Run a reader's function so that whatever it does, the caller gets an answer and torch is as it was."""

from __future__ import annotations

import contextlib
import ctypes
import io
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType, SimpleNamespace, TracebackType

import torch
from torch.nn.utils import clip_grad

from accumkit.trace.where import where

GRACE = 2.0  # seconds in which a function that is told to stop should do so
SHOWN = 4_000  # characters of what it prints that are let through

# What a reader may have replaced, by mistake or to look into it. Only what stood there before is put back.
PLACES = (
    torch, torch.Tensor, torch.nn.functional, torch.nn.Module, torch.nn.CrossEntropyLoss, torch.optim.Optimizer,
    torch.optim.SGD, torch.autograd, torch.nn.utils, clip_grad, torch.utils.data, torch.utils.data.DataLoader,
)  # fmt: skip


class Stop(BaseException):
    """Raised inside the function to end it; a BaseException, so that ``except Exception`` lets it pass."""


@dataclass(frozen=True)
class Ending:
    """How a function ended: with neither text, by itself."""

    raised: str | None = None  # "ValueError: ..." if it raised
    late: str | None = None  # why it was stopped
    location: str | None = None  # the line at which either happened


def run(function: Callable[[], object], seconds: float) -> Ending:
    """Run a function in a thread of its own, for some seconds at most, with torch put back afterwards.

    Parameters
    ----------
    function : callable
        Without arguments.
    seconds : float
        After which it is stopped. Python code is, at its next line. A call that never comes back from outside
        Python cannot be: its thread is left behind, and the caller goes on.

    Returns
    -------
    Ending
        What it raised is told, not raised again; an interrupt of the caller stops it and is raised again.
    """
    errors: list[BaseException] = []
    done = threading.Event()

    def body() -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    def contained() -> None:
        with contextlib.suppress(Stop):  # one that comes when the body is already over
            body()

    thread = threading.Thread(target=contained, name="checked loop", daemon=True)
    with _as_it_was(), _output_limited():
        thread.start()
        late = line = None
        try:
            if not _waited(done, seconds):
                frame = sys._current_frames().get(thread.ident)
                line, late = where(frame), f"was still running after {seconds:g} second{'s' * (seconds != 1)}"
                del frame
        finally:
            if not done.is_set():
                _stop(thread, done)
    if late:
        return Ending(late=late, location=line)
    if not errors:
        return Ending()
    error = errors[0]
    if isinstance(error, Stop):
        return Ending(late=str(error), location=raised_at(error))
    said = str(error).strip().split("\n")[0][:300]
    return Ending(raised=f"{type(error).__name__}: {said}" if said else type(error).__name__, location=raised_at(error))


def _waited(done: threading.Event, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not done.is_set() and (left := end - time.monotonic()) > 0:
        done.wait(min(left, 0.1))  # in short steps, so that an interrupt gets through on every system
    return done.is_set()


def _stop(thread: threading.Thread, done: threading.Event) -> None:
    """Raise Stop in a thread, again and again, for code that catches everything."""
    end = time.monotonic() + GRACE
    while not done.is_set() and time.monotonic() < end:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Stop))
        done.wait(0.05)


def raised_at(error: BaseException) -> str | None:
    """Return the reader's line that an exception came through last."""
    frame: SimpleNamespace | None = None
    step: TracebackType | None = error.__traceback__
    while step is not None:  # from the outermost to the line that raised
        frame = SimpleNamespace(f_code=step.tb_frame.f_code, f_lineno=step.tb_lineno, f_back=frame)
        step = step.tb_next
    return where(_as_frame(frame))


def _as_frame(frame: SimpleNamespace | None) -> FrameType | None:
    return frame  # has the three attributes that are read


class _Limited(io.TextIOBase):
    """Passes on what is written until there is too much of it."""

    def __init__(self, stream: io.TextIOBase) -> None:
        self.stream, self.left, self.dropped = stream, SHOWN, 0

    def write(self, text: str) -> int:
        shown = text[: self.left]
        if shown:
            self.stream.write(shown)
        self.left -= len(shown)
        self.dropped += len(text) - len(shown)
        return len(text)

    def flush(self) -> None:
        self.stream.flush()


@contextlib.contextmanager
def _output_limited() -> Iterator[None]:
    out, err = _Limited(sys.stdout), _Limited(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield
    if out.dropped + err.dropped:
        print(f"\n... {out.dropped + err.dropped:,} more characters were printed, and are not shown")


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """Give torch back as it was: functions, settings and every random generator."""
    attributes = [(place, dict(vars(place))) for place in PLACES]
    settings = (torch.get_default_dtype(), torch.get_num_threads(), torch.is_anomaly_enabled())
    states = torch.get_rng_state(), random.getstate()
    numpy = sys.modules.get("numpy")
    numpys = numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        for place, before in attributes:
            for name, value in before.items():
                now = vars(place).get(name)
                if now is not value and not getattr(now, "hooked", False):  # torch itself wraps a class's step, once
                    setattr(place, name, value)
        torch.set_default_dtype(settings[0])
        torch.set_num_threads(settings[1])
        torch.autograd.set_detect_anomaly(settings[2])
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        if numpy:
            numpy.random.set_state(numpys)
