"""Answers that a class hands in: right, wrong, and of every way in which a notebook can go astray."""

from __future__ import annotations

import json
from pathlib import Path

from write_exercises import exercise_path
from write_notebooks import notebooks, read

from accumkit import checks
from accumkit.checks.problem import Problem

PROBLEMS = checks.problems()
GIB = 2**30


def doing(problem: Problem, *lines: str) -> str:
    """Return an answer that does this: the function that is asked for, when it is called; else the answer's cell."""
    first = problem.stub.lstrip().splitlines()[0]
    if first.startswith("def "):
        return "\n".join([first, *(f"    {line}" for line in lines)]) + "\n"
    return "\n".join([problem.solution_source, *lines]) + "\n"


def answers(problem: Problem) -> dict[str, tuple[str, set[str]]]:
    """Return sources for the answer's cell by the kind of learner, with the statuses that each may get."""
    # On a slow machine the time may be over before there are too many processes.
    many = {"too many processes", "out of time"}
    return {
        "right": (problem.solution_source, {"right"}),
        "wrong": (problem.wrong_answers[0].source, {"not yet"}),
        "untouched": (problem.stub, {"not attempted"}),
        "broken": (f"{problem.solution_source}\n)", {"broken"}),
        "endless": (doing(problem, "while True:", "    pass"), {"out of time"}),
        "forking": (doing(problem, "import os", "while True:", "    os.fork()"), many),
        "hungry": (doing(problem, f"hoard = bytearray({50 * GIB})"), {"out of memory"}),
    }


def exercise(name: str) -> Path:
    """Return the notebook of an exercise, by the exercise's name."""
    number = PROBLEMS[name].id
    return next(exercise_path(path) for path in notebooks("solutions") if path.name.startswith(f"{number}_"))


def notebook(name: str, answer: str, **changed: object) -> dict:
    """Return an exercise's notebook with an answer in its cell, as JSON; ``changed`` replaces keys at its top."""
    found = json.loads(exercise(name).read_text(encoding="utf-8"))
    for cell in found["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("solution"):
            cell["source"] = answer
    return found | changed


def hand_in(folder: Path, learner: str, file: str, content: dict | str) -> Path:
    """Write a notebook into a learner's folder, directly into the class's folder where the learner has no name."""
    path = folder / learner / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


__all__ = ["PROBLEMS", "answers", "doing", "exercise", "hand_in", "notebook", "read"]
