"""The house stands: rooms import downwards only, load what they say, stay small, and speak of themselves alone."""

from __future__ import annotations

import ast
import doctest
import functools
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import accumkit

HOME = Path(accumkit.__file__).resolve().parent
TREE = HOME.parent
LONGEST = 280

# From the ground up. Rooms that share a floor may use each other; test_no_circles still holds.
FLOORS = (
    {"errors", "modes"},
    {"batches"},
    {"objective"},
    {"arguments"},
    {"window"},
    {"convert", "tasks"},
    {"trace"},
    {"epoch_log", "finite", "loops", "safety", "stream", "sums"},
    {"audit"},
    {"pitfalls", "studies"},
    {"figures"},
    {"course"},
    {"checks"},
    {"panels"},
    {"offline"},
    {"grading"},
    {"lab"},
    {"doctor"},
    {"__init__", "__main__"},
)
HEAVY = ("matplotlib", "ipywidgets", "IPython", "sklearn", "jupyterlab", "psutil")
OUTSIDE = {"figures": {"matplotlib", "numpy"}, "panels": {"matplotlib", "numpy", "ipywidgets", "IPython"}}
ON_DEMAND = {
    "tasks": {"sklearn"},
    "doctor": {"psutil"},
    "lab": {"jupyterlab", "jupyter_client"},
    "offline": {"packaging"},
    "grading": {"psutil"},
}  # imported where used


def files() -> list[Path]:
    found = sorted(HOME.rglob("*.py"))
    assert len(found) > 10  # else every test here would pass over nothing
    return found


