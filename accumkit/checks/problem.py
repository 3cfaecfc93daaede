"""An exercise: a stub, hints, a check with three outcomes, a solution, and the wrong answers it must tell apart."""

from __future__ import annotations

import dis
import html
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from accumkit.checks.guarded import attribute
from accumkit.objective import AccumkitError

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
WIDTH = 100  # of the plain text, in characters
CODE = re.compile(r"`([^`]+)`")  # what stands between backquotes is code
LEVELS = ("easy", "medium", "hard")
NOT_ATTEMPTED, NOT_YET, RIGHT = "not attempted", "not yet", "right"


@dataclass(frozen=True, repr=False)
class Outcome:
    """What a check, a hint or a solution says: plain text, and the same in HTML for a notebook.

    Parameters
    ----------
    status : str
        "not attempted", "not yet" or "right"; "hint" and "solution" for those.
    lead : str
        The headline, a sentence; code stands in backquotes, here as in the items.
    items : tuple of tuple of str
        What else there is to say: each item a heading and the sentences under it.
    code : str
        Shown as code below the words.
    trace : Trace, optional
        What a learner's loop did; a notebook shows what each example weighed in it.
    """

    status: str
    lead: str
    items: tuple[tuple[str, ...], ...] = ()
    code: str = ""
    trace: Any = None

    def __repr__(self) -> str:
        lines = _wrapped(f"{self.status.capitalize()}: {self.lead}", "")
        for number, (heading, *sentences) in enumerate(self.items, 1):
            lines += ["", *_wrapped(f"{number}. {heading}", "   ", hang=3)]
            lines += [line for sentence in sentences for line in _wrapped(sentence, "   ")]
        return "\n".join([*lines, *(["", self.code] if self.code else [])])

    def _repr_html_(self) -> str:
        said = f"<p><strong>{self.status.capitalize()}:</strong> {_marked(self.lead)}</p>"
        for number, (heading, *sentences) in enumerate(self.items, 1):
            told = "".join(f"<br>{_marked(sentence)}" for sentence in sentences)
            said += f"<p><strong>{number}. {_marked(heading)}</strong>{told}</p>"
        code = f"<pre>{html.escape(self.code)}</pre>" if self.code else ""
        # Colours are inherited, so that both of JupyterLab's themes stay readable.
        style = "border-left:4px solid currentColor;padding:2px 0 2px 12px;margin:0 0 8px;max-width:52em"
        return f'<div role="status" style="{style}">{said}{code}</div>{self._picture()}'

    def _picture(self) -> str:
        if self.trace is None or not any(micro.weight is not None for micro in self.trace.micro_batches):
            return ""  # a picture of weights that were not measured would say nothing
        from accumkit.figures import weights_picture  # only a notebook needs it

        return weights_picture().html(self.trace)


def _marked(text: str) -> str:
    """Return text as HTML, with its code as code that is not torn apart at a line's end."""
    return CODE.sub(r'<code style="white-space:nowrap">\1</code>', html.escape(text))


def _wrapped(text: str, indent: str, hang: int = 0) -> list[str]:
    whole = CODE.sub(lambda code: code[0].replace(" ", "\0"), text)  # code is not torn apart
    lines = textwrap.wrap(whole, WIDTH, initial_indent=indent[hang:], subsequent_indent=indent, break_long_words=False,
                          break_on_hyphens=False)  # fmt: skip
    return [line.replace("\0", " ") for line in lines]


@dataclass(frozen=True)
class WrongAnswer:
    """A plausible wrong answer, kept to prove that the check names its fault."""

    fault: str  # the slug that its diagnosis must name
    source: str


