"""Every notebook runs and prints what is stored in it; every exercise is what its solution makes it."""

from __future__ import annotations

import ast
import itertools
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from roles import BEGIN_HIDDEN, with_roles
from write_exercises import exercise_of, exercise_path
from write_notebooks import ENVIRONMENT, LIVE_ONLY, METADATA, ROOT, normalised, notebooks, read

from accumkit.checks import problems
from accumkit.course import RUN_FIRST

STRICT = notebooks("notebooks", "solutions")
SOLUTIONS = notebooks("solutions")
EXERCISES = notebooks("exercises")
EVERY = STRICT + EXERCISES
LINES_A_CELL = 12
SANITIZE = Path(__file__).with_name("nbval_sanitize.cfg")
# What a learner reads speaks of the course alone, and holds for every machine.
MACHINE = re.compile(r"/(?:home|root|tmp|work|usr)/|[A-Z]:\\Users|0x[0-9a-f]{6,}|ipykernel_\d+", re.IGNORECASE)
FRAGILE = {"interact", "interactive", "interactive_output", "Output", "clear_output", "tqdm", "pyplot"}


def code_cells(path: Path) -> list:
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def markdown(path: Path) -> str:
    return "\n\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")


def nbval(paths: list[Path], mode: str, report: Path) -> tuple[dict[Path, Counter], str]:
    """Run nbval on notebooks, each in a kernel of its own; return how the cells of each ended, and what was printed."""
    command = [sys.executable, "-m", "pytest", "-p", "nbval.plugin", mode, "--nbval-current-env",
               "--nbval-cell-timeout=120", "-q", f"--nbval-sanitize-with={SANITIZE}", "-p", "no:cacheprovider",
               "--color=no", f"--junitxml={report}", *map(str, paths)]  # fmt: skip
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # no plugin but nbval: none is needed, and some take seconds to load
    alone = outside | ENVIRONMENT | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True)
    ends = {path: Counter() for path in paths}
    if report.exists():
        for case in ElementTree.parse(report).iter("testcase"):
            room, name = case.get("classname").removesuffix(".ipynb").split(".", 1)
            ends[ROOT / room / f"{name}.ipynb"][case[0].tag if len(case) else "passed"] += 1
    return ends, done.stdout + done.stderr


def run_with(mode: str, test: str) -> Callable:
    """Return a fixture: the notebooks of the selected cases of a test, run by one nbval, which takes long to load."""

    @pytest.fixture(scope="module")
    def ran(request, tmp_path_factory):
        selected = [item for item in request.session.items if getattr(item, "originalname", None) == test]
        paths = [item.callspec.params["path"] for item in selected if item.path == request.path]
        return nbval(paths, mode, tmp_path_factory.mktemp("nbval") / "report.xml")

    return ran


ran_strict = run_with("--nbval", "test_runs_and_prints_what_is_stored")
ran_lax = run_with("--nbval-lax", "test_exercise_runs_as_shipped")


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", STRICT, ids=name_of)
def test_runs_and_prints_what_is_stored(path, ran_strict):
    ends, said = ran_strict
    # The number of cells is named, so that an empty collection cannot pass.
    assert ends[path] == {"passed": len(code_cells(path))}, said


@pytest.mark.parametrize("path", EXERCISES, ids=name_of)
def test_exercise_runs_as_shipped(path, ran_lax):
    ends, said = ran_lax
    assert ends[path] == {"passed": len(code_cells(path))}, said


@pytest.mark.parametrize("path", EXERCISES, ids=name_of)
def test_every_check_of_an_exercise_as_shipped_says_not_attempted(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shell, checks = InteractiveShell(history_manager=None), 0
    for cell in code_cells(path):
        done = shell.run_cell(cell.source)
        done.raise_error()
        if ".check(" in cell.source:
            checks += 1
            assert repr(done.result).startswith("Not attempted:"), done.result
    assert checks


@pytest.mark.parametrize("path", SOLUTIONS, ids=name_of)
def test_every_check_of_a_solution_says_right(path):
    checks = [cell for cell in code_cells(path) if ".check(" in cell.source]
    assert checks
    for cell in checks:
        [output] = cell.outputs
        assert output.data["text/plain"].startswith("Right:"), output.data["text/plain"]


@pytest.mark.parametrize("path", SOLUTIONS, ids=name_of)
def test_exercise_is_what_its_solution_makes_it(path):
    assert read(exercise_path(path)) == exercise_of(path), "run: make exercises"


@pytest.mark.parametrize("path", SOLUTIONS, ids=name_of)
def test_solution_says_what_its_cells_are_for(path):
    assert read(path) == with_roles(read(path)), "run: make notebooks"
    assert read(path).metadata["accumkit"]["exercise"] in problems()
    assert [cell.metadata["nbgrader"]["points"] for cell in code_cells(path) if BEGIN_HIDDEN in cell.source] == [1]


def test_no_exercise_without_a_solution():
    assert {path.name for path in EXERCISES} == {path.name for path in SOLUTIONS}


@pytest.mark.parametrize("path", EVERY, ids=name_of)
def test_stored_form(path):
    notebook = read(path)
    exercise = {} if path.parent.name == "notebooks" else {"accumkit": notebook.metadata["accumkit"]}
    assert notebook.metadata == METADATA | exercise
    assert notebook == normalised(read(path)), "run: make notebooks"
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z][a-z0-9-]{2,40}", one) for one in ids), "ids are words, so that a diff can be read"
    assert not MACHINE.search(path.read_text(encoding="utf-8"))
    assert LIVE_ONLY not in path.read_text(encoding="utf-8")
    assert path.stat().st_size < 400_000


