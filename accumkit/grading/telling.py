"""The commands for teachers, as they speak on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from accumkit import checks
from accumkit.checks.outcome import RIGHT
from accumkit.errors import AccumkitError, several
from accumkit.grading import collecting
from accumkit.grading.bar import Bar
from accumkit.grading.grade import PAGE, TABLE
from accumkit.grading.grade import grade as graded
from accumkit.grading.marks import NO_EXERCISE, NOTHING, STATUSES, Mark, write_table
from accumkit.grading.page import common

INTERRUPTED = 130  # what a shell expects of a program that was stopped with Ctrl-C


def grade(folder: Path, out: Path, seconds: float, memory: int, jobs: int | None) -> int:
    """Grade a folder, show how far it is, and sum up; return the exit code."""
    bars: list[Bar] = []
    right = 0

    def show(done: int, total: int, mark: Mark | None) -> None:
        nonlocal right
        bars[:] = bars or [Bar(total)]
        right += mark is not None and mark.status == RIGHT
        bars[0].show(done, f"{right} right")

    result = graded(folder, out, seconds=seconds, memory=memory, jobs=jobs, show=show)
    for line in lines(("learner", "right", "notebooks", "not right", "faults"), by_learner(result.marks)):
        print(line)
    print(f"\n{result}.")
    if result.interrupted:
        print("It was interrupted; what had been graded is kept.")
    elif not result.offline:
        print("On this system notebooks cannot be cut off from the network: they ran with it.")
    print(f"Written: {out / TABLE} and {out / PAGE}")
    return INTERRUPTED if result.interrupted else 0


def collect(folder: Path, out: Path | None) -> int:
    """Sum up a folder of progress files; return the exit code, 1 where a file could not be relied on."""
    collected = collecting.collect(folder, checks.problems(), out)
    for line in lines(collecting.LEARNERS, collected.learners):
        print(line)
    print()
    for line in lines(collecting.EXERCISES, collected.exercises):
        print(line)
    if out is not None:
        second = out.with_name(f"{out.stem}-exercises.csv")
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_table(out, collecting.LEARNERS, collected.learners)
            write_table(second, collecting.EXERCISES, collected.exercises)
        except OSError as cause:
            raise AccumkitError(f"{out} cannot be written ({cause.strerror}); name another file with --out") from cause
        print(f"\nWritten: {out} and {second}")
    if collected.refused:
        print(f"\n{several(len(collected.refused), 'file')} left out:")
        for line in lines(("file", "why"), collected.refused):
            print(line)
    return 1 if collected.refused else 0


def by_learner(marks: Sequence[Mark]) -> list[tuple[str, ...]]:
    """Return a row for each learner: exercises right, notebooks, what became of the others, and the common faults."""
    rows = []
    for learner in dict.fromkeys(mark.learner for mark in marks):
        own = [mark for mark in marks if mark.learner == learner and mark.status != NO_EXERCISE]
        notebooks = [mark for mark in own if mark.status != NOTHING]
        right = len({mark.exercise for mark in notebooks if mark.status == RIGHT})
        found = Counter(mark.status for mark in notebooks)
        others = [f"{found[status]} {status}" for status in STATUSES if status in found and status != RIGHT]
        others += [NOTHING] * (len(own) - len(notebooks))
        faults = common((mark.faults for mark in notebooks), 3)
        rows.append((learner, str(right), str(len(notebooks)), ", ".join(others), faults))
    return rows


def lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table in plain text, its columns as wide as they need to be; what cannot be shown is a question mark.

    Examples
    --------
    >>> lines(("learner", "right"), [("Ada", "3"), ("Bob", "12")])
    ['learner  right', 'Ada      3', 'Bob      12']
    """
    table = [["".join(c if c.isprintable() else "?" for c in cell) for cell in row] for row in (header, *rows)]
    widths = [min(40, max(map(len, column))) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
