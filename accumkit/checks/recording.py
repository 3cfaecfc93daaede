"""Where progress is kept: one small file in the learner's own folder, or this session's memory. It never raises."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from accumkit.checks.outcome import NOT_ATTEMPTED, RIGHT
from accumkit.checks.progress_text import LARGEST, NewerFormatError, parsed, text_of
from accumkit.checks.quiz import QUESTIONS, UNSURE, score
from accumkit.checks.records import ExerciseRecord, Progress, QuizRecord, blank, moment
from accumkit.course import OWN
from accumkit.errors import AccumkitError, said

FILE = "progress.json"
LOCK = "progress.lock"  # stays where it is: the system's lock on it ends with the process that holds it
DAMAGED = "progress.damaged-{}.json"
WAIT = 1.0  # seconds for another notebook to let go of the file; it holds it for some thousandths of one
KIT_HOME = Path(__file__).resolve().parent.parent.parent  # the kit's own folder is no learner's


@dataclass
class Session:
    """What could not be written yet, and why. Notebooks are long-lived, and a file may be writable again later."""

    pending: Progress
    trouble: str = ""


_session = Session(Progress())
_turn = threading.Lock()  # panels may answer in threads of their own


@dataclass(frozen=True)
class Kept:
    """Progress as it stands, and what there is to say about where it is kept."""

    progress: Progress
    folder: Path | None  # the learner's own; None where there is none, and progress ends with the session
    trouble: str = ""  # why nothing is written, though there is a folder
    damaged: tuple[str, ...] = ()  # names of files that were set aside

    @property
    def file(self) -> Path | None:
        """Where the progress file is or would be."""
        return self.folder and self.folder / OWN / FILE


def learners_folder() -> Path | None:
    """Return the nearest folder, from the current one upwards, in which the kit has laid its copies.

    Examples
    --------
    >>> from accumkit.checks import recording
    >>> recording.learners_folder() is None  # not in a learner's folder
    True
    """
    try:
        here = Path.cwd()
        for folder in (here, *here.parents):
            if (folder / OWN).is_dir():
                return folder
            if folder == KIT_HOME:
                return None
    except OSError:  # the current folder is gone, or may not be read
        pass
    return None


def note(later: Progress) -> None:
    """Add to the progress that is kept; in memory where that fails, with the reason."""
    with _turn:
        _session.pending = _session.pending.then(later)
        _flush()


def kept() -> Kept:
    """Return the progress as it stands, what waits in memory included."""
    with _turn:
        _flush()
        folder = learners_folder()
        progress = Progress()
        if folder is not None:
            with contextlib.suppress(OSError, AccumkitError):
                progress = parsed(_content(folder / OWN / FILE), trusting=True)
        aside = sorted(path.name for path in (folder / OWN).glob(DAMAGED.format("*"))) if folder else []
        return Kept(progress.then(_session.pending), folder, _session.trouble, tuple(aside))


def forget() -> None:
    """Empty this session's memory; the file stays."""
    with _turn:
        _session.pending, _session.trouble = Progress(), ""


def attempt(id: str, status: str, faults: set[str]) -> None:
    """Note a check of an exercise; of one that is still as given, only that it was looked at."""
    now = moment(time.time())
    right = now if status == RIGHT else None
    if status == NOT_ATTEMPTED:
        one = blank(id, now)
    else:
        one = ExerciseRecord(id, 1, status, now, now, right, dict.fromkeys(sorted(faults), 1))
    note(Progress(exercises=(one,), kit=_version()))


def hint(id: str, n: int) -> None:
    """Note that hint ``n`` of an exercise was seen."""
    now = moment(time.time())
    note(Progress(exercises=(ExerciseRecord(id, 0, NOT_ATTEMPTED, now, now, hints=(n,)),), kit=_version()))


