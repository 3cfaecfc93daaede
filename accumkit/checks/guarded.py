"""Run a reader's function so that whatever it does, the caller gets an answer and torch is as it was."""

from __future__ import annotations

import contextlib
import ctypes
import io
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic  # by its name: a reader's function may replace what the module holds
from types import FrameType, SimpleNamespace, TracebackType
from typing import Any

from accumkit.checks.as_it_was import as_it_was
from accumkit.errors import kind_of, said
from accumkit.trace.where import where

GRACE = 2.0  # seconds in which a function that is told to stop should do so
LONG = 300  # characters of an error's text
SHOWN = 4_000  # characters of what it prints that are let through


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
        Python cannot be. Where it lets other threads run, as waiting and torch's own work do, its thread is left
        behind and the caller goes on. Where it does not, as ``sum`` over a huge range or a regular expression that
        runs away, nothing in this process runs until it comes back, this function included: restart the kernel.

    Returns
    -------
    Ending
        What it raised is told, not raised again; an interrupt of the caller stops it and is raised again.
    """
    endings: list[Ending] = []
    done = threading.Event()

    def body() -> None:
        try:
            function()
        except BaseException as error:
            endings.append(_of(error))
        finally:
            done.set()

    def contained() -> None:
        with contextlib.suppress(Stop):  # one that comes when the body is already over
            body()

    thread = threading.Thread(target=contained, name="checked loop", daemon=True)
    with as_it_was(), _output_limited():
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
    return endings[0] if endings else Ending()


def _of(error: BaseException) -> Ending:
    """Return the ending that an exception is; told where the function ran, so that reading it may take no longer."""
    location = _asked(lambda: raised_at(error))
    if issubclass(type(error), Stop):
        return Ending(late=_text(error), location=location)
    return Ending(raised=told(error), location=location)


def told(error: BaseException) -> str:
    """Return an exception's class and what it says, in one line, whatever it does when it is asked.

    Examples
    --------
    >>> from accumkit.checks.guarded import told
    >>> told(ValueError("no number."))
    'ValueError: no number'
    """
    text = _text(error)
    return f"{kind_of(error)}: {text}" if text else kind_of(error)


def _text(error: BaseException) -> str:
    text = _asked(lambda: str.split(said(error), "\n")[0])
    if text is None:
        return "(its text cannot be read)"
    return text if len(text) <= LONG else text[:LONG].rsplit(" ", 1)[0] + " [...]"  # not in the middle of a word


def attribute(thing: object, name: str) -> Any:
    """Return an attribute of something a reader made, None where it has none or raises over it."""
    return _asked(lambda: getattr(thing, name, None))


def _asked(question: Callable[[], Any]) -> Any:
    """Return the answer of something a reader made, None where it raises: even an exit, which is not meant there."""
    try:
        return question()
    except (Stop, KeyboardInterrupt) as ended:
        if type(ended) is KeyboardInterrupt and threading.current_thread() is not threading.main_thread():
            return None  # an interrupt of the caller comes in the main thread alone
        raise
    except BaseException:
        return None


def _waited(done: threading.Event, seconds: float) -> bool:
    end = monotonic() + seconds
    while not done.is_set() and (left := end - monotonic()) > 0:
        done.wait(min(left, 0.1))  # in short steps, so that an interrupt gets through on every system
    return done.is_set()


def _stop(thread: threading.Thread, done: threading.Event) -> None:
    """Raise Stop in a thread, again and again, for code that catches everything."""
    end = monotonic() + GRACE
    while not done.is_set() and monotonic() < end:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Stop))
        done.wait(0.05)


def raised_at(error: BaseException) -> str | None:
    """Return the reader's line that an exception came through last."""
    frame: SimpleNamespace | None = None
    step: TracebackType | None = error.__traceback__
    while step is not None:  # from the outermost to the line that raised
        code, line, last = step.tb_frame.f_code, step.tb_lineno, step.tb_lasti
        frame = SimpleNamespace(f_code=code, f_lineno=line, f_lasti=last, f_back=frame)
        step = step.tb_next
    return where(_as_frame(frame))


def _as_frame(frame: SimpleNamespace | None) -> FrameType | None:
    return frame  # has the three attributes that are read


class _Limited(io.TextIOBase):
    """Passes on what is written until there is too much of it; whatever else it is asked for, the stream answers."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.left, self.dropped = stream, SHOWN, 0
        self.buffer = _Bytes(self)

    def write(self, text: str) -> int:
        shown = text[: self.left]
        if shown:
            self.stream.write(shown)
        self.left -= len(shown)
        self.dropped += len(text) - len(shown)
        return len(text)

    def flush(self) -> None:
        self.stream.flush()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self.stream.isatty()

    def fileno(self) -> int:
        try:
            return self.stream.fileno()
        except (AttributeError, OSError):  # the stream of a notebook or a test has no file
            return (sys.__stdout__ or self.stream).fileno()

    @property
    def encoding(self) -> str:
        return getattr(self.stream, "encoding", None) or "utf-8"

    @property
    def errors(self) -> str | None:
        return getattr(self.stream, "errors", None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _Bytes(io.BufferedIOBase):
    """The same for bytes."""

    def __init__(self, text: _Limited) -> None:
        self.text = text

    def write(self, data: bytes) -> int:
        self.text.write(bytes(data).decode(self.text.encoding, "replace"))
        return len(data)

    def flush(self) -> None:
        self.text.flush()

    def writable(self) -> bool:
        return True


@contextlib.contextmanager
def _output_limited() -> Iterator[None]:
    out, err = _Limited(sys.stdout), _Limited(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield
    if out.dropped + err.dropped:
        print(f"\n... {out.dropped + err.dropped:,} more characters were printed, and are not shown")
