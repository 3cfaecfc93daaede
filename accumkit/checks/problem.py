"""An exercise: a stub, hints, a check with three outcomes, a solution, and the wrong answers it must tell apart."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from accumkit.checks import recording
from accumkit.checks.guarded import told
from accumkit.checks.outcome import NOT_ATTEMPTED, NOT_YET, Outcome
from accumkit.checks.stubs import cut_solution, is_as_given, is_blank, solved
from accumkit.checks.values import exact
from accumkit.errors import AccumkitError
from accumkit.modes import as_new

LEVELS = ("easy", "medium", "hard")
FAULT = re.compile(r"\(([a-z0-9]+(?:-[a-z0-9]+)*)\)$")
KINDS = ("write", "mend", "predict", "choose", "read", "mystery")

STRICT = False  # True in the kit's own tests: a judge that raises over a plain answer is a fault of the judge
ODD = (
    "Give a function of your own, or numbers, texts and lists, as the exercise asks. If that is what you gave, the "
    "fault is the check's, not yours."
)


@dataclass(frozen=True)
class WrongAnswer:
    """A plausible wrong answer, kept to prove that the check names its fault."""

    fault: str  # what its diagnosis must name, in parentheses: a slug of the catalog, or a word for a slip in thinking
    source: str


@dataclass(frozen=True)
class Problem:
    r"""One exercise, whole: what a learner sees, and what proves that its check can be trusted.

    Parameters
    ----------
    id : str
        The lesson's two digits and a letter, as in the names of its notebooks: "01a".
    title : str
    kind : {"write", "mend", "predict", "choose", "read", "mystery"}
    minutes : int
        What a first reader needs.
    difficulty : {"easy", "medium", "hard"}
    asks : str
        The name that the learner's answer has in the notebook: a function such as ``train``, or ``answer``.
    answer : str
        The solution's source, with the lines that a learner is to write between `BEGIN` and `END`; where something is
        to be mended, what the learner finds there stands between them too, after `INSTEAD` and commented out.
    hints : tuple of str
        From a nudge to almost the answer; what follows an empty line is code.
    judge : callable
        From the learner's object to an `Outcome`; it should not raise over what a learner wrote, and where it does all
        the same, the answer is "not yet".
    wrong_answers : tuple of WrongAnswer
        Sources like ``answer``.
    imports : str
        The notebook's imports, which an answer's source stands on.

    Raises
    ------
    AccumkitError
        An unknown kind or difficulty.

    Examples
    --------
    >>> from accumkit.checks.problem import Outcome, Problem
    >>> problem = Problem("00a", "Say one", "write", 1, "easy", "one",
    ...                   "def one():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION\n",
    ...                   ("It is a number.",), lambda one: Outcome("right", "yes."))
    >>> print(problem.stub)
    def one():
        ...  # your answer here
    <BLANKLINE>
    >>> problem.hint(1)
    Hint: It is a number. (1 of 1)
    """

    id: str
    title: str
    kind: str
    minutes: int
    difficulty: str
    asks: str
    answer: str
    hints: tuple[str, ...]
    judge: Callable[[Any], Outcome]
    wrong_answers: tuple[WrongAnswer, ...] = ()
    imports: str = ""

    def __post_init__(self) -> None:
        if self.difficulty not in LEVELS:
            raise AccumkitError(f"difficulty={self.difficulty!r}: give one of {', '.join(LEVELS)}")
        if self.kind not in KINDS:
            raise AccumkitError(f"kind={self.kind!r}: give one of {', '.join(KINDS)}")

    @property
    def stub(self) -> str:
        """What the exercise starts from: the answer without the lines between the marks, or the lines to be mended."""
        return cut_solution(self.answer)

    @property
    def solution_source(self) -> str:
        """The answer without the marks: source that runs."""
        return solved(self.answer)

    def check(self, attempt: Any) -> Outcome:
        """Say whether ``attempt`` is right, and if not, what is wrong with it; note it in the learner's progress."""
        outcome = self.examine(attempt)
        if self._of_the_course:
            recording.attempt(self.id, outcome.status, _faults(outcome, self.wrong_answers))
        return outcome

    def examine(self, attempt: Any) -> Outcome:
        """Return what `check` says, and note nothing: for graders and tests.

        It runs with torch's modes as in a new session, whatever the notebook has set.
        """
        try:
            with as_new():
                return self._examined(exact(attempt) if issubclass(type(attempt), dict) else attempt)
        except AccumkitError as refused:  # not even a function, say: as much a part of learning as a wrong loop
            return Outcome(NOT_YET, f"{refused}.")
        except (Exception, SystemExit) as error:  # what a learner made may raise anything over being looked at
            if STRICT:
                raise
            return Outcome(NOT_YET, f"this answer cannot be judged: it raised {told(error)}. {ODD}")

    def _examined(self, attempt: Any) -> Outcome:
        if is_blank(attempt):
            said = "put your answer in the cell above, run it, then run this cell again."
            return Outcome(NOT_ATTEMPTED, f"`None` was given: {said}" if attempt is None else said)
        if isinstance(attempt, str) and attempt == self.asks:
            return Outcome(NOT_YET, f"that is a name in quotes. Give what it stands for: `q.check({self.asks})`.")
        if self.kind == "mend" and is_as_given(attempt, self.stub, self.imports):
            said = "as it is given. Change what is wrong in the cell above, run it, then run this cell again."
            return Outcome(NOT_ATTEMPTED, f"`{self.asks}` is still {said}")
        return self.judge(attempt)

    def hint(self, n: int = 1) -> Outcome:
        """Return hint ``n``, counting from 1, each saying more than the one before; for another n, which there are."""
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= len(self.hints):
            last = len(self.hints)
            which = "one hint, `q.hint(1)`" if last == 1 else f"{last} hints, `q.hint(1)` to `q.hint({last})`"
            return Outcome("hint", f"there are {which}; `q.solution()` shows one right answer.")
        if self._of_the_course:
            recording.hint(self.id, n)
        lead, _, code = self.hints[n - 1].partition("\n\n")
        return Outcome("hint", f"{lead} ({n} of {len(self.hints)})", code=textwrap.dedent(code).strip("\n"))

    def solution(self) -> Outcome:
        """Return one right answer; there are others."""
        if self._of_the_course:
            recording.solution(self.id)
        return Outcome("solution", "one right answer; others are as good.", code=self.solution_source.rstrip("\n"))

    @property
    def _of_the_course(self) -> bool:
        """Whether it is one of the kit's own exercises; only those are noted."""
        own = [module for name, module in [*sys.modules.items()] if name.startswith(f"{__package__}.exercises.")]
        ids = [(problem.id, problem.title) for module in own if (problem := getattr(module, "PROBLEM", None))]
        return (self.id, self.title) in ids


def _faults(outcome: Outcome, known: tuple[WrongAnswer, ...]) -> set[str]:
    """Return the faults that an outcome names in parentheses: those at the end of a heading, and the known ones."""
    if outcome.status != NOT_YET:
        return set()
    headings = [heading for heading, *_ in outcome.items]
    ended = {found[1] for heading in headings if (found := FAULT.search(heading))}
    text = " ".join([outcome.lead, *(sentence for item in outcome.items for sentence in item)])
    return ended | {answer.fault for answer in known if f"({answer.fault})" in text}


def but(source: str, old: str, new: str) -> str:
    """Return ``source`` with the one place where it says ``old`` changed: a wrong answer from a right one.

    Raises
    ------
    ValueError
        ``old`` does not stand there exactly once.
    """
    if source.count(old) != 1:
        raise ValueError(f"{old!r} stands {source.count(old)} times in the source, not once")
    return source.replace(old, new)