@pytest.mark.parametrize("path", STRICT, ids=name_of)
def test_every_cell_was_run_without_an_error(path):
    cells = code_cells(path)
    # A cell without a count is never compared: it would pass whatever it prints.
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        assert not [output for output in cell.outputs if output.output_type == "error"]
        assert not [output for output in cell.outputs if output.get("name") == "stderr"], "a warning is shown"


@pytest.mark.parametrize("path", EVERY, ids=name_of)
def test_code_can_be_read(path):
    for cell in code_cells(path):
        lines = [line for line in cell.source.splitlines() if line.strip() and not line.strip().startswith("#")]
        assert len(lines) <= LINES_A_CELL, f"{len(lines)} lines in {cell.id}: plotting and controls live in the package"
        assert max(map(len, cell.source.splitlines()), default=0) <= 100, f"a long line in {cell.id}"
        assert not cell.source.rstrip().endswith(";"), "nbval does not honour a trailing ;"
        assert not re.search(r"^\s*[%!]", cell.source, re.MULTILINE), "plain Python works everywhere"
        names = {node.id for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Name)}
        names |= {node.attr for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Attribute)}
        assert not names & FRAGILE


@pytest.mark.parametrize("path", EVERY, ids=name_of)
def test_headings_go_down_one_at_a_time(path):
    prose = re.sub(r"```.*?```", "", markdown(path), flags=re.DOTALL)
    levels = [len(marks) for marks in re.findall(r"^(#+) ", prose, re.MULTILINE)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


@pytest.mark.parametrize("path", EVERY, ids=name_of)
def test_pictures_have_words_and_links_have_targets(path):
    prose = markdown(path)
    for words, target in re.findall(r"!\[(.*?)\]\((.*?)\)", prose):
        assert len(words) > 15, f"{target} needs a text that says what it shows"
    assert not re.search(r"<img(?![^>]*\balt=\"[^\"]{15,})", prose)
    for target in re.findall(r"(?<!!)\[[^\]]*\]\(([^)#]+)", prose):
        assert target.startswith("https://") or (path.parent / target).exists(), target
    for cell in code_cells(path):
        for output in cell.outputs:
            drawn = str(output.get("data", {}).get("text/html", ""))
            assert not re.search(r"<img(?![^>]*\balt=\"[^\"]{15,})", drawn), "a picture without its sentence"
            assert not re.search(r"image/(png|jpeg|svg)", " ".join(output.get("data", {}))), "a picture without words"


@pytest.mark.parametrize("path", notebooks("notebooks"), ids=name_of)
def test_lesson_has_its_parts(path):
    prose = markdown(path)
    assert re.search(r"^# \d\d ", prose)
    assert re.search(r"^\*\*\d+ minutes · (easy|medium|hard)\*\*$", prose, re.MULTILINE)
    assert re.search(r"you will be able to\W*\n+(- .*\n?){3}", prose), "three lines on what one will be able to do"
    assert "## Predict" in prose
    assert re.search(r"## What to remember\n+(- .*(\n  .*)*\n?){3}(\n|$)", prose), "three lines to remember"
    assert any("panels." in cell.source for cell in code_cells(path))


@pytest.mark.parametrize("path", notebooks("notebooks"), ids=name_of)
def test_what_answers_a_question_is_not_shown_before_it_is_run(path):
    cells = read(path).cells
    asked = [cell for before, cell in itertools.pairwise(cells)
             if before.cell_type == "markdown" and before.source.endswith("?") and cell.cell_type == "code"
             and cell.outputs and "panels." not in cell.source]  # fmt: skip
    tagged = [cell for cell in cells if RUN_FIRST in cell.metadata.get("tags", [])]
    assert [cell.id for cell in asked if cell not in tagged] == [], f"tag them {RUN_FIRST}: course.lay empties them"
    assert tagged and all(cell.outputs for cell in tagged), "every lesson asks, and some cell answers"


@pytest.mark.parametrize("path", notebooks("notebooks"), ids=name_of)
def test_readme_names_the_lesson_with_its_minutes(path):
    minutes = re.search(r"^\*\*(\d+) minutes", markdown(path), re.MULTILINE)[1]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"\| \[[^\]]+\]\(notebooks/{path.name}\) \|.*\| {minutes} \|", readme)
