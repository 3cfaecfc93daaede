"""Starts a process for one notebook, watches what it uses, ends it and all that it started, and reads what it told."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from accumkit.grading import limits
from accumkit.grading.attempt import attempt, show_nothing
from accumkit.grading.marks import BROKEN, OUT_OF_MEMORY, OUT_OF_TIME, TOO_MANY

FORKS = sys.platform == "linux"  # elsewhere a process that is copied may stand still: each notebook starts anew
MOST_PROCESSES = 32
SMALLEST_FREE = 200  # numbers of open files below this are the notebook's own
COPIED = 10 * 2**20  # bytes of a file that a notebook finds beside it
STARTING = 60  # seconds more for a process that has torch to import


def keep(request: dict, isolated: int) -> dict:
    """Run one notebook in a process of its own, and return its mark: status, faults, said, seconds.

    Parameters
    ----------
    request : dict
        ``exercise``, ``cells``, ``folder`` (where it lies), ``seconds`` and ``memory`` (megabytes).
    isolated : int
        As `limits.possible` returns it.
    """
    began = time.monotonic()
    token = secrets.token_hex(16)  # before each line, so that what a notebook writes by accident is not taken for one
    room, desk = (tempfile.TemporaryDirectory(ignore_cleanup_errors=True) for _ in range(2))
    with room as place, desk as own:
        _copy(Path(request["folder"]), Path(place))
        channel = Path(own, "told")
        channel.touch()
        allowed = request["seconds"] + (0 if FORKS else STARTING)
        job = request | {
            "place": place, "channel": str(channel), "token": token, "isolated": isolated, "allowed": allowed
        }  # fmt: skip
        process = _Forked(job) if FORKS else _Started(job)
        why = _watched(process, allowed, request["memory"] * 2**20)
        told = [json.loads(line[len(token) :]) for line in channel.read_text("utf-8", "replace").splitlines()
                if line.startswith(token)]  # fmt: skip
        _open_up(place)
    return _mark(told, why, process.code, request) | {"seconds": time.monotonic() - began}


def run_job(job: dict) -> None:
    """Do what the process of one notebook is there for, and end it."""
    channel = os.open(job["channel"], os.O_WRONLY | os.O_APPEND)
    if sys.platform != "win32":
        import fcntl

        channel = fcntl.fcntl(channel, fcntl.F_DUPFD_CLOEXEC, SMALLEST_FREE)
    me, this, write, dumps, leave = os.getpid(), os.getpid, os.write, json.dumps, os._exit
    token = job["token"]

    def tell(**said: object) -> None:
        if this() != me:  # a copy of this process, made by the notebook
            leave(0)
        # While cells run, only their number is told, and put into words without Python's own functions.
        line = f'{{"cell": {said["cell"]:d}}}' if "cell" in said else dumps(said)
        write(channel, f"{token}{line}\n".encode())

    show_nothing()
    os.environ["MPLBACKEND"] = "Agg"
    os.chdir(job["place"])
    sys.path.insert(0, job["place"])
    with contextlib.suppress(OSError, AttributeError):
        os.nice(5)  # the one that watches comes first
    reserve = limits.limited(job["memory"], job["allowed"])
    try:
        attempt(job["exercise"], job["cells"], tell, reserve)
    except BaseException as error:
        tell(status=BROKEN, faults=[], said=f"The notebook could not be run and checked: {type(error).__name__}.")
    finally:
        leave(0)


class _Forked:
    """A copy of this process, which has everything imported; cut off from other processes and the network."""

    def __init__(self, job: dict) -> None:
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        try:
            os.setsid()
            limits.dies_with_parent()
            if job["isolated"] and limits.unshare(job["isolated"]) and job["isolated"] & limits.NEW_PID:
                inner = os.fork()  # the first in a room of processes that ends when it does
                if inner:
                    show_nothing()
                    code = os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])
                    os._exit(code if code >= 0 else 128 - code)
                limits.dies_with_parent()
            run_job(job)
        finally:
            os._exit(1)

    def ended(self) -> bool:
        if self.code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # already taken leave of
                pid, status = self.pid, signal.SIGKILL
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None


class _Started:
    """A new Python, where copying a process is not safe."""

    def __init__(self, job: dict) -> None:
        command = [sys.executable, "-m", "accumkit.grading.worker", "--one"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, **pipes, start_new_session=True)
        self.pid, self.code = self.process.pid, None
        with contextlib.suppress(OSError):
            self.process.stdin.write(json.dumps(job).encode())
            self.process.stdin.close()

    def ended(self) -> bool:
        self.code = self.process.poll()
        return self.code is not None


def _watched(process: _Forked | _Started, seconds: float, memory: int) -> str | None:
    """Wait until a process ends or uses too much; end it with all that it started, and return the status for why."""
    import psutil  # comes with ipykernel

    own = psutil.Process().memory_info().rss  # which a copy of this process has from the start
    end, why, pause, turn = time.monotonic() + seconds, None, 0.005, 0
    while not process.ended() and why is None:
        time.sleep(pause)
        turn += 1
        if turn % 5 == 0:
            pause = 0.02
            many, used = _usage(psutil, process.pid, own)
            why = TOO_MANY if many > MOST_PROCESSES else OUT_OF_MEMORY if used > memory + limits.RESERVE else None
        if time.monotonic() > end:
            why = why or OUT_OF_TIME
    _end_all(psutil, process)
    return why


def _usage(psutil, pid: int, own: int) -> tuple[int, int]:
    """Return how many processes a process has started, and the memory of them all beyond what each began with."""
    many = used = 0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for one in [root, *root.children(recursive=True)]:
            many += 1
            with contextlib.suppress(psutil.Error):
                used += max(0, one.memory_info().rss - own)
    return many, used


def _end_all(psutil, process: _Forked | _Started) -> None:
    """End a process and everything that it started, also what it left behind."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        if not process.ended() and hasattr(os, "killpg"):
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)  # at once, so that none starts another meanwhile
        with contextlib.suppress(psutil.Error):
            left = psutil.Process().children(recursive=True)
            if not left:
                return
            for one in left:
                with contextlib.suppress(psutil.Error):
                    one.kill()
        process.ended()
        _reap()
        time.sleep(0.01)