def module_of(path: Path) -> str:
    parts = path.relative_to(TREE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def room_of(module: str) -> str:
    return module.split(".")[1]


def floor_of(module: str) -> int:
    for number, floor in enumerate(FLOORS):
        if room_of(module) in floor:
            return number
    raise AssertionError(f"{module} has no floor yet: give it its place in FLOORS")


def imports(tree: ast.AST, path: Path) -> set[str]:
    """Every module that code in ``path`` imports, with submodules taken from a package by name."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = path.relative_to(TREE).parts[: -node.level] if node.level else ()
            module = ".".join([*parts, *filter(None, [node.module])])
            found |= {submodule(module, alias.name) for alias in node.names}
    return found


def submodule(module: str, name: str) -> str:
    path = TREE.joinpath(*module.split("."), name)
    return f"{module}.{name}" if path.is_dir() or path.with_suffix(".py").is_file() else module


@functools.cache
def own_imports() -> dict[str, set[str]]:
    graph = {}
    for path in files():
        named = imports(ast.parse(path.read_text(encoding="utf-8")), path)
        graph[module_of(path)] = {"accumkit.__init__" if m == "accumkit" else m for m in named if is_own(m)}
    return graph


def is_own(module: str) -> bool:
    return module == "accumkit" or module.startswith("accumkit.")


def in_process(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("path", files(), ids=module_of)
def test_no_arrow_runs_up(path):
    module = module_of(path)
    for other in own_imports()[module]:
        same_room = room_of(other) == room_of(module) and room_of(module) != "__init__"
        neighbours = floor_of(other) == floor_of(module) and len(FLOORS[floor_of(module)]) > 1
        assert same_room or neighbours or floor_of(other) < floor_of(module), f"{module} imports {other} above it"


def test_no_circles():
    graph = own_imports()
    state = {}

    def visit(module, path):
        assert state.get(module) != "open", f"a circle: {' -> '.join([*path, module])}"
        if module not in state:
            state[module] = "open"
            for other in sorted(graph.get(module, ())):
                if other != "accumkit.__init__":
                    visit(other, [*path, module])
            state[module] = "closed"

    for module in graph:
        visit(module, [])
    assert len(state) >= len(graph)


@pytest.mark.parametrize("path", files(), ids=module_of)
def test_rooms_load_only_what_is_theirs(path):
    tree, room = ast.parse(path.read_text(encoding="utf-8")), room_of(module_of(path))
    at_the_top = ast.Module([node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], [])
    assert foreign(tree, path) <= OUTSIDE.get(room, set()) | ON_DEMAND.get(room, set())
    assert foreign(at_the_top, path) <= OUTSIDE.get(room, set()), "import it where it is used, not at the top"


def foreign(tree: ast.AST, path: Path) -> set[str]:
    return {m.split(".")[0] for m in imports(tree, path) if not is_own(m)} - sys.stdlib_module_names - {"torch"}


def test_importing_the_kit_loads_torch_and_no_more():
    loaded = in_process("import accumkit, sys, json; print(json.dumps(sorted(sys.modules)))")
    torch_alone = in_process("import torch, sys, json; print(json.dumps(sorted(sys.modules)))")
    assert "accumkit.audit" in loaded
    assert not [m for m in loaded if m.split(".")[0] in HEAVY]
    distributed = {m for m in loaded if m.startswith("torch.distributed")}
    assert distributed <= set(torch_alone)
    lazy = {
        f"accumkit.{room}" for room in ("figures", "panels", "pitfalls", "checks", "tasks", "course", "lab", "doctor")
    }
    assert not lazy & set(loaded)


@pytest.mark.parametrize("path", files(), ids=module_of)
def test_files_stay_small(path):
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= LONGEST, f"{path.name} has {lines} lines: does it still hold one idea?"


@pytest.mark.parametrize("path", files(), ids=module_of)
def test_nothing_is_loaded_that_could_run_code(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not {"pickle", "dill", "joblib", "marshal", "shelve"} & {m.split(".")[0] for m in imports(tree, path)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "load"):
            named = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            assert named.get("weights_only") == "True", f"line {node.lineno}: torch.load without weights_only=True"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            runs_code = path.relative_to(HOME).as_posix() == "grading/cells.py"  # of learners: what it is there for
            assert node.func.id not in ("eval", "exec") or runs_code, f"line {node.lineno}: {node.func.id}"


def texts() -> list[Path]:
    """Every text file of the project: what lies in its folder, without what git is told to ignore."""
    ignored = (TREE / ".gitignore").read_text(encoding="utf-8").splitlines()
    skip = {".git", ".accumkit", *(line.removesuffix("/") for line in ignored if line.endswith("/"))}
    found = []
    for folder, folders, names in os.walk(TREE):
        folders[:] = [f for f in folders if f not in skip and not f.endswith(".egg-info")]
        found += [Path(folder, name) for name in names if not name.endswith((".png", ".pyc"))]
    assert len(found) > 30
    return found


def test_no_machine_and_no_index_is_named():
    machines = re.compile(r"(?<![\w.<])/(?:" + "|".join(["wor" + "k", "far" + "m", "tm" + "p", "roo" + "t"]) + ")/")
    people = re.compile(r"/(?:hom" + r"e|User" + r"s)/\w|\b[A-Z]:\\" + "User" + "s")
    index = re.compile("--(?:extra-)?ind" + r"ex-url|https?://\S*(?:pypi|pytho" + "nhosted|download.pytor" + "ch)")
    wrong = []
    for path in texts():
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            for pattern in (machines, people, index):
                if found := pattern.search(line):
                    wrong.append(f"{path.relative_to(TREE)}:{number}: {found[0]}")
    assert not wrong, "\n".join(wrong)


def modules() -> list[str]:
    found = [m.name for m in pkgutil.walk_packages([str(HOME)], "accumkit.") if not m.name.endswith("__main__")]
    return ["accumkit", *found]


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an example may write
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = importlib.import_module(name)
        result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples in {name} fail; they are printed above"


def test_every_public_name_has_an_example():
    without = []
    for name in accumkit.__all__:
        thing = getattr(accumkit, name)
        if callable(thing) and not (isinstance(thing, type) and issubclass(thing, Exception)):
            if ">>>" not in (thing.__doc__ or ""):
                without.append(name)
    assert not without
