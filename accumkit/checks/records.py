"""What is noted of a learner's way: exercises and quizzes as plain data, and how two notes become one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime

from accumkit.checks.outcome import NOT_ATTEMPTED
from accumkit.checks.quiz import WHEN, score

PAUSE = 20 * 60  # seconds; who is away for longer than that was not at work
TIME = "%Y-%m-%dT%H:%M:%SZ"
DAY = 24 * 3600  # seconds that the clocks of two computers may differ
MOST = 10**9  # a count or a number of seconds that no learner comes to: there it stays, and the file can be read


@dataclass(frozen=True)
class ExerciseRecord:
    """What is known of one exercise that was touched. Times are UTC, to the second: "2026-11-29T20:41:17Z".

    Parameters
    ----------
    id : str
        "01a".
    attempts : int
        How often something was checked that is not the exercise as given.
    status : {"not attempted", "not yet", "right"}
        Of the last attempt.
    first, last : str
        When it was touched: a check, a hint or the solution.
    first_right : str or None
    faults : dict of str to int
        In how many attempts a check named each fault.
    hints : tuple of int
        The numbers of the hints that were seen.
    solution_seen : str or None
        When first.
    seconds : int
        At work until it was right for the first time, pauses longer than `PAUSE` left out.

    Examples
    --------
    >>> from accumkit.checks.records import ExerciseRecord
    >>> ExerciseRecord("01a", 2, "not yet", "2026-11-29T20:41:17Z", "2026-11-29T20:44:00Z", seconds=163).minutes
    3
    """

    id: str
    attempts: int
    status: str
    first: str
    last: str
    first_right: str | None = None
    faults: dict[str, int] = field(default_factory=dict)
    hints: tuple[int, ...] = ()
    solution_seen: str | None = None
    seconds: int = 0

    @property
    def solved(self) -> bool:
        """Whether it has been right: a later attempt, to see what breaks it, takes nothing away."""
        return self.first_right is not None

    @property
    def minutes(self) -> int:
        """Minutes at work, rounded up."""
        return -(-self.seconds // 60)

    def then(self, later: ExerciseRecord) -> ExerciseRecord:
        """Return what is known after ``later``, which may come from another notebook, was noted too."""
        first, last = min(self.first, later.first), max(self.last, later.last)
        seconds = self.seconds
        if self.first_right is None:
            gap = span(self.last, later.first)
            seconds += later.seconds + (gap if 0 < gap <= PAUSE else 0)
        faults = Counter(self.faults) + Counter(later.faults)
        return ExerciseRecord(
            id=self.id,
            attempts=min(MOST, self.attempts + later.attempts),
            status=later.status if later.attempts else self.status,
            first=first,
            last=last,
            first_right=_earlier(self.first_right, later.first_right),
            faults={fault: min(MOST, count) for fault, count in sorted(faults.items())},
            hints=tuple(sorted({*self.hints, *later.hints})),
            solution_seen=_earlier(self.solution_seen, later.solution_seen),
            seconds=min(seconds, span(first, last), MOST),  # a clock that was set back counts nothing twice
        )


@dataclass(frozen=True)
class QuizRecord:
    """The answers to the quiz, before or after the lessons.

    Parameters
    ----------
    answers : dict of str to str
        The key of the choice, by the question's slug.
    score : int
        Right answers among them.
    asked : int
        Questions that there are.
    first, last : str
        When it was begun, and answered last; UTC.
    finished : str or None
        When it was handed in; None while answers may still change.
    """

    answers: dict[str, str]
    score: int
    asked: int
    first: str
    last: str
    finished: str | None = None

    def then(self, later: QuizRecord) -> QuizRecord:
        """Return what is known after ``later``; what was handed in stays as it is."""
        if self.finished is not None:
            return self
        answers = self.answers | later.answers
        first, last = min(self.first, later.first), max(self.last, later.last)
        return QuizRecord(answers, score(answers), later.asked, first, last, later.finished and last)


@dataclass(frozen=True, repr=False)
class Progress:
    """All that is noted of one learner.

    Parameters
    ----------
    name : str
        What the learner is called; "" where nobody said.
    exercises : tuple of ExerciseRecord
        Those that were touched, by id.
    quiz : dict of str to QuizRecord
        "before" and "after", each where it was begun.
    edited : bool
        The file was changed by hand at some time, and used on.
    kit : str
        The version of accumkit that wrote last.

    Examples
    --------
    >>> from accumkit.checks.records import ExerciseRecord, Progress
    >>> time = "2026-11-29T20:41:17Z"
    >>> progress = Progress(exercises=(ExerciseRecord("01a", 1, "right", time, time, time, seconds=0),))
    >>> progress
    1 exercise touched, 1 right; quiz before: not taken; quiz after: not taken
    >>> progress.then(progress).exercise("01a").attempts
    2
    """

    name: str = ""
    exercises: tuple[ExerciseRecord, ...] = ()
    quiz: dict[str, QuizRecord] = field(default_factory=dict)
    edited: bool = False
    kit: str = ""

    @property
    def first(self) -> str | None:
        """When something was noted first; None where nothing is."""
        return min((one.first for one in self._all), default=None)

    @property
    def last(self) -> str | None:
        """When something was noted last; None where nothing is."""
        return max((one.last for one in self._all), default=None)

    @property
    def right(self) -> int:
        """How many exercises are right now."""
        return sum(one.solved for one in self.exercises)

    @property
    def _all(self) -> list[ExerciseRecord | QuizRecord]:
        return [*self.exercises, *self.quiz.values()]

    @property
    def late_for_before(self) -> bool:
        """Whether the quiz after the lessons was handed in, and the one before them was not: it would say nothing."""
        before, after = (self.quiz.get(when) for when in WHEN)
        return bool(after and after.finished) and not (before and before.finished)

    def ahead(self, now: float) -> str | None:
        """Return the latest time in it where that is in the future, by more than clocks may differ; else None."""
        return self.last if self.last is not None and self.last > moment(now + DAY) else None

    def exercise(self, id: str) -> ExerciseRecord | None:
        """Return what is known of an exercise; None where it was not touched."""
        return next((one for one in self.exercises if one.id == id), None)

    def then(self, later: Progress) -> Progress:
        """Return what is known after ``later`` was noted too: attempts add up, what was seen stays seen."""
        exercises = {one.id: one for one in self.exercises}
        for one in later.exercises:
            exercises[one.id] = exercises[one.id].then(one) if one.id in exercises else one
        quizzes = dict(self.quiz)
        for when, one in later.quiz.items():
            if when == "before" and self.late_for_before:
                continue  # the answers are known by now
            quizzes[when] = quizzes[when].then(one) if when in quizzes else one
        return Progress(
            name=later.name or self.name,
            exercises=tuple(exercises[id] for id in sorted(exercises)),
            quiz={when: quizzes[when] for when in WHEN if when in quizzes},
            edited=self.edited or later.edited,
            kit=later.kit or self.kit,
        )

    def __repr__(self) -> str:
        touched = "1 exercise" if len(self.exercises) == 1 else f"{len(self.exercises)} exercises"
        said = [f"{self.name}: " * bool(self.name) + f"{touched} touched, {self.right} right"]
        said += [f"quiz {when}: {quiz_words(self.quiz.get(when))}" for when in WHEN]
        return "; ".join(said)


def blank(id: str, now: str) -> ExerciseRecord:
    """Return the record of an exercise that was looked at, and no more."""
    return ExerciseRecord(id, 0, NOT_ATTEMPTED, now, now)


def moment(at: float) -> str:
    """Return a time in seconds since 1970 as records hold it."""
    return datetime.fromtimestamp(at, UTC).strftime(TIME)


def span(earlier: str, later: str) -> int:
    """Return the seconds between two times of records."""
    return round((datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds())


def _earlier(one: str | None, other: str | None) -> str | None:
    return min(filter(None, (one, other)), default=None)


def quiz_words(record: QuizRecord | None) -> str:
    """Return how a quiz went: not taken, so many answered, or so many right."""
    if record is None:
        return "not taken"
    if record.finished is None:
        return f"{len(record.answers)} of {record.asked} answered"
    return f"{record.score} of {record.asked} right"
