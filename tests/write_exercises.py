"""Make the exercises from the solutions: ``python tests/write_exercises.py``.

A solution is the source. Its exercise is the same notebook without what stands between ``### BEGIN SOLUTION`` and
``### END SOLUTION``, without hidden tests, without cells tagged ``solution``, and without outputs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from nbformat import NotebookNode

sys.path.insert(0, str(Path(__file__).resolve().parent))  # also when it runs as a script from elsewhere

from roles import for_learners, with_roles
from write_notebooks import ROOT, normalised, notebooks, read, write


def exercise_of(solution: Path) -> NotebookNode:
    """Return the exercise that belongs to a solution."""
    notebook = normalised(with_roles(read(solution)))
    notebook.cells = [cell for cell in notebook.cells if "solution" not in cell.metadata.get("tags", [])]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = for_learners(cell.source)
            cell.outputs, cell.execution_count = [], None
    return notebook


def exercise_path(solution: Path) -> Path:
    """Return where the exercise of a solution lies."""
    return ROOT / "exercises" / solution.name


def main() -> None:
    """Write every exercise, and take away those whose solution is gone."""
    solutions = notebooks("solutions")
    for path in solutions:
        changed = write(exercise_of(path), exercise_path(path))
        print(f"{'written  ' if changed else 'unchanged'}  {exercise_path(path).relative_to(ROOT)}")
    for stale in set((ROOT / "exercises").glob("*.ipynb")) - {exercise_path(path) for path in solutions}:
        stale.unlink()
        print(f"removed    {stale.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
