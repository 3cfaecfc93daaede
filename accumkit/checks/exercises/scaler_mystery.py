"""Exercise 05d: five runs with a scaler or a clip, known from what they logged."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from accumkit import pitfalls
from accumkit.audit.findings import number
from accumkit.checks.outcome import Outcome
from accumkit.checks.problem import Problem, WrongAnswer
from accumkit.checks.questions import Question, Slip, judged
from accumkit.studies import table
from accumkit.trace.record import Trace, Update

RIGHT, LIMIT = "right", 0.1  # what the loops clip to
RUNS = {
    "A": "scale-changed-in-window",
    "B": RIGHT,
    "C": "skipped-update",
    "D": "clip-before-unscale",
    "E": "clip-every-micro-batch",
    "F": "missing-scaler-update",
}
CHOICES = (*sorted(slug for slug in RUNS.values() if slug != RIGHT), RIGHT)
HEAD = ("update", "scale of each micro-batch", "clip saw", "clip made it", "one example weighs", "step", "schedule")

ANSWER = """\
answer = dict(A=..., B=..., C=..., D=..., E=..., F=...)
### BEGIN SOLUTION
answer.update(A="scale-changed-in-window", B="right", C="skipped-update")
answer.update(D="clip-before-unscale", E="clip-every-micro-batch", F="missing-scaler-update")
### END SOLUTION
"""

HINTS = (
    "For each run, find the first number that a right run would not have. Steps that are skipped now and then are no "
    "fault by themselves.",
    "Three columns tell most: a scale that changes within a row; what the clip saw, beside other runs of the same "
    "model; and whether the schedule moved in a row whose step was skipped.",
    "What each fault leaves in the log.\n\n"
    """
    # scale-changed-in-window  two scales in one row
    # skipped-update           the schedule moves where a step is skipped
    # missing-scaler-update    skipped again and again, at one scale
    # clip-before-unscale      the clip saw a norm about as large as the scale
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
}

MORE = {
    ("missing-scaler-update", RIGHT): "Is there a row whose step was made?",
    ("skipped-update", "scale-changed-in-window"): "The scale may change between rows: so a scaler adapts.",
    ("skipped-update", RIGHT): "A skipped step is no fault. But what moved in the rows in which a step was skipped?",
    ("clip-before-unscale", RIGHT): "Which column is not of the same size?",
    (
        "missing-scaler-update",
        "skipped-update",
    ): "What does the scale do after a skipped step in it, and what in yours?",
}


@functools.cache
def _trace(slug: str) -> Trace:
    """Run a pitfall, or the right loop with a scaler, on the data that all runs share."""
    simulation = pitfalls.simulate("clip-before-unscale" if slug == RIGHT else slug, examples=32, epochs=2)
    return simulation.right_trace if slug == RIGHT else simulation.trace


@dataclass(frozen=True, repr=False)
class Logs:
    """What the runs logged; prints as a table for each."""

    names: tuple[str, ...] = tuple(RUNS)

    def __repr__(self) -> str:
        return "\n\n".join(f"Run {name}\n{table.plain(*_table(_trace(RUNS[name])))}" for name in self.names)

    def _repr_html_(self) -> str:
        tables = {name: table.html(*_table(_trace(RUNS[name]))) for name in self.names}
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


def _table(trace: Trace) -> tuple[tuple[str, ...], list[tuple[str, ...]], str]:
    return HEAD, [_row(trace, update) for update in trace.updates], ""


def _row(trace: Trace, update: Update) -> tuple[str, ...]:
    saw = None if update.clip_factor is None else update.grad_norm * update.clip_scale
    last = update.micro_batches[-1].index
    scheduled = any(e.kind == "scheduler step" and e.micro_batch == last for e in trace.events)
    return (
        str(update.index + 1),
        " ".join("-" if m.scale is None else number(m.scale) for m in update.micro_batches),
        "-" if saw is None else _two(saw),
        "-" if saw is None else _two(saw * update.clip_factor),
        " ".join("-" if m.weight is None else f"{m.weight:.2g}" for m in update.micro_batches),
        "skipped" if update.skipped else "made",
        "moved" if scheduled else "-",
    )


def _two(value: float) -> str:
    """Return a number with two digits that count, which hold on every machine."""
    return number(float(f"{value:.1e}"))


def _judge(attempt: Any) -> Outcome:
    questions = [
        Question(name, slug, "", [_slip(name, slug, guess) for guess in CHOICES if guess != slug], choices=CHOICES)
        for name, slug in RUNS.items()
    ]
    return judged(attempt, questions, PRAISE)


def _slip(name: str, slug: str, guess: str) -> Slip:
    """Return what is said of a guess: what the log would hold, were it right."""
    trace = _trace(guess)
    row = dict(zip(HEAD, _row(trace, trace.updates[1]), strict=True))
    cells = "; ".join(f"{head} {row[head]}" for head in HEAD[1:] if row[head] != "-")
    what = "A right run" if guess == RIGHT else f"A run with {guess}"
    says = f"{what} has this in its second row: {cells}. Compare that with run {name}. {MORE.get((slug, guess), '')}"
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
