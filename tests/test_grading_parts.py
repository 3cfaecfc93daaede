"""What grading is put together from: cells run in order, a bar for terminals and logs, roles that nbgrader reads."""

from __future__ import annotations

import io
import subprocess
import sys
import types

import pytest
from learners import PROBLEMS
from nbformat import NotebookNode
from roles import BEGIN_HIDDEN, END_HIDDEN, for_learners, with_roles, without_hidden_tests
from traitlets.config import Config
from write_exercises import exercise_path
from write_notebooks import ROOT, notebooks, read

from accumkit.checks.stubs import BEGIN, PLACEHOLDER
from accumkit.grading import bar, cells
from accumkit.grading.telling import lines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_one_line_is_written_anew():
    terminal = Terminal()
    shown = bar.Bar(4, terminal)
    for done in range(5):
        shown.show(done, f"{done} right")
    text = terminal.getvalue()
    assert text.count("\r") == 5 and text.count("\n") == 1
    assert "[###############...............] 2 of 4  2 right" in text
    assert text.isascii()


def test_in_a_log_there_are_few_lines_and_the_last_one(monkeypatch):
    monkeypatch.setattr(bar.time, "monotonic", lambda: 0.0)
    log = io.StringIO()
    shown = bar.Bar(100, log)
    for done in range(101):
        shown.show(done)
    assert log.getvalue() == f"[{'#' * bar.WIDTH}] 100 of 100\n"
    assert "\r" not in log.getvalue()


def test_a_table_shows_no_control_characters():
    assert lines(("a", "b"), [("\x1b[31mred", "x\ny")]) == ["a         b", "?[31mred  x?y"]


@pytest.mark.parametrize(
    ("source", "plain"),
    [
        ("x = 7 % 4", "x = 7 % 4"),
        ("%matplotlib inline\nx = 1", "pass\nx = 1"),
        ("if x:\n    !ls\nprint??", "if x:\n    pass\npass"),
        ("%%time\nx = 1", "\nx = 1"),
        ("%%bash\nls", ""),
        ("text = '''\n%no magic\n'''", "text = '''\n%no magic\n'''"),
    ],
)
def test_what_only_ipython_knows_is_passed_over(source, plain):
    assert cells.without_magics(source) == plain


def test_the_lines_of_a_cell_can_be_read_back():
    code = """
import inspect
from accumkit.grading import cells
names, raised = cells.run(["def train():\\n    return 1", "class Own(Exception):\\n    def __str__(self): return 1 / 0\\nraise Own()"])
assert inspect.getsource(names["train"]).startswith("def train")
assert [(one.cell, one.text) for one in raised] == [(2, "Own: (its text cannot be read: __str__ raised ZeroDivisionError)")]
"""  # noqa: E501
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def nbgrader_config(monkeypatch):
    """The file that nbgrader reads, read without nbgrader: its own steps are stood for by names."""
    steps = ["ClearSolutions", "ClearOutput", "SaveCells", "ClearHiddenTests"]
    kinds = {name: type(name, (), {}) for name in steps}
    modules = {
        "nbgrader": {},
        "nbgrader.converters": {"GenerateAssignment": types.SimpleNamespace(
            preprocessors=types.SimpleNamespace(default=lambda: list(kinds.values())))},
        "nbgrader.preprocessors": kinds,
    }  # fmt: skip
    for name, content in modules.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    config = Config()
    space = {"get_config": lambda: config}
    exec(compile((ROOT / "nbgrader_config.py").read_text(encoding="utf-8"), "nbgrader_config.py", "exec"), space)
    return config


def test_nbgrader_puts_what_the_kit_puts_in_the_place_of_an_answer(nbgrader_config):
    assert nbgrader_config.ClearSolutions.code_stub == {"python": PLACEHOLDER}
    assert nbgrader_config.TagRemovePreprocessor.enabled
    assert nbgrader_config.TagRemovePreprocessor.remove_cell_tags == {"solution"}
    steps = [step.__name__ for step in nbgrader_config.GenerateAssignment.preprocessors]
    assert steps == ["TagRemovePreprocessor", "CutSolutions", "ClearOutput", "SaveCells", "ClearHiddenTests"]


@pytest.mark.parametrize("path", notebooks("solutions"), ids=lambda path: path.stem)
def test_nbgrader_gives_out_the_exercise(path, nbgrader_config):
    cut = nbgrader_config.GenerateAssignment.preprocessors[1]()
    left = [cell for cell in read(path).cells if "solution" not in cell.metadata.get("tags", [])]
    given = [without_hidden_tests(cut.preprocess_cell(cell, {}, 0)[0].source) for cell in left]
    assert given == [cell.source for cell in read(exercise_path(path)).cells]


@pytest.mark.parametrize("path", notebooks("solutions"), ids=lambda path: path.stem)
def test_roles_are_what_nbgrader_needs(path):
    roles = [cell.metadata["nbgrader"] for cell in read(path).cells if "nbgrader" in cell.metadata]
    assert len({role["grade_id"] for role in roles}) == len(roles)
    assert {(role["solution"], role["grade"], role["locked"]) for role in roles} == {
        (True, False, False),
        (False, True, True),
    }
    assert sum(role.get("points", 0) for role in roles) == 1
    assert read(path).metadata.accumkit.exercise in PROBLEMS


def solution(*sources: str) -> NotebookNode:
    cells = [
        NotebookNode(cell_type="code", id=f"c{n}", source=s, metadata=NotebookNode()) for n, s in enumerate(sources)
    ]
    return NotebookNode(cells=cells, metadata=NotebookNode())


IMPORT, ANSWER, CHECK = (
    "from accumkit.checks import window_loop as q",
    f"{BEGIN}\n1\n### END SOLUTION",
    "q.check(train)",
)


def test_roles_can_be_given_twice():
    once = with_roles(solution(IMPORT, ANSWER, CHECK))
    hidden = f'{BEGIN_HIDDEN}\nassert (said := q.check(train)).status == "right", said\n{END_HIDDEN}\nq.check(train)'
    assert once.cells[2].source == hidden
    assert with_roles(once).cells[2].source == hidden
    assert for_learners(hidden) == "q.check(train)"


@pytest.mark.parametrize(
    "sources", [(ANSWER, CHECK), (IMPORT, CHECK), (IMPORT, ANSWER), (IMPORT, ANSWER, CHECK, CHECK)]
)
def test_a_solution_without_its_parts_is_refused(sources):
    with pytest.raises(ValueError, match="it needs one"):
        with_roles(solution(*sources))
