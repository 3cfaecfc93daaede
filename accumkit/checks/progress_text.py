"""The text of a progress file: written with a checksum, read back field by field."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from accumkit.checks.outcome import NOT_ATTEMPTED, NOT_YET, RIGHT
from accumkit.checks.quiz import WHEN
from accumkit.checks.records import MOST, ExerciseRecord, Progress, QuizRecord
from accumkit.errors import AccumkitError

FORMAT = 1
WHAT = "accumkit progress"
LARGEST = 1_000_000  # bytes; a learner's whole way takes some thousand
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class NewerFormatError(AccumkitError):
    """A progress file of a later accumkit, which this one must leave as it is."""


def text_of(progress: Progress) -> str:
    """Return the whole text of a progress file, checksum included.

    The checksum tells a file that was changed by hand or by accident from one that was not. It proves nothing against
    somebody who wants to forge: whoever reads these lines can work one out.

    Parameters
    ----------
    progress : Progress

    Returns
    -------
    str

    Examples
    --------
    >>> from accumkit.checks.progress_text import parsed, text_of
    >>> from accumkit.checks.records import Progress
    >>> parsed(text_of(Progress(name="Ada")).encode()).name
    'Ada'
    """
    content = {
        "what": WHAT,
        "format": FORMAT,
        "kit": progress.kit,
        "name": progress.name,
        "edited": progress.edited,
        "exercises": {one.id: {key: _plain(one, key) for key in _EXERCISE} for one in progress.exercises},
        "quiz": {when: {key: _plain(one, key) for key in _QUIZ} for when, one in progress.quiz.items()},
    }
    parts = [
        f"{json.dumps(key)}: {_lines(value)}" for key, value in (content | {"checksum": checksum(content)}).items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def checksum(content: dict[str, Any]) -> str:
    """Return the checksum of a file's content; one that it holds itself does not count."""
    counted = {key: value for key, value in content.items() if key != "checksum"}
    plain = json.dumps(counted, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()


def parsed(data: bytes, trusting: bool = False) -> Progress:
    """Return what a progress file says.

    Parameters
    ----------
    data : bytes
        The file's content.
    trusting : bool
        Take a file whose checksum does not fit, and note that it was edited.

    Returns
    -------
    Progress

    Raises
    ------
    NewerFormatError
        A later accumkit wrote it.
    AccumkitError
        It is no progress file, or not a whole one.
    """
    content = _json(data)
    if not isinstance(content, dict) or content.get("what") != WHAT:
        raise AccumkitError("it is no progress file of accumkit, but JSON of another kind")
    version = content.get("format")
    if type(version) is not int or version < 1:
        raise AccumkitError(f"its format is {_short(version)}; a whole number from 1 is needed")
    if version > FORMAT:
        raise NewerFormatError(
            f"it was written by a newer accumkit (format {version}, and this one knows {FORMAT}); update accumkit here"
        )
    fits = content.get("checksum") == checksum(content)
    if not fits and not trusting:
        raise AccumkitError("its checksum does not fit: it was changed by hand, or by accident, after it was written")
    return Progress(
        name=_field(content, "name", "the file", _text),
        exercises=tuple(_exercise(id, one) for id, one in sorted(_field(content, "exercises", "the file").items())),
        quiz={when: _quiz(when, one) for when, one in _field(content, "quiz", "the file").items()},
        edited=_field(content, "edited", "the file", lambda value: isinstance(value, bool)) or not fits,
        kit=_field(content, "kit", "the file", _text),
    )


def _json(data: bytes) -> Any:
    if len(data) > LARGEST:
        raise AccumkitError(f"it has {len(data):,} bytes, and no progress file has more than {LARGEST:,}")
    try:
        text = data.decode("utf-8-sig").strip()  # some editors put a mark in front
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as cause:
        if not data.strip(b" \t\r\n\0"):
            raise AccumkitError("it is empty: whoever wrote it was cut off") from cause
        if data.lstrip().startswith(b"{") and not data.rstrip(b" \t\r\n\0").endswith(b"}"):
            raise AccumkitError("it is half-written: it ends in the middle") from cause
        raise AccumkitError(f"it is not JSON ({str(cause)[:80]})") from cause


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _exercise(id: str, given: Any) -> ExerciseRecord:
    if not _text(id):
        raise AccumkitError(f"it has an exercise {_short(id)}")
    held = {key: _field(given, key, f"exercise {_short(id)}", fits) for key, fits in _EXERCISE.items()}
    return ExerciseRecord(id=id, **held | {"hints": tuple(held["hints"])})


def _quiz(when: str, given: Any) -> QuizRecord:
    if when not in WHEN:
        raise AccumkitError(f"it has a quiz {_short(when)}; there is one before and one after the lessons")
    return QuizRecord(**{key: _field(given, key, f"the quiz {when}", fits) for key, fits in _QUIZ.items()})


def _field(given: Any, key: str, where: str, fits: Callable[[Any], bool] | None = None) -> Any:
    """Return one value of a part of the file, checked."""
    if not isinstance(given, dict) or key not in given:
        raise AccumkitError(f"{where} has no {key!r}")
    value = given[key]
    if not (isinstance(value, dict) if fits is None else fits(value)):
        raise AccumkitError(f"{where} has {key} = {_short(value)}, which cannot be")
    return value


def _lines(value: Any) -> str:
    """Return JSON that people can read too: an exercise a line; an indent for all of it would take longer."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value)
    return "{\n" + ",\n".join(f" {json.dumps(key)}: {json.dumps(inside)}" for key, inside in value.items()) + "\n}"


def _plain(record: Any, key: str) -> Any:
    value = getattr(record, key)
    return list(value) if isinstance(value, tuple) else value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 200 and value.isprintable()


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST


def _moment(value: Any) -> bool:
    if not isinstance(value, str) or not MOMENT.fullmatch(value):
        return False
    try:
        return math.isfinite(datetime.fromisoformat(value).timestamp())
    except (ValueError, OverflowError, OSError):
        return False


def _moment_or_none(value: Any) -> bool:
    return value is None or _moment(value)


def _of(key: Callable[[Any], bool], value: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda given: isinstance(given, dict) and all(map(key, given)) and all(map(value, given.values()))


# What each part of the file holds, and what a value has to be for it.
_EXERCISE: dict[str, Callable[[Any], bool]] = {
    "attempts": _count,
    "status": lambda value: value in (NOT_ATTEMPTED, NOT_YET, RIGHT),
    "first": _moment,
    "last": _moment,
    "first_right": _moment_or_none,
    "faults": _of(_text, _count),
    "hints": lambda value: isinstance(value, list) and all(map(_count, value)),
    "solution_seen": _moment_or_none,
    "seconds": _count,
}
_QUIZ: dict[str, Callable[[Any], bool]] = {
    "answers": _of(_text, _text),
    "score": _count,
    "asked": _count,
    "first": _moment,
    "last": _moment,
    "finished": _moment_or_none,
}
