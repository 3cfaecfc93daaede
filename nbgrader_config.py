"""How nbgrader makes the exercises from the solutions: as ``make exercises`` does, cell by cell.

nbgrader reads this file in the folder of a course. TEACHING.md says how to use it.
"""

from nbconvert.preprocessors import TagRemovePreprocessor
from nbgrader.converters import GenerateAssignment
from nbgrader.preprocessors import ClearSolutions

from accumkit.checks.stubs import PLACEHOLDER, cut_solution


class CutSolutions(ClearSolutions):
    """Cuts a solution as the kit does: what is to be mended takes its place, where the notebook says so."""

    def preprocess_cell(self, cell, resources, cell_index):
        """Return the cell without its solution."""
        if cell.cell_type == "code":
            cell.source = cut_solution(cell.source).rstrip("\n")
        return cell, resources


c = get_config()  # noqa: F821  # nbgrader gives it

# What stands where an answer is to be written. It raises nothing, so a notebook as given out runs to its end.
c.ClearSolutions.code_stub = {"python": PLACEHOLDER}

# Cells that explain a solution are no part of the exercise.
c.TagRemovePreprocessor.enabled = True
c.TagRemovePreprocessor.remove_cell_tags = {"solution"}

steps = GenerateAssignment.preprocessors.default()
c.GenerateAssignment.preprocessors = [
    TagRemovePreprocessor,
    *(CutSolutions if step is ClearSolutions else step for step in steps),
]

# A check takes a second or two; the first cell of a notebook imports torch.
c.ExecutePreprocessor.timeout = 60
