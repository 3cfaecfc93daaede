"""Exercise 05d: six runs with a scaler, a clip and a schedule, known from what they logged."""

from __future__ import annotations

from dataclasses import dataclass
from math import frexp, isfinite
from typing import Any

from accumkit.audit.findings import number
from accumkit.checks.outcome import Outcome
from accumkit.checks.problem import Problem, WrongAnswer
from accumkit.checks.questions import Question, Slip, judged
from accumkit.checks.scaler_runs import RIGHT, Row, logged
from accumkit.studies import table

RUNS = {
    "A": "scale-changed-in-window",
    "B": RIGHT,
    "C": "skipped-update",
    "D": "clip-before-unscale",
    "E": "clip-every-micro-batch",
    "F": "missing-scaler-update",
}
CHOICES = (*sorted(slug for slug in RUNS.values() if slug != RIGHT), RIGHT)
ROWS = ("first", "second", "third", "fourth")
HEAD = ("window", "scale of each micro-batch", "clip saw", "clip made it", "one example weighs", "step", "schedule")

ANSWER = """\
### BEGIN SOLUTION
answer = dict(
    A="scale-changed-in-window",
    B="right",
    C="skipped-update",
    D="clip-before-unscale",
    E="clip-every-micro-batch",
    F="missing-scaler-update",
)
### INSTEAD OF
# answer = dict(A=..., B=..., C=..., D=..., E=..., F=...)
### END SOLUTION
"""

HINTS = (
    "All six skip the step of their first row, and that is no fault: the scale began too high. For each run, find the "
    "first entry that a right run would not have.",
    "Compare columns from run to run, not only rows: the six differ in nothing but their fault. One of them differs "
    "from a right run in its first row alone.",
    "What each fault leaves in the log.\n\n"
    """
    # scale-changed-in-window  two scales in one row
    # skipped-update           the schedule moves where a step is skipped
    # missing-scaler-update    skipped again and again, at one scale
    # clip-before-unscale      the clip saw a norm almost as large as the scale
    # clip-every-micro-batch   weights that rise within a row
    """,
)

PRAISE = (
    "six runs, told from numbers that any training loop can log: the scale, the norm that the clip returns, and "
    "whether the step was made."
)

# What is taken for what, and why that is easy to do.
MIXED_UP = {
    ("clip-before-unscale", RIGHT): "fair-but-tiny",
    ("scale-changed-in-window", "clip-every-micro-batch"): "falling-not-rising",
    ("clip-every-micro-batch", "scale-changed-in-window"): "rising-not-falling",
    ("skipped-update", "missing-scaler-update"): "scale-that-falls",
    ("missing-scaler-update", "skipped-update"): "scale-that-stays",
    ("skipped-update", RIGHT): "schedule-overlooked",
    (RIGHT, "clip-before-unscale"): "true-norm-suspected",
    (RIGHT, "skipped-update"): "skip-as-fault",
}

MORE = {
    ("missing-scaler-update", RIGHT): "Is there a row whose step was made?",
    ("skipped-update", "scale-changed-in-window"): "The scale may change between rows: so a scaler adapts.",
    ("skipped-update", RIGHT): "A skipped step is no fault. But what moved in the row in which it was skipped?",
    (RIGHT, "skipped-update"): "A skipped step is no fault by itself.",
    ("clip-before-unscale", RIGHT): "Which column is not of the same size?",
    (
        "missing-scaler-update",
        "skipped-update",
    ): "What does the scale do after a skipped step in it, and what in yours?",
}


@dataclass(frozen=True, repr=False)
class Logs:
    """What the runs logged; prints as a table for each."""

    names: tuple[str, ...] = tuple(RUNS)

    def __repr__(self) -> str:
        return "\n\n".join(f"Run {name}\n{table.plain(*_table(RUNS[name]))}" for name in self.names)

    def _repr_html_(self) -> str:
        tables = {name: table.html(*_table(RUNS[name])) for name in self.names}
        return "".join(f"<p><strong>Run {name}</strong></p>{shown}" for name, shown in tables.items())


