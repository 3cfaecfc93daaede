"""An answer's source run as the file of a learner, and the table that proves what the checks can do."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accumkit.checks.outcome import NOT_ATTEMPTED, NOT_YET, RIGHT, Outcome
from accumkit.checks.problem import Problem

MODULE = "learner"  # what the file is called, and so what a check names: learner.py:12
HEADER = ("exercise", "kind", "stub", "solution", "wrong answers named")


def attempted(problem: Problem, source: str) -> Outcome:
    """Return what a problem's check says of an answer in source.

    Parameters
    ----------
    problem : Problem
    source : str
        Such as ``problem.stub`` or ``problem.wrong_answers[0].source``; ``problem.imports`` go before it.

    Returns
    -------
    Outcome

    Raises
    ------
    Exception
        Whatever the source raises where it is run, not called.

    Examples
    --------
    >>> from accumkit import checks
    >>> from accumkit.checks.attempts import attempted
    >>> problem = checks.problems()["window_loop"]
    >>> attempted(problem, problem.stub).status
    'not attempted'
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{MODULE}.py")
        path.write_text(f"{problem.imports}\n\n{source}", encoding="utf-8")
        return problem.examine(_loaded(path, problem.asks))  # check would note it as the learner's


def rows(problems: dict[str, Problem]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield a row of the table for each problem, and what is not as it should be."""
    for name, problem in problems.items():
        stub = attempted(problem, problem.stub).status
        solution = attempted(problem, problem.solution_source).status
        wrong = [_unnamed(problem, answer.fault, answer.source) for answer in problem.wrong_answers]
        failed = [f"{name}: {why}" for why in wrong if why]
        failed += [f"{name}: the stub is {stub!r}"] * (stub != NOT_ATTEMPTED)
        failed += [f"{name}: the solution is {solution!r}"] * (solution != RIGHT)
        said = "passes" if solution == RIGHT else solution
        named = f"{len(wrong) - sum(map(bool, wrong))} of {len(wrong)}"
        yield (f"{problem.id} {name}", problem.kind, stub, said, named), failed


def line(cells: tuple[str, ...]) -> str:
    """Return a row of the table as text."""
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, (26, 8, 14, 9, 19), strict=True)).rstrip()


def _unnamed(problem: Problem, fault: str, source: str) -> str | None:
    """Return why a wrong answer is not told as it should be, or None."""
    outcome = attempted(problem, source)
    if outcome.status != NOT_YET:
        return f"the wrong answer {fault} is {outcome.status!r}"
    return None if f"({fault})" in repr(outcome) else f"the wrong answer {fault} is not named"


def _loaded(path: Path, name: str) -> Any:
    """Return what a file calls ``name``; None where it has no such thing."""
    spec = importlib.util.spec_from_file_location(MODULE, path)
    module = importlib.util.module_from_spec(spec)
    before, written = sys.modules.get(MODULE), sys.dont_write_bytecode
    sys.modules[MODULE], sys.dont_write_bytecode = module, True
    try:
        spec.loader.exec_module(module)
        return getattr(module, name, None)
    finally:
        sys.dont_write_bytecode = written
        if before is None:
            sys.modules.pop(MODULE, None)
        else:
            sys.modules[MODULE] = before