@dataclass(frozen=True)
class Problem:
    r"""One exercise, whole: what a learner sees, and what proves that its check can be trusted.

    Parameters
    ----------
    id : str
        Two digits, as in the names of its notebooks.
    title : str
    minutes : int
        What a first reader needs.
    difficulty : {"easy", "medium", "hard"}
    answer : str
        The solution's source, with the lines that a learner is to write between `BEGIN` and `END`.
    hints : tuple of str
        From a nudge to almost the answer.
    judge : callable
        From the learner's object to an `Outcome`; it never raises over what a learner wrote.
    wrong_answers : tuple of WrongAnswer

    Examples
    --------
    >>> from accumkit.checks.problem import Outcome, Problem
    >>> problem = Problem("00", "Say one", 1, "easy", "def one():\n    ### BEGIN SOLUTION\n    return 1\n"
    ...                   "    ### END SOLUTION\n", ("It is a number.",), lambda one: Outcome("right", "yes."))
    >>> print(problem.stub)
    def one():
        ...  # your lines here
    <BLANKLINE>
    >>> problem.hint(1)
    Hint: It is a number. (1 of 1)
    """

    id: str
    title: str
    minutes: int
    difficulty: str
    answer: str
    hints: tuple[str, ...]
    judge: Callable[[Any], Outcome]
    wrong_answers: tuple[WrongAnswer, ...] = ()

    def __post_init__(self) -> None:
        if self.difficulty not in LEVELS:
            raise AccumkitError(f"difficulty={self.difficulty!r}: give one of {', '.join(LEVELS)}")

    @property
    def stub(self) -> str:
        """What the exercise starts from: the answer without the lines between the marks."""
        return cut_solution(self.answer)

    @property
    def solution_source(self) -> str:
        """The answer without the marks: source that runs."""
        return "".join(line for line in self.answer.splitlines(True) if line.strip() not in (BEGIN, END))

    def check(self, attempt: Any) -> Outcome:
        """Say whether ``attempt`` is right, and if not, what is wrong with it."""
        if is_blank(attempt):
            return Outcome(NOT_ATTEMPTED, "write your lines in the cell above, run it, then run this cell again.")
        try:
            return self.judge(attempt)
        except AccumkitError as refused:  # not even a function, say: as much a part of learning as a wrong loop
            return Outcome(NOT_YET, f"{refused}.")

    def hint(self, n: int = 1) -> Outcome:
        """Return hint ``n``, counting from 1, each saying more than the one before; for another n, which there are."""
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= len(self.hints):
            last = len(self.hints)
            which = "one hint, `q.hint(1)`" if last == 1 else f"{last} hints, `q.hint(1)` to `q.hint({last})`"
            return Outcome("hint", f"there are {which}; `q.solution()` shows one right answer.")
        lead, _, code = self.hints[n - 1].partition("\n\n")
        return Outcome("hint", f"{lead} ({n} of {len(self.hints)})", code=textwrap.dedent(code).strip("\n"))

    def solution(self) -> Outcome:
        """Return one right answer; there are others."""
        return Outcome("solution", "one right answer; others are as good.", code=self.solution_source.rstrip("\n"))


def cut_solution(source: str, placeholder: str = "...  # your lines here") -> str:
    """Return ``source`` with what stands between `BEGIN` and `END` replaced by a placeholder that does nothing.

    Raises
    ------
    AccumkitError
        A mark without its partner, or one inside another.
    """
    kept: list[str] = []
    inside = False
    for number, line in enumerate(source.splitlines(True), 1):
        mark = line.strip()
        if mark not in (BEGIN, END):
            if re.search(r"#\s*(BEGIN|END) SOLUTION", line, re.IGNORECASE):
                raise AccumkitError(
                    f"line {number}, {mark!r}: a mark stands alone on its line, as {BEGIN!r} or {END!r}"
                )
            if not inside:
                kept.append(line)
            continue
        if inside == (mark == BEGIN):
            raise AccumkitError(f"line {number}: {mark!r} where its partner should come first")
        if mark == BEGIN:
            kept.append(line.replace(BEGIN, placeholder))
        inside = mark == BEGIN
    if inside:
        raise AccumkitError(f"{BEGIN!r} without {END!r}")
    return "".join(kept)


def is_blank(attempt: Any) -> bool:
    """Return True for a function that does nothing at all: only a docstring, ``...``, ``pass`` or ``return``."""
    if attempt is None or attempt is Ellipsis:
        return True
    code = attribute(attempt, "__code__")
    if code is None:
        return False
    idle = {"RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST"}
    return all(step.opname in idle and (step.opname == "RESUME" or step.argval in (None, ...))
               for step in dis.get_instructions(code))  # fmt: skip


def of_verdict(
    verdict: Any,
    praise: str,
    advise: Callable[[Any], str] | None = None,
    why: str | None = None,
    remark: Callable[[Any], str | None] | None = None,
) -> Outcome:
    """Return the outcome that an audit's verdict on a learner's loop amounts to: its first finding, the others by name.

    Parameters
    ----------
    verdict : Verdict
        As `accumkit.check_loop` returns it.
    praise : str
        What to say of a right answer.
    advise : callable, optional
        From a finding to what a learner should change; by default what the finding says itself.
    why : str, optional
        What to say where nothing was found; by default the verdict's reasons.
    remark : callable, optional
        From the first finding to a sentence about the picture, or None.
    """
    if verdict.ok:
        return Outcome(RIGHT, praise, trace=verdict.trace)
    if not verdict.findings:
        said = why or " ".join(verdict.reasons) or "the updates are not those of the big batch."
        return Outcome(NOT_YET, said, trace=verdict.trace)
    first, *others = verdict.findings
    lead = "there is one thing to mend."
    if others:
        lead = f"there are {len(verdict.findings)} things to mend. Begin with the first, and check again: that may "
        lead += "mend the rest too."
    at = f", at {first.location}" if first.location else ""
    change = advise(first) if advise else first.fix
    told = [_heading(first), f"Measured: {first.evidence}.", f"To change{at}: {change}."]
    said = remark(first) if remark else None
    items = (tuple(told + [said] * bool(said)), *((_heading(finding),) for finding in others))
    return Outcome(NOT_YET, lead, items, trace=verdict.trace)


def _heading(finding: Any) -> str:
    return f"{finding.title[:1].upper()}{finding.title[1:]} ({finding.pitfall})"
