"""What each cell of a solution is for, as nbgrader and the kit's own grading read it: written by tools, not by hand.

A notebook says in its metadata which exercise it is. The cell with the marks holds the answer; the cell that ends in
``q.check(...)`` is what points are given for. nbgrader gives a cell its points when it raises nothing, and a check
never raises: so lines are put before it that only a teacher's copy has.
"""

from __future__ import annotations

import re

from nbformat import NotebookNode

from accumkit.checks.stubs import BEGIN, cut_solution

BEGIN_HIDDEN, END_HIDDEN = "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS"
EXERCISE = re.compile(r"^from accumkit\.checks import (\w+) as q$", re.MULTILINE)
CHECK = re.compile(r"^q\.check\((\w+)\)$", re.MULTILINE)
POINTS = 1  # right or not yet: nothing between


def with_roles(solution: NotebookNode) -> NotebookNode:
    """Return a solution with its exercise named, its cells' roles in their metadata, and hidden tests in its check.

    Raises
    ------
    ValueError
        It has no import line that names its exercise, no answer between marks, or no check.
    """
    code = [cell for cell in solution.cells if cell.cell_type == "code"]
    exercises = [name for cell in code for name in EXERCISE.findall(cell.source)]
    answers = [cell for cell in code if BEGIN in cell.source]
    checks = [cell for cell in code if CHECK.search(cell.source)]
    for found, needed in (
        (exercises, "line `from accumkit.checks import NAME as q`"),
        (answers, f"cell with {BEGIN!r}"),
        (checks, "cell with a line `q.check(NAME)`"),
    ):
        if not found or (found is not answers and len(found) > 1):
            raise ValueError(f"the solution has {len(found)} times a {needed}; it needs one")
    solution.metadata["accumkit"] = NotebookNode(exercise=exercises[0])
    for cell in solution.cells:
        cell.metadata.pop("nbgrader", None)
    for cell in answers:
        cell.metadata["nbgrader"] = _role(cell, solution=True)
    [check] = checks
    check.metadata["nbgrader"] = _role(check, grade=True, locked=True, points=POINTS)
    check.source = CHECK.sub(_with_hidden_test, without_hidden_tests(check.source))
    return solution


def for_learners(source: str) -> str:
    """Return a cell's source as a learner gets it: what is to be written or mended, and no hidden tests."""
    return cut_solution(without_hidden_tests(source)).rstrip("\n")


def without_hidden_tests(source: str) -> str:
    """Return a cell's source without what stands between the marks of hidden tests, and without these."""
    marked = re.compile(f"{BEGIN_HIDDEN}\n.*?{END_HIDDEN}\n?", re.DOTALL)
    return marked.sub("", source)


def _with_hidden_test(check: re.Match) -> str:
    # The assertion carries what the check says, so that it stands in nbgrader's feedback.
    hidden = f'assert (said := {check[0]}).status == "right", said'
    return f"{BEGIN_HIDDEN}\n{hidden}\n{END_HIDDEN}\n{check[0]}"


def _role(cell: NotebookNode, **more) -> NotebookNode:
    """Return nbgrader's metadata of a cell, in the third version of its form."""
    role = {"grade": False, "grade_id": cell.id, "locked": False, "schema_version": 3, "solution": False, "task": False}
    return NotebookNode(role | more)