def _reap() -> None:
    """Take leave of processes that were left to this one."""
    if FORKS:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _mark(told: list[dict], why: str | None, code: int | None, request: dict) -> dict:
    """Return the mark that a process told, or what its end says where it told none."""
    marks = [line for line in told if "status" in line]
    if marks and why is None:
        return marks[0]
    began = [line["cell"] for line in told if "cell" in line]
    where = "the check" if any("checking" in line for line in told) else f"cell {began[-1]}" if began else "the start"
    said = {
        OUT_OF_TIME: f"The notebook was stopped after {request['seconds']:g} seconds, in {where}.",
        OUT_OF_MEMORY: f"The notebook took more than {request['memory']} MB of memory and was stopped, in {where}.",
        TOO_MANY: f"The notebook started more than {MOST_PROCESSES} processes and was stopped, in {where}.",
        None: f"The notebook's process ended in {where}, before it could be checked{_with(code)}.",
    }[why]
    return {"status": why or BROKEN, "faults": [], "said": said}


def _with(code: int | None) -> str:
    if code is None:
        return ""
    number = -code if code < 0 else code - 128
    with contextlib.suppress(ValueError):
        return f" ({signal.Signals(number).name})" if code < 0 or code > 128 else f" (exit code {code})"
    return f" (exit code {code})"


def _copy(folder: Path, place: Path) -> None:
    """Copy what lies beside a notebook, except other notebooks, links, hidden files and what is large."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            small = path.is_file() and path.stat().st_size <= COPIED
            if small and path.suffix != ".ipynb" and not path.name.startswith(".") and not path.is_symlink():
                shutil.copy(path, place)


def _open_up(place: str) -> None:
    """Make folders that a notebook has closed fit to be taken away."""
    for here, _, _ in os.walk(place):
        with contextlib.suppress(OSError):
            os.chmod(here, 0o700)
