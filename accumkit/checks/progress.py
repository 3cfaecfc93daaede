"""A progress file read and checked: what a teacher's collection of such files stands on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from accumkit import checks
from accumkit.checks.outcome import NOT_ATTEMPTED, RIGHT
from accumkit.checks.progress_text import LARGEST, parsed, text_of
from accumkit.checks.quiz import QUESTIONS, UNSURE, score
from accumkit.checks.recording import FILE
from accumkit.checks.records import ExerciseRecord, Progress, QuizRecord, span
from accumkit.errors import AccumkitError

__all__ = ["FILE", "ExerciseRecord", "Progress", "QuizRecord", "read", "text_of", "why_impossible"]


def read(path: str | Path) -> Progress:
    """Read a progress file, and refuse one that cannot be relied on.

    The checksum in it tells a file that was changed by hand from one that was not, and what no learner can have done
    is refused too. This is no proof against somebody who wants to forge. Times in the future are no reason to refuse:
    the clock of a computer was ahead, and `Progress.ahead` says so.

    Parameters
    ----------
    path : str or Path
        Such as ``my-work/.accumkit/progress.json``.

    Returns
    -------
    Progress

    Raises
    ------
    AccumkitError
        The file is not there or cannot be read, is no progress file or not a whole one, was written by a newer
        accumkit, has another checksum, or holds what cannot be.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from accumkit.checks.progress import Progress, read, text_of
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "progress.json")
    ...     _ = file.write_text(text_of(Progress(name="Ada")))
    ...     read(file)
    Ada: 0 exercises touched, 0 right; quiz before: not taken; quiz after: not taken
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(LARGEST + 1)
    except (OSError, ValueError) as cause:  # ValueError: a path with a zero byte in it
        raise AccumkitError(f"{path} cannot be read ({cause})") from cause
    try:
        progress = parsed(data)
        for why in why_impossible(progress):
            raise AccumkitError(f"it holds what cannot be: {why}")
    except AccumkitError as refused:
        raise AccumkitError(f"{path}: {refused}") from refused
    return progress


def why_impossible(progress: Progress) -> Iterator[str]:
    """Yield what in a progress cannot be, each a sentence without its full stop.

    Examples
    --------
    >>> from accumkit.checks.progress import ExerciseRecord, Progress, why_impossible
    >>> time = "2026-01-31T12:00:00Z"
    >>> list(why_impossible(Progress(exercises=(ExerciseRecord("01a", 0, "right", time, time, time),))))
    ['exercise 01a is right without an attempt']
    """
    known = {problem.id: problem for problem in checks.problems().values()}
    for one in progress.exercises:
        name = f"exercise {one.id}"
        if one.id not in known:
            yield f"{name} is unknown: this accumkit has {', '.join(known)}; it may be older than the file"
            continue
        yield from (f"{name} {why}" for why in _attempts(one))
        inside = [("right for the first time", one.first_right), ("solution seen", one.solution_seen)]
        yield from (f"{name}: {why}" for why in _times(one.first, one.last, inside))
        if one.seconds > span(one.first, one.last):
            yield f"{name} took {one.seconds} seconds of {max(0, span(one.first, one.last))}"
    for when, one in progress.quiz.items():
        yield from (f"the quiz {when} {why}" for why in _answers(one, progress.kit))
        yield from (f"the quiz {when}: {why}" for why in _times(one.first, one.last, [("end", one.finished)]))


def _attempts(one: ExerciseRecord) -> Iterator[str]:
    if not one.attempts and (one.status == RIGHT or one.first_right):
        yield "is right without an attempt"
    elif not one.attempts and one.status != NOT_ATTEMPTED:
        yield f"is {one.status!r} without an attempt"
    elif one.attempts and one.status == NOT_ATTEMPTED:
        yield f"is {one.status!r} after {one.attempts} attempts"
    elif one.status == RIGHT and not one.first_right:
        yield "is right, and has never been right"
    for fault, count in one.faults.items():
        if not 1 <= count <= one.attempts:
            yield f"has the fault {fault} in {count} of {one.attempts} attempts"
    if list(one.hints) != sorted({*one.hints} - {0}):
        yield f"has the hints {list(one.hints)}"


def _times(first: str, last: str, inside: list[tuple[str, str | None]]) -> Iterator[str]:
    if last < first:
        yield f"the last time ({last}) is before the first ({first})"
    for what, at in inside:
        if at is not None and not first <= at <= last:
            yield f"{what} at {at}, which is not between {first} and {last}"


def _answers(one: QuizRecord, kit: str) -> Iterator[str]:
    if not one.score <= len(one.answers) <= one.asked:
        yield f"has {one.score} right of {len(one.answers)} answers to {one.asked} questions"
    elif one.finished and len(one.answers) < one.asked:
        yield f"was handed in with {len(one.answers)} answers to {one.asked} questions"
    elif kit == getattr(sys.modules.get("accumkit"), "__version__", ""):  # another version may ask otherwise
        keys = {question.slug: {UNSURE, *(choice.key for choice in question.choices)} for question in QUESTIONS}
        odd = [slug for slug, key in one.answers.items() if key not in keys.get(slug, ())]
        if odd:
            yield f"has an answer that nobody can give, to {odd[0]}"
        elif one.score != score(one.answers):
            yield f"has a score of {one.score} for answers that are worth {score(one.answers)}"
