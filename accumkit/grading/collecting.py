"""Learners' progress files summed up: a row for each learner, a row for each exercise, and what could not be read."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from accumkit.checks import progress
from accumkit.checks.problem import Problem
from accumkit.checks.progress import ExerciseRecord, Progress
from accumkit.course import OWN
from accumkit.errors import AccumkitError
from accumkit.grading.grade import TABLE
from accumkit.grading.page import most_common
from accumkit.grading.submissions import beside, folders_without, owners

LEARNERS = (
    "learner", "right", "not yet", "attempts", "hints", "solutions seen", "minutes", "quiz before", "quiz after",
    "difference", "file", "remark",
)  # fmt: skip
EXERCISES = ("exercise", "title", "right", "not yet", "attempts", "solutions seen", "faults, and how many met them")
EDITED = "edited by hand at some time"
MISSING = "no progress file"
NOTHING = ""  # where there is no number


@dataclass(frozen=True)
class Collected:
    """What a folder of progress files says."""

    learners: tuple[tuple[str, ...], ...]  # cells in the order of LEARNERS
    exercises: tuple[tuple[str, ...], ...]  # cells in the order of EXERCISES
    refused: tuple[tuple[str, str], ...]  # a file, and why it counts for nothing


def collect(folder: Path, problems: Mapping[str, Problem], out: Path | None = None) -> Collected:
    """Read every progress file in a folder, and sum them up; one that cannot be relied on is named, and left out.

    A learner's folder without such a file has a row that says so.

    Parameters
    ----------
    folder : Path
        A folder for each learner, with their ``.accumkit/progress.json`` or a copy of it; or such copies side by
        side, each named after its learner ("ada.json", "progress ada.json").
    problems : mapping of str to Problem
        The exercises by name, as `accumkit.checks.problems` returns them.
    out : Path, optional
        The table that is written; its folder is no learner's.

    Raises
    ------
    AccumkitError
        There is no such folder, or no progress file in it.
    """
    if not folder.is_dir():
        raise AccumkitError(f"{folder} is no folder; give the folder that holds the progress files")
    paths = sorted(files(folder))
    if not paths:
        raise AccumkitError(
            f"there is no progress file in {folder}; in a learner's folder it is {OWN}/{progress.FILE}, or a copy of it"
        )
    read: list[tuple[str, str, Progress]] = []
    refused = []
    for path in paths:
        file = path.relative_to(folder).as_posix()
        try:
            read.append((_name_of(path.relative_to(folder)), file, progress.read(path)))
        except AccumkitError as why:
            refused.append((file, str(why).removeprefix(f"{path}").strip(" :")))
    names = owners(folder, [who for who, _, _ in read])
    read = [(name, file, one) for name, (_, file, one) in zip(names, read, strict=True)]
    twice = {one for one, times in Counter(learner for learner, _, _ in read).items() if times > 1}
    learners = [_learner(who, file, one, who in twice) for who, file, one in read]
    found = [one for _, _, one in read]
    exercises = [_exercise(problem, found) for problem in problems.values()]
    learners += [(who, *[NOTHING] * (len(LEARNERS) - 2), MISSING) for who in _missing(folder, paths, out or folder)]
    learners.sort(key=lambda row: row[0].casefold())
    return Collected(tuple(learners), tuple(exercises), tuple(refused))


def files(folder: Path) -> Iterator[Path]:
    """Yield what may be progress files: ``*.json``, in hidden folders only the kit's own; links are passed over."""
    for here, folders, names in os.walk(folder):
        own = Path(here).name == OWN
        inside = [] if own else folders  # JupyterLab's settings and open tabs are beside the progress
        folders[:] = sorted(name for name in inside if name == OWN or not name.startswith((".", "__")))
        for name in names:
            path = Path(here, name)
            wanted = name == progress.FILE if own else path.suffix.lower() == ".json"
            if wanted and not name.startswith(".") and not path.is_symlink():
                yield path


def _name_of(inside: Path) -> str:
    """Return whose a file is: the learner's folder's name, else what the file's name says; "" where it says none."""
    first, *more = inside.parts
    return first if more and first != OWN else beside("" if more else inside.stem, "progress")


def _missing(folder: Path, paths: Sequence[Path], out: Path) -> list[str]:
    """Return the learners who have a folder and no progress file; the folder of the marks is no learner's."""
    files = [path.relative_to(folder) for path in paths]
    if any(file.parts[0] == OWN for file in files):
        return []  # it is a learner's own folder that was given
    named = {_name_of(file).casefold() for file in files}
    empty = folders_without(folder, [file.as_posix() for file in files], out)
    return [name for name in empty if name.casefold() not in named and not (folder / name / TABLE).is_file()]


def _learner(who: str, file: str, one: Progress, twice: bool) -> tuple[str, ...]:
    records = one.exercises
    before, after = _score(one, "before"), _score(one, "after")
    difference = f"{after - before:+d}" if before is not None and after is not None else NOTHING
    remarks = [f"calls itself {one.name}"] * bool(one.name and one.name != who)
    ahead = one.ahead(time.time())
    remarks += [f"noted at {ahead}, in the future: a clock was ahead"] if ahead else []
    remarks += [EDITED] * one.edited + ["more than one file"] * twice
    return (
        who,
        str(sum(map(_right, records))),
        str(sum(map(_tried, records))),
        str(sum(record.attempts for record in records)),
        str(sum(len(record.hints) for record in records)),
        str(sum(record.solution_seen is not None for record in records)),
        str(sum(record.minutes for record in records)),
        _shown(one, "before", before),
        _shown(one, "after", after),
        difference,
        file,
        "; ".join(remarks),
    )


def _score(one: Progress, when: str) -> int | None:
    """Return what a quiz has scored, None where it was not handed in."""
    quiz = one.quiz.get(when)
    return quiz.score if quiz is not None and quiz.finished else None


def _shown(one: Progress, when: str, score: int | None) -> str:
    if score is not None:
        return f"{score} of {one.quiz[when].asked}"
    return "begun" if when in one.quiz else NOTHING


def _exercise(problem: Problem, found: Sequence[Progress]) -> tuple[str, ...]:
    records: list[ExerciseRecord] = [record for one in found if (record := one.exercise(problem.id))]
    learners: Counter[str] = Counter()  # by how many a fault was met, which says more than how often
    for record in records:
        learners.update(record.faults.keys())
    return (
        problem.id,
        problem.title,
        str(sum(map(_right, records))),
        str(sum(map(_tried, records))),
        str(sum(record.attempts for record in records)),
        str(sum(record.solution_seen is not None for record in records)),
        most_common(learners),
    )


def _right(record: ExerciseRecord) -> bool:
    """Return whether it was right once; a learner may try other things afterwards."""
    return record.first_right is not None


def _tried(record: ExerciseRecord) -> bool:
    return record.first_right is None and record.attempts > 0