def solution(id: str) -> None:
    """Note that the solution of an exercise was seen."""
    now = moment(time.time())
    note(Progress(exercises=(ExerciseRecord(id, 0, NOT_ATTEMPTED, now, now, solution_seen=now),), kit=_version()))


def quiz_answers(when: str, answers: dict[str, str], finished: bool = False) -> None:
    """Note answers to the quiz as they are given; with ``finished`` they stay as they are."""
    now = moment(time.time())
    given = {slug: key or UNSURE for slug, key in answers.items()}
    one = QuizRecord(given, score(given), len(QUESTIONS), now, now, now if finished else None)
    note(Progress(quiz={when: one}, kit=_version()))


def _flush() -> None:
    """Write what waits, under the lock: read the file again, put the two together, and replace it whole."""
    try:
        folder = learners_folder()
        if folder is None:
            _session.trouble = ""
            return
        own = folder / OWN
        if _session.pending == Progress():
            _session.trouble = _unreadable(own / FILE)
            return
        with _locked(own / LOCK):
            _replace(own / FILE, text_of(_standing(own).then(_session.pending)).encode())
        _session.pending, _session.trouble = Progress(), ""
    except NewerFormatError as newer:
        _session.trouble = f"{FILE} is left as it is: {said(newer)}"
    except Exception as refused:  # a full disk, a folder that may not be written: the check's answer matters more
        _session.trouble = f"{FILE} cannot be written ({type(refused).__name__}: {said(refused)})"


def _standing(own: Path) -> Progress:
    """Return what the file says; a damaged one is set aside under another name, and a new one begun."""
    try:
        return parsed(_content(own / FILE), trusting=True)
    except FileNotFoundError:
        return Progress()
    except NewerFormatError:
        raise
    except AccumkitError:
        number = 1
        while (own / DAMAGED.format(number)).exists():
            number += 1
        os.rename(own / FILE, own / DAMAGED.format(number))
        return Progress()


def _unreadable(file: Path) -> str:
    """Return why a file cannot be read, in words; nothing where it can, or where there is none."""
    try:
        parsed(_content(file), trusting=True)
    except FileNotFoundError:
        return ""
    except (OSError, AccumkitError) as refused:
        return f"{FILE} cannot be read: {said(refused)}"
    return ""


def _content(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(LARGEST + 1)


def _replace(file: Path, content: bytes) -> None:
    """Write a file whole or not at all; of a link, the file that it leads to.

    On Windows a reader holds the file for a moment: try again.
    """
    file = Path(os.path.realpath(file))
    half = file.with_name(f".{FILE}.{os.getpid()}.half")
    try:
        half.write_bytes(content)
        for left in reversed(range(20)):
            try:
                os.replace(half, file)
                return
            except PermissionError:
                if not left or file.is_dir():
                    raise
                time.sleep(0.01)
    finally:
        half.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold the lock, so that two notebooks do not write over each other."""
    with file.open("ab") as opened:
        deadline = time.monotonic() + WAIT
        while not _lock(opened):
            if time.monotonic() > deadline:
                raise TimeoutError("another notebook is writing it, and does not finish")
            time.sleep(0.005)
        try:
            yield
        finally:
            _unlock(opened)


if sys.platform == "win32":
    import msvcrt

    def _lock(opened: BinaryIO) -> bool:
        opened.seek(0)
        try:
            msvcrt.locking(opened.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError:  # another notebook holds it
            return False
        except OSError:  # a file system without locks: the file is still replaced whole
            return True
        return True

    def _unlock(opened: BinaryIO) -> None:
        opened.seek(0)
        with contextlib.suppress(OSError):
            msvcrt.locking(opened.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(opened: BinaryIO) -> bool:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # as above
            return True
        return True

    def _unlock(opened: BinaryIO) -> None:
        with contextlib.suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_UN)


def _version() -> str:
    package: Any = sys.modules.get("accumkit")  # the room on top, which nothing here imports
    return getattr(package, "__version__", "")
