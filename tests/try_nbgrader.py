"""Try the real nbgrader: ``python tests/try_nbgrader.py``, where nbgrader is installed beside accumkit.

It makes a course of the solutions, compares what nbgrader gives out with the exercises, hands in right, wrong and
untouched answers, and has them graded. It is no part of the tests, which do without nbgrader.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from nbformat import NotebookNode

sys.path.insert(0, str(Path(__file__).resolve().parent))

from roles import BEGIN
from write_notebooks import ROOT, notebooks, read, write

from accumkit.checks import problems
from accumkit.checks.stubs import solved

ASSIGNMENT = "accumulation"
EXPECTED = {"right": 1.0, "wrong": 0.0, "untouched": 0.0}


def nbgrader(course: Path, *words: str) -> None:
    """Run a command of nbgrader in the course's folder; what it says is shown where it fails."""
    done = subprocess.run([sys.executable, "-m", "nbgrader", *words], cwd=course, capture_output=True, text=True)
    print(f"nbgrader {' '.join(words)}: exit {done.returncode}", flush=True)
    if done.returncode:
        print(done.stdout[-4000:] + done.stderr[-4000:])


def differences(release: Path) -> list[str]:
    """Return the notebooks whose cells differ in source from the exercise of the same name."""
    wrong = []
    for path in notebooks("exercises"):
        given = [(cell.cell_type, cell.source) for cell in read(release / path.name).cells]
        wrong += [path.name] * (given != [(cell.cell_type, cell.source) for cell in read(path).cells])
    return wrong


def answered(given: Path, solution: Path, answer: str) -> NotebookNode:
    """Return what nbgrader gave out, with an answer in its cell; as it is for "untouched"."""
    notebook = read(given)
    if answer == "untouched":
        return notebook
    problem = problems()[notebook.metadata.accumkit.exercise]
    sources = {cell.id: solved(cell.source) for cell in read(solution).cells if BEGIN in cell.source}
    if answer == "wrong":
        sources[next(iter(sources))] = problem.wrong_answers[0].source
    for cell in notebook.cells:
        cell.source = sources.get(cell.id, cell.source)
    return notebook


def main(names: list[str]) -> int:
    """Try the notebooks whose names contain one of ``names``, all of them by default; return an exit code."""
    with tempfile.TemporaryDirectory() as folder:
        course = Path(folder)
        source, release = course / "source" / ASSIGNMENT, course / "release" / ASSIGNMENT
        source.mkdir(parents=True)
        shutil.copy(ROOT / "nbgrader_config.py", course)
        for path in notebooks("solutions"):
            shutil.copy(path, source)
        nbgrader(course, "generate_assignment", ASSIGNMENT)
        wrong = [f"{name}: given out otherwise than in exercises" for name in differences(release)]
        tried = [path for path in notebooks("solutions") if not names or any(name in path.name for name in names)]
        for learner in EXPECTED:
            for path in tried:
                copy = course / "submitted" / learner / ASSIGNMENT / path.name
                copy.parent.mkdir(parents=True, exist_ok=True)
                write(answered(release / path.name, path, learner), copy)
            nbgrader(course, "autograde", ASSIGNMENT, "--student", learner)
        nbgrader(course, "export")
        with (course / "grades.csv").open(encoding="utf-8") as file:
            scores = {row["student_id"]: float(row["raw_score"]) for row in csv.DictReader(file)}
    print("scores:", scores, "of", len(tried))
    wrong += [f"{who}: {scores[who]}" for who, share in EXPECTED.items() if scores[who] != share * len(tried)]
    print("\n".join(wrong) or "As it should be.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
