"""What became of one handed-in notebook, and a table of such marks as a file for a spreadsheet."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from accumkit.checks.outcome import NOT_ATTEMPTED, NOT_YET, RIGHT

BROKEN, NO_EXERCISE, NOT_RUN, NOTHING = "broken", "not an exercise", "not run", "nothing handed in"
OUT_OF_TIME, OUT_OF_MEMORY, TOO_MANY = "out of time", "out of memory", "too many processes"
STATUSES = (RIGHT, NOT_YET, NOT_ATTEMPTED, BROKEN, OUT_OF_TIME, OUT_OF_MEMORY, TOO_MANY, NOT_RUN, NO_EXERCISE, NOTHING)
HEADER = ("learner", "file", "exercise", "title", "status", "faults", "said", "seconds")
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # a spreadsheet may take a cell that begins so for a formula

NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


@dataclass(frozen=True)
class Mark:
    """One notebook's mark; or that a learner handed none in.

    Parameters
    ----------
    learner, file : str
        Whose it is, and where it lies below the folder that was graded.
    exercise, title : str
        "01a" and the title; "" where it is none of the course's exercises.
    status : str
        One of `STATUSES`.
    faults : tuple of str
        What the check named, catalog slugs among them.
    said : str
        What the check said, or why there is no answer to check.
    seconds : float
        How long the run took, 0 where there was none.

    Examples
    --------
    >>> from accumkit.grading.marks import Mark
    >>> Mark("Ada", "ada/01a.ipynb", "01a", "Write the window loop", "right")
    Ada: 01a Write the window loop, right
    """

    learner: str
    file: str
    exercise: str
    title: str
    status: str
    faults: tuple[str, ...] = ()
    said: str = ""
    seconds: float = 0.0

    def __repr__(self) -> str:
        what = f"{self.exercise} {self.title}, " if self.exercise else f"{self.file}, " if self.file else ""
        return f"{self.learner}: {what}{self.status}{''.join(f' ({fault})' for fault in self.faults)}"

    def row(self) -> tuple[str, ...]:
        """Return the cells of its line, in the order of `HEADER`."""
        return (
            self.learner, self.file, self.exercise, self.title, self.status, " ".join(self.faults), self.said,
            f"{self.seconds:.1f}",
        )  # fmt: skip

    def place(self) -> tuple[str, ...]:
        """Return what marks are sorted by: the learner, then the exercise, then the file."""
        return self.learner.casefold(), self.learner, self.exercise or "~", self.file


def harmless(text: str) -> str:
    """Return a cell that no spreadsheet takes for a formula.

    Examples
    --------
    >>> harmless("=1+1"), harmless("-2"), harmless("mean-of-means")
    ("'=1+1", '-2', 'mean-of-means')
    """
    return f"'{text}" if text.startswith(FORMULA) and not NUMBER.fullmatch(text) else text


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a table for a spreadsheet (CSV, UTF-8 with a mark that spreadsheets know), whole or not at all."""
    half = path.with_name(f".{path.name}.half")
    with open_table(half, header) as file:
        add_rows(file, rows)
    os.replace(half, path)


def open_table(path: Path, header: Sequence[str]):
    """Open a table to be written row by row, and write its header."""
    file = path.open("w", encoding="utf-8-sig", errors="backslashreplace", newline="")
    add_rows(file, [header])
    return file


def add_rows(file, rows: Iterable[Sequence[str]]) -> None:
    """Write rows to an open table, so that they stay when the program is stopped."""
    csv.writer(file).writerows([harmless(cell) for cell in row] for row in rows)
    file.flush()
