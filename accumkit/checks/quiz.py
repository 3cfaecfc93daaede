"""The quiz before and after the lessons: how its answers are scored, and what is said of them in the end."""

from __future__ import annotations

from collections.abc import Mapping

from accumkit.checks.quiz_questions import QUESTIONS, Choice, QuizQuestion
from accumkit.errors import AccumkitError

__all__ = [
    "DO_NOT_KNOW",
    "QUESTIONS",
    "UNSURE",
    "WHEN",
    "Choice",
    "QuizQuestion",
    "changed",
    "check_when",
    "score",
    "told",
]

WHEN = ("before", "after")  # the lessons
UNSURE = "unsure"  # the key of "I do not know", which every question has: guesses would say nothing
DO_NOT_KNOW = "I do not know yet."


def check_when(when: object) -> str:
    """Return ``when``, or say what it may be.

    Raises
    ------
    AccumkitError
    """
    if when not in WHEN:
        raise AccumkitError(f'the quiz of {when!r}: give "before" (the lessons) or "after"')
    return when


def score(answers: Mapping[str, str]) -> int:
    """Return how many answers are right.

    Parameters
    ----------
    answers : mapping of str to str
        The key of the choice, by the question's slug; questions that this version does not have count nothing.

    Returns
    -------
    int

    Examples
    --------
    >>> from accumkit.checks import quiz
    >>> quiz.score({"missing-division": "four", "warm-up": "late", "batchnorm": quiz.UNSURE})
    1
    """
    return sum(answers.get(question.slug) == question.right.key for question in QUESTIONS)


def told(question: QuizQuestion, key: str | None) -> tuple[str, str, str]:
    """Return a verdict on an answer, what speaks against it, and what is right.

    Parameters
    ----------
    question : QuizQuestion
    key : str or None
        Of the choice; `UNSURE` or None for none.

    Returns
    -------
    tuple of str
        "right", "not right" or "not known"; then sentences, of which the first may be empty.

    Examples
    --------
    >>> from accumkit.checks import quiz
    >>> quiz.told(quiz.QUESTIONS[0], "same")
    ('right', '', 'The gradient of a sum is the sum of the gradients, in any grouping. Lesson 01 shows it.')
    """
    chosen, right = question.choice(key), question.right
    why = f"{right.why} Lesson {question.lesson} shows it."
    if chosen is right:
        return "right", "", why
    answer = f"Right is: {right.text} {why}"
    return ("not known", "", answer) if chosen is None else ("not right", chosen.why, answer)


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return in words how answers after the lessons differ from those before.

    Examples
    --------
    >>> from accumkit.checks import quiz
    >>> quiz.changed({"warm-up": "late"}, {"warm-up": "early", "batchnorm": "turned"})
    'Right before: 0 of 8. Right now: 2 of 8. That is 2 more. Right now and not before: 6 and 7.'
    """
    was, now = score(before), score(after)
    more = f"{now - was} more" if now > was else f"{was - now} fewer" if now < was else "as many"
    said = [f"Right before: {was} of {len(QUESTIONS)}. Right now: {now} of {len(QUESTIONS)}. That is {more}."]
    for words, old, new in (("Right now and not before", before, after), ("Right before and not now", after, before)):
        turned = [
            str(number)
            for number, question in enumerate(QUESTIONS, 1)
            if new.get(question.slug) == question.right.key != old.get(question.slug)
        ]
        if turned:
            said.append(f"{words}: {' and '.join([', '.join(turned[:-1]), turned[-1]] if turned[:-1] else turned)}.")
    return " ".join(said)
