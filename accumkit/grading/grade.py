"""A folder of handed-in notebooks graded: each in a process of its own, some at a time, each written down at once."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from accumkit import checks
from accumkit.checks.problem import Problem
from accumkit.errors import AccumkitError, several
from accumkit.grading import marks, page
from accumkit.grading.asking import Keeper
from accumkit.grading.limits import NEW_NETWORK
from accumkit.grading.marks import BROKEN, HEADER, NO_EXERCISE, NOT_RUN, NOTHING, Mark
from accumkit.grading.submissions import Submission, empty_handed, find

TABLE, PAGE = "marks.csv", "marks.html"
LONGEST = 3600  # seconds
PATIENCE = 60.0  # seconds beyond a notebook's own, after which its keeper is taken for lost
Showing = Callable[[int, int, Mark | None], object]


@dataclass(frozen=True)
class Graded:
    """What came of it all."""

    marks: tuple[Mark, ...]  # in the order of learners; also those that an interrupt has left without a run
    interrupted: bool  # by Ctrl-C
    offline: bool  # every notebook ran without a network

    def __repr__(self) -> str:
        found = [mark.status for mark in self.marks if mark.status != NOTHING]
        counts = ", ".join(f"{found.count(status)} {status}" for status in marks.STATUSES if status in found)
        nobody = len(self.marks) - len(found)
        said = f"; {several(nobody, 'learner')} handed nothing in" if nobody else ""
        return f"{several(len(found), 'notebook')}: {counts}{said}"


def grade(
    folder: Path,
    out: Path,
    *,
    seconds: float = 10.0,
    memory: int = 1024,
    jobs: int | None = None,
    show: Showing = lambda done, total, mark: None,
) -> Graded:
    """Run every notebook of a folder, check its answer, and write ``marks.csv`` and ``marks.html``.

    Parameters
    ----------
    folder : Path
        A folder for each learner, or all notebooks side by side; see `accumkit.grading.submissions.find`.
    out : Path
        Where the table and the page go; it is made where it is not there.
    seconds : float
        For each notebook, all its cells and the check.
    memory : int
        Megabytes for each notebook, beyond what torch itself takes.
    jobs : int, optional
        How many run at the same time; by default as many as there are processors.
    show : callable
        Called with the number of those done, of all, and the mark that was added.

    Returns
    -------
    Graded

    Raises
    ------
    AccumkitError
        No such folder, nothing in it, a number that cannot be, or ``out`` cannot be written.
    """
    jobs = _whole("jobs", _processors() if jobs is None else jobs, 1)
    if not 0 < seconds <= LONGEST:
        raise AccumkitError(f"seconds={seconds:g}: give a number above 0, {LONGEST} at most")
    limits = {"seconds": float(seconds), "memory": _whole("memory", memory, 16)}
    if find_spec("psutil") is None:
        raise AccumkitError('psutil is missing, which comes with the course: python -m pip install -e ".[course]"')
    problems = checks.problems()
    submissions = find(folder, problems)
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = marks.open_table(out / TABLE, HEADER)
    except OSError as cause:
        raise AccumkitError(f"{out} cannot be written ({cause.strerror}); name another folder with --out") from cause
    done: list[Mark] = []

    def add(mark: Mark) -> None:
        done.append(mark)
        marks.add_rows(file, [mark.row()])
        show(len(done), len(submissions), mark)

    with file:
        show(0, len(submissions), None)
        interrupted, offline = _grade(submissions, problems, limits, jobs, add)
    known = {mark.file for mark in done}
    left = [one for one in submissions if one.file not in known]
    done += [_without(one, problems, NOT_RUN, "Stopped before its turn.") for one in left]
    done += [Mark(name, "", "", "", NOTHING, (), "No notebook.") for name in empty_handed(folder, submissions, out)]
    graded = Graded(tuple(sorted(done, key=Mark.place)), interrupted, offline)
    marks.write_table(out / TABLE, HEADER, [mark.row() for mark in graded.marks])
    (out / PAGE).write_text(page.of(graded.marks, repr(graded)), encoding="utf-8", errors="backslashreplace")
    return graded


def _grade(
    submissions: Iterable[Submission], problems: Mapping[str, Problem], limits: dict, jobs: int, add: Callable
) -> tuple[bool, bool]:
    """Call ``add`` with each mark as it comes; return whether it was interrupted, and whether no network was there."""
    waiting: queue.SimpleQueue[Submission] = queue.SimpleQueue()
    ended: queue.SimpleQueue[Mark | BaseException] = queue.SimpleQueue()
    expected = 0
    for one in submissions:
        if one.unreadable:
            add(_without(one, problems, BROKEN, f"{one.unreadable[:1].upper()}{one.unreadable[1:]}."))
        elif one.exercise is None:
            add(_without(one, problems, NO_EXERCISE, "It names no exercise of this course."))
        else:
            waiting.put(one)
            expected += 1
    keepers = [Keeper() for _ in range(min(jobs, expected))]

    def work(keeper: Keeper) -> None:
        try:
            with contextlib.suppress(queue.Empty):
                while not keeper.stopped:
                    one = waiting.get_nowait()
                    mark = _marked(one, problems, keeper.ask(_request(one, limits), limits["seconds"] + PATIENCE))
                    if not keeper.stopped:
                        ended.put(mark)
        except BaseException as error:  # to the thread that waits
            ended.put(error)

    threads = [threading.Thread(target=work, args=(keeper,), daemon=True) for keeper in keepers]
    interrupted = False
    try:
        for thread in threads:
            thread.start()
        for _ in range(expected):
            mark = _next(ended)
            if isinstance(mark, BaseException):
                raise mark
            add(mark)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        for keeper in keepers:
            keeper.stop()
        for thread in threads:
            thread.join()
        for keeper in keepers:
            keeper.close()
    return interrupted, all(keeper.isolated & NEW_NETWORK for keeper in keepers)


def _next(ended: queue.SimpleQueue):
    while True:  # in short steps, so that an interrupt gets through on every system
        with contextlib.suppress(queue.Empty):
            return ended.get(timeout=0.2)


def _request(one: Submission, limits: dict) -> dict:
    return {"exercise": one.exercise, "cells": one.cells, "folder": str(one.path.parent.absolute())} | limits


def _marked(one: Submission, problems: Mapping[str, Problem], told: dict) -> Mark:
    problem = problems[one.exercise]
    return Mark(
        one.learner, one.file, problem.id, problem.title, told["status"], tuple(told["faults"]), told["said"],
        round(told["seconds"], 2),
    )  # fmt: skip


def _without(one: Submission, problems: Mapping[str, Problem], status: str, said: str) -> Mark:
    """Return the mark of a notebook that was not run."""
    problem = problems.get(one.exercise)
    return Mark(
        one.learner, one.file, problem.id if problem else "", problem.title if problem else "", status, (), said
    )


def _processors() -> int:
    return (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()) or 1


def _whole(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise AccumkitError(f"{name}={value!r}: give a whole number, {least} or more")
    return value
