"""One notebook run and checked, in the process that is there for nothing else."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module

from accumkit import checks
from accumkit.checks.as_it_was import as_it_was
from accumkit.checks.outcome import NOT_ATTEMPTED, NOT_YET, Outcome
from accumkit.grading.cells import Raised, names_memory, out_of_memory, run, without_hidden_tests
from accumkit.grading.marks import BROKEN, OUT_OF_MEMORY, OUT_OF_TIME
from accumkit.grading.restored import kept

FAULT = re.compile(r"\(([a-z][a-z0-9-]*)\)$")  # at the end of a heading
ENDLESS = re.compile(r"was still running after [\d.]+\s+seconds?\b")  # what a check says of one that it stopped
PLACE = re.compile(r"\b([Cc]ell\s+\d+):(\d+)\b")  # "cell 2:5" here, "cell 2, line 5" in a notebook
LONGEST = 4_000  # characters of what is said


def attempt(exercise: str, sources: Sequence[str], tell: Callable[..., object], reserve: Callable[[], object]) -> None:
    """Run a notebook's cells, then check the answer that they leave, and tell what comes of it.

    The check is the exercise's own, taken before the cells run and called after them; nothing that the cells print,
    or that is stored in the notebook, has a part in it.

    Parameters
    ----------
    exercise : str
        Its name.
    sources : sequence of str
        The notebook's code.
    tell : callable
        ``tell(cell=3)`` where a cell begins, ``tell(checking=True)``, and at the end ``tell(status=, faults=, said=)``.
    reserve : callable
        Called between cells and check: gives the check some memory that the cells could not take.
    """
    problem = replace(checks.problems()[exercise])  # a copy, which no cell can reach by its name
    examine, folder, put_back = problem.examine, os.path.dirname(os.path.abspath(checks.__file__)), kept()
    for name in checks.EXERCISES:
        import_module(f"accumkit.checks.exercises.{name}").check = _later
    warnings.simplefilter("ignore")
    with as_it_was():
        try:
            # A hidden test asks for the check's answer, which is given when all cells have run.
            plain = [without_hidden_tests(source) for source in sources]
            names, raised = run(plain, lambda cell: tell(cell=cell))
        finally:
            put_back()  # first, since all that follows leans on it
    reserve()
    os.chdir(folder)  # the cells may have taken their own away
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")
    tell(checking=True)
    tell(**_judged(problem.asks, examine, names, raised))


def _later(*answer: object, **named: object) -> Outcome:
    return Outcome(NOT_ATTEMPTED, "the check is made when all cells have run.")


def _judged(asks: str, examine: Callable[[object], Outcome], names: dict, raised: Sequence[Raised]) -> dict:
    """Return the status, the faults and the words that an answer gets."""
    own = [one for one in raised if one.names(asks)]
    if asks not in names:
        if raised:
            first = (own or raised)[0]
            return _mark(OUT_OF_MEMORY if first.memory else BROKEN, f"there is no `{asks}` to check.", raised)
        return _mark(NOT_ATTEMPTED, f"there is no `{asks}` in the notebook.", raised)
    if any(one.memory for one in own):
        return _mark(OUT_OF_MEMORY, "the cell of the answer took more memory than there was.", raised)
    try:
        outcome = examine(names[asks])
        status, said = outcome.status, repr(outcome)
        faults = [found[1] for heading, *_ in outcome.items if (found := FAULT.search(heading))]
    except BaseException as error:  # a check never raises; a learner's object may make it so all the same
        status = OUT_OF_MEMORY if out_of_memory(error) else BROKEN
        return _mark(status, f"the check itself raised {type(error).__name__}.", raised)
    if status == NOT_ATTEMPTED and own:
        return _mark(BROKEN, "the cell of the answer raised.", raised)
    if status == NOT_YET and names_memory(said):
        status = OUT_OF_MEMORY
    elif status == NOT_YET and ENDLESS.search(said):
        status = OUT_OF_TIME
    return _mark(status, said, raised, faults)


def _mark(status: str, said: str, raised: Sequence[Raised], faults: Sequence[str] = ()) -> dict:
    said = PLACE.sub(r"\1, line \2", said[:1].upper() + said[1:])
    notes = [f"Cell {one.cell} raised {one.text}." for one in raised[:5]]
    notes += [f"{len(raised) - 5} more cells raised."] * (len(raised) > 5)
    said = said if len(said) <= LONGEST else f"{said[:LONGEST]} ..."
    return {"status": status, "faults": list(faults), "said": "\n\n".join([said, *["\n".join(notes)] * bool(notes)])}


def show_nothing() -> None:
    """Send what is printed nowhere, and let nothing be typed: for this process and those it starts."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)