def runs() -> Logs:
    """Return what the six runs logged.

    Examples
    --------
    >>> from accumkit.checks import scaler_mystery as q
    >>> q.runs().names
    ('A', 'B', 'C', 'D', 'E', 'F')
    """
    return Logs()


def _table(slug: str) -> tuple[tuple[str, ...], list[tuple[str, ...]], str]:
    return HEAD, _cells(slug), ""


def _cells(slug: str) -> list[tuple[str, ...]]:
    """Return a run's table, a tuple for each window."""
    return [(str(n), *_row(row)) for n, row in enumerate(logged(slug), 1)]


def _row(row: Row) -> tuple[str, ...]:
    return (
        " ".join(f"2^{frexp(scale)[1] - 1}" for scale in row.scales),
        _two(row.saw),
        _two(row.made),
        " ".join("-" if weight is None else f"{weight:.1g}" for weight in row.weights),
        "made" if row.stepped else "skipped",
        "moved" if row.scheduled else "-",
    )


def _two(value: float) -> str:
    """Return a number with two digits that count, which hold on every machine."""
    return number(float(f"{value:.1e}")) if isfinite(value) else "not finite"


def _judge(attempt: Any) -> Outcome:
    questions = [
        Question(name, slug, "", [_slip(name, slug, guess) for guess in CHOICES if guess != slug], choices=CHOICES)
        for name, slug in RUNS.items()
    ]
    return judged(attempt, questions, PRAISE)


def _slip(name: str, slug: str, guess: str) -> Slip:
    """Return what is said of a guess: what the log would hold, were it right, in a row that tells."""
    pairs = list(zip(_cells(slug), _cells(guess), strict=True))
    n = next(n for n in (1, 0, 2, 3) if pairs[n][0] != pairs[n][1])  # the second has more to say than the first
    row = pairs[n][1]
    cells = "; ".join(f"{head} {cell}" for head, cell in list(zip(HEAD, row, strict=True))[1:])
    what = "A right run" if guess == RIGHT else f"A run with {guess}"
    says = f"{what} has this in its {ROWS[n]} row: {cells}. Compare that with run {name}. {MORE.get((slug, guess), '')}"
    return Slip(guess, MIXED_UP.get((slug, guess), f"not-{guess}"), says.rstrip())


def _with(**guesses: str) -> str:
    """Return an answer with some guesses that are wrong."""
    said = ", ".join(f"{name}={guesses.get(name, slug)!r}" for name, slug in RUNS.items())
    return f"answer = dict({said})\n"


WRONG_ANSWERS = (
    # a flat loss with gradients that all weigh the same was the first report of it
    WrongAnswer("fair-but-tiny", _with(D=RIGHT)),
    WrongAnswer("true-norm-suspected", _with(B="clip-before-unscale", D=RIGHT)),
    WrongAnswer("falling-not-rising", _with(A="clip-every-micro-batch")),
    WrongAnswer("rising-not-falling", _with(E="scale-changed-in-window")),
    WrongAnswer("scale-that-falls", _with(C="missing-scaler-update")),
    WrongAnswer("scale-that-stays", _with(F="skipped-update")),
    WrongAnswer("schedule-overlooked", _with(C=RIGHT)),
    WrongAnswer("skip-as-fault", _with(B="skipped-update", C=RIGHT)),
    WrongAnswer("not-scale-changed-in-window", _with(C="scale-changed-in-window")),
)

PROBLEM = Problem(
    id="05d",
    title="Name the fault from the log",
    kind="mystery",
    minutes=10,
    difficulty="hard",
    asks="answer",
    answer=ANSWER,
    hints=HINTS,
    judge=_judge,
    wrong_answers=WRONG_ANSWERS,
)

check, hint, solution = PROBLEM.check, PROBLEM.hint, PROBLEM.solution
