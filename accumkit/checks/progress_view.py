"""How far a learner is: a table of the exercises, the quiz, and what to do next, as text and in a notebook."""

from __future__ import annotations

import os
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote

from accumkit import checks
from accumkit.checks import recording
from accumkit.checks.outcome import NOT_ATTEMPTED, RIGHT
from accumkit.checks.problem import Problem
from accumkit.checks.progress_notes import next_step, notes
from accumkit.checks.progress_text import text_of
from accumkit.checks.quiz import WHEN
from accumkit.checks.records import Progress, quiz_words
from accumkit.errors import AccumkitError

HEADS = ("Lesson", "Exercise", "Status", "Attempts", "Hints", "Minutes")
WIDTHS = (6, 40, 13, 8, 16, 7)  # of the text, in characters
BAR = 20  # characters
LONGEST_NAME = 80
CELL = "text-align:left;vertical-align:top;padding:3px 16px 3px 0;white-space:normal"
RULE = "border-top:1px solid currentColor"


@dataclass(frozen=True, repr=False)
class ProgressReport:
    """What `progress` returns: shown as a table.

    Parameters
    ----------
    kept : Kept
        The progress, and where it is kept.
    problems : tuple of Problem
        All exercises in the order of the course.
    """

    kept: recording.Kept
    problems: tuple[Problem, ...]

    @property
    def progress(self) -> Progress:
        """The numbers in the table, as data."""
        return self.kept.progress

    def save(self, path: str | Path) -> Path:
        """Write a copy of the progress file, to hand it in, and return where it is.

        Raises
        ------
        AccumkitError
            There is such a file already, or it cannot be written.
        """
        if not isinstance(path, (str, Path)) or not Path(path).name or Path(path).is_dir():
            raise AccumkitError(f'save({path!r}): give the name of a file, such as "progress Ada.json"')
        try:
            with Path(path).open("x", encoding="utf-8") as file:
                file.write(text_of(self.progress))
        except FileExistsError as cause:
            raise AccumkitError(f"{path} is there already, and stays as it is; give another name") from cause
        except (OSError, ValueError) as cause:
            raise AccumkitError(f"{path} cannot be written ({cause}); give another place") from cause
        return Path(path)

    @property
    def headline(self) -> str:
        """How many exercises are right, in words."""
        whose = f"Progress of {self.progress.name}" if self.progress.name else "Your progress"
        return f"{whose}: {self._right} of {len(self.problems)} exercises right"

    @property
    def _right(self) -> int:
        ids = {problem.id for problem in self.problems}
        return sum(one.solved for one in self.progress.exercises if one.id in ids)

    @property
    def _quiz(self) -> str:
        said = [f"{when} the lessons: {quiz_words(self.progress.quiz.get(when))}" for when in WHEN]
        return f"Quiz {'; '.join(said)}."

    def _row(self, problem: Problem) -> tuple[str, ...]:
        named = (problem.id[:2], f"{problem.id} {problem.title}")
        one = self.progress.exercise(problem.id)
        if one is None:
            return (*named, NOT_ATTEMPTED, "-", "-", "-")
        hints = str(len(one.hints)) if one.hints else "none"
        hints += " and solution" if one.solution_seen else ""
        return (*named, RIGHT if one.solved else one.status, str(one.attempts), hints, str(one.minutes))

    def __repr__(self) -> str:
        full = BAR * self._right // max(1, len(self.problems))
        lines = [self.headline, f"[{'#' * full}{'.' * (BAR - full)}]", ""]
        for cells in (HEADS, *map(self._row, self.problems)):
            lines.append("  ".join(cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True)).rstrip())
        step, file = next_step(self.progress, self.problems)
        place = f" ({where})" if (where := self._found(file)) else ""
        return "\n".join([*lines, "", self._quiz, f"Next: {step}{place}.", *notes(self.kept)])

    def _repr_html_(self) -> str:
        step, file = next_step(self.progress, self.problems)
        heads = "".join(f'<th scope="col" style="{CELL}">{head}</th>' for head in HEADS)
        said = "".join(f'<p style="margin:6px 0">{escape(one)}</p>' for one in notes(self.kept))
        return (
            '<div style="max-width:900px;line-height:1.45">'
            f'<table style="border-collapse:collapse;margin:0"><caption style="text-align:left;font-weight:bold;'
            f'padding:0 0 6px;color:inherit">{escape(self.headline)}{self._bar()}</caption>'
            f"<thead><tr>{heads}</tr></thead>{''.join(map(self._group, self._lessons()))}</table>"
            f'<p style="margin:8px 0 6px">{escape(self._quiz)}</p>'
            f'<p style="margin:6px 0"><strong>Next:</strong> {self._link(step, file)}.</p>{said}</div>'
        )

    def _bar(self) -> str:
        """Return a bar as wide as the part that is right; the headline beside it says the same in words."""
        wide = 100 * self._right / max(1, len(self.problems))
        frame = "border:1px solid currentColor;height:10px;width:300px;max-width:100%;margin-top:6px"
        inside = f"background:currentColor;height:100%;width:{wide:.0f}%"
        return f'<div aria-hidden="true" style="{frame}"><div style="{inside}"></div></div>'

    def _lessons(self) -> list[list[Problem]]:
        return [
            [problem for problem in self.problems if problem.id[:2] == lesson]
            for lesson in dict.fromkeys(problem.id[:2] for problem in self.problems)
        ]

    def _group(self, problems: list[Problem]) -> str:
        """Return the rows of one lesson; its number stands beside the first, for all of them."""
        rows = []
        for number, problem in enumerate(problems):
            lesson, name, *others = self._row(problem)
            head = f'<th scope="rowgroup" rowspan="{len(problems)}" style="{CELL};{RULE}">{lesson}</th>'
            linked = f'<th scope="row" style="{CELL};font-weight:normal;{{}}">{self._link(name, f"{problem.id}_")}</th>'
            rule = "" if number else RULE
            cells = linked.format(rule) + "".join(f'<td style="{CELL};{rule}">{cell}</td>' for cell in others)
            rows.append(f"<tr>{'' if number else head}{cells}</tr>")
        return f"<tbody>{''.join(rows)}</tbody>"

    def _link(self, words: str, file: str) -> str:
        place = self._found(file)
        return f'<a href="{quote(place)}">{escape(words)}</a>' if place else escape(words)

    def _found(self, file: str) -> str:
        """Return the way from here to the notebook whose name begins so; nothing where there is none."""
        home = self.kept.folder or recording.KIT_HOME
        try:
            for room in (home / "exercises", home, home / "notebooks"):
                for path in sorted(room.glob(f"{file}*.ipynb")) if file else ():
                    return Path(os.path.relpath(path)).as_posix()
        except (OSError, ValueError):  # ValueError: another drive, on Windows
            pass
        return ""


def progress(name: str | None = None) -> ProgressReport:
    """Show how far you are: each exercise, the quiz before and after, and what comes next.

    In a folder that ``make lab`` has laid, every check is noted in one small file on this computer, and nothing is
    sent anywhere. Elsewhere progress ends with the session.

    Parameters
    ----------
    name : str, optional
        What to call you in the table and the file; it is kept.

    Returns
    -------
    ProgressReport
        Shown as a table; ``.progress`` has the same as data, ``.save(path)`` writes a copy to hand in.

    Raises
    ------
    AccumkitError
        ``name`` is no name.

    Examples
    --------
    >>> import accumkit as ak
    >>> report = ak.progress(name="Ada")
    >>> report.headline.split(":")[0]
    'Progress of Ada'
    """
    if name is not None:
        clean = name.strip() if isinstance(name, str) else ""
        if not clean.isprintable() or not 1 <= len(clean) <= LONGEST_NAME:
            raise AccumkitError(f"name={name!r:.60}: give 1 to {LONGEST_NAME} letters, in one line")
        recording.note(Progress(name=clean))
    return ProgressReport(recording.kept(), tuple(checks.problems().values()))
