"""The files around the package agree with one another, and the README tells the truth."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import accumkit as ak
from accumkit import doctor, tasks

HOME = Path(ak.__file__).resolve().parent.parent
PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
README = (HOME / "README.md").read_text(encoding="utf-8")
EXTRAS = PROJECT["optional-dependencies"]
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not on this machine")


def pins() -> dict[str, str]:
    lines = [line for line in (HOME / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    found = dict(line.split("==") for line in lines)
    assert len(found) == len(lines) > 100
    return {canonicalize_name(name): version for name, version in found.items()}


def asked() -> list[Requirement]:
    everything = PROJECT["dependencies"] + [text for extra in EXTRAS.values() for text in extra]
    return [Requirement(text) for text in everything if not text.startswith("accumkit[")]


def test_constraints_pin_what_pyproject_asks_for_within_its_ranges():
    for requirement in asked():
        pinned = pins()[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pinned), f"{requirement} is pinned to {pinned}"


def test_constraints_pin_everything_that_comes_along():
    pinned, unpinned = pins(), set()
    ahead, seen = [(requirement.name, frozenset(requirement.extras)) for requirement in asked()], set()
    while ahead:
        name, extras = ahead.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        if canonicalize_name(name) not in pinned:
            unpinned.add(name)
        try:
            needed = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # asked for on another system, or by an extra that is not installed
            continue
        for text in needed:
            other = Requirement(text)
            if other.marker is None or any(other.marker.evaluate({"extra": extra}) for extra in extras or [""]):
                ahead.append((other.name, frozenset(other.extras)))
    assert len(seen) > 60 and not unpinned


def test_constraints_hold_for_every_machine():
    for name, version in pins().items():
        assert not Version(version).local, f"{name}=={version} is one machine's build"


def test_frameworks_are_no_part_of_the_course():
    course = " ".join(PROJECT["dependencies"] + EXTRAS["course"] + EXTRAS["test"])
    assert not re.search("accelerate|lightning|transformers", course)
    assert PROJECT["dependencies"] == ["torch>=2.4"]


def test_environment_gives_the_same_versions():
    environment = yaml.safe_load((HOME / "environment.yml").read_text())
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    by_conda = {
        Requirement(text).name: Requirement(text) for text in environment["dependencies"] if isinstance(text, str)
    }
    (by_pip,) = [part["pip"] for part in environment["dependencies"] if isinstance(part, dict)]
    assert set(by_conda) == {"python", "pip"}  # all the rest comes through pip, held by the same constraints
    assert by_pip == ["--constraint constraints.txt", "--editable .[course]"] and "course" in EXTRAS
    lowest = PROJECT["requires-python"].removeprefix(">=")
    assert by_conda["python"].specifier.contains(lowest) and not by_conda["python"].specifier.contains("3.10")


def test_the_doctor_asks_for_what_pyproject_asks_for():
    lowest = {
        r.name: next(iter(r.specifier)).version for r in map(Requirement, PROJECT["dependencies"] + EXTRAS["course"])
    }
    assert lowest == {name: version for name, (version, _) in doctor.NEEDED.items()}
    assert PROJECT["requires-python"] == ">=" + ".".join(map(str, doctor.PYTHON))


def test_versions_agree():
    assert metadata.version("accumkit") == ak.__version__
    assert f"## {ak.__version__}" in (HOME / "CHANGELOG.md").read_text()


def test_public_names_are_there_and_the_audit_stays_a_function():
    for name in ak.__all__:
        assert getattr(ak, name) is not None and name in dir(ak)
    with pytest.raises(AttributeError, match="'auditt'"):
        ak.auditt  # noqa: B018
    code = """
import accumkit as ak
import accumkit.audit.rules
from accumkit.audit import rules, verdict
from accumkit.trace.record import Trace
import accumkit.audit.findings
assert ak.audit is verdict.audit and ak.audit(Trace(accumulation_steps=2)).status == "cannot tell"
assert rules.findings_of
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_without_torch_the_package_says_what_to_do():
    code = "import sys; sys.modules['torch'] = None; import accumkit"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "accumkit needs torch" in done.stderr and "pip install" in done.stderr


def test_without_matplotlib_a_verdict_is_its_table():
    code = """
import sys; sys.modules["matplotlib"] = None
import accumkit as ak
from accumkit.trace.record import Trace
print(ak.audit(Trace(accumulation_steps=2))._repr_html_())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("<pre>updates cannot tell")


def stand_in(folder: Path, code: int, says: str) -> Path:
    """A Python that only says its version, and fails on whatever it is asked to run."""
    python = folder / "some-python"
    python.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{says}" && exit 0\nexit {code}\n')
    python.chmod(0o755)
    return python


def make(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(["make", *arguments], cwd=HOME, capture_output=True, text=True)


@needs_make
def test_make_says_what_is_missing(tmp_path):
    old = stand_in(tmp_path, 1, "Python 3.9.2")
    done = make("lab", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}")
    assert done.returncode and "needs Python 3.11 or newer" in done.stdout and "is Python 3.9.2" in done.stdout
    done = make("test", f"PYTHON={tmp_path / 'nowhere'}", f"VENV={tmp_path / 'venv'}")
    assert done.returncode and "there is no" in done.stdout
    new = stand_in(tmp_path, 1, "Python 3.12.1")
    new.write_text(new.read_text().replace("exit 1", 'case "$2" in *ensurepip*) exit 1;; esac\nexit 0'))
    done = make("lab", f"PYTHON={new}", f"VENV={tmp_path / 'venv'}")
    assert done.returncode and "apt install python3-venv" in done.stdout
    assert not (tmp_path / "venv").exists()


@needs_make
def test_make_lists_its_commands_and_lab_installs_the_course_alone(tmp_path):
    listed = make().stdout
    for target in ("lab", "doctor", "test", "lint", "bench", "notebooks", "exercises", "browser"):
        assert f"make {target} " in listed or f"make {target};" in listed, target
    commands = make("-n", "lab", f"VENV={tmp_path / 'venv'}").stdout
    assert "-c constraints.txt -e '.[course]'" in commands and "test" not in commands.split("pip install")[1][:60]
    assert "'.[test,frameworks]'" in make("-n", "bench", f"VENV={tmp_path / 'venv'}").stdout


@needs_make
@pytest.mark.parametrize("name", ["plain", "ada's (1) ü"])
def test_make_installs_into_a_folder_of_any_name_and_knows_it_again(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    for file in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(HOME / file, folder)
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    stand_in(python.parent, 0, "").rename(python)
    for times in (1, 0):
        done = subprocess.run(["make", "lab"], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout.count("Installing") == times, done.stdout + done.stderr
    assert (folder / ".venv" / ".place").read_text() == f"{folder.resolve()}\n"


def test_a_number_given_to_watch_without_its_name_is_told_the_name():
    model, objective = torch.nn.Linear(2, 3), ak.classification()
    with pytest.raises(TypeError, match="'accumulation_steps'"):
        ak.watch(model, objective, 4)
    with pytest.raises(ak.AccumkitError, match="accumulation_steps= and tail= by name"):
        with ak.watch(model, objective, 4, accumulation_steps=4):
            pass


def test_the_bench_says_how_long_it_takes():
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "--help"], cwd=HOME, capture_output=True, text=True, check=True
    )
    said = " ".join(done.stdout.split())
    assert "minutes" in said and "limits hold" in said


def test_contributing_runs_nbval_as_the_tests_do():
    text = (HOME / "CONTRIBUTING.md").read_text(encoding="utf-8").replace("\\\n", "")
    commands = re.findall(r"^python -m pytest --nbval.*$", text, re.MULTILINE)
    tests = (HOME / "tests" / "test_notebooks.py").read_text(encoding="utf-8")
    assert [(line.split()[3], line.split()[-1]) for line in commands] == [
        ("--nbval", "solutions"), ("--nbval-lax", "exercises")
    ]  # fmt: skip
    assert "--nbval-sanitize-with=tests/nbval_sanitize.cfg notebooks solutions" in commands[0]
    for option in ("--nbval-current-env", "--nbval-cell-timeout=120"):
        assert option in tests and all(option in line for line in commands)


def blocks(language: str) -> list[tuple[int, str]]:
    """The code blocks of the README, each with the line its first line stands on."""
    found = re.finditer(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    return [(README[: match.start(1)].count("\n"), match[1]) for match in found]


def mean_loss_loop(model, loader, optimizer):
    """The loop that the README speaks of."""
    for i, (images, labels) in enumerate(loader):
        F.cross_entropy(model(images), labels).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


def test_the_readme_runs_and_says_what_is_printed(capsys):
    model = tasks.mlp()
    names = {
        "model": model,
        "loader": tasks.loader(tasks.digits(96), 8),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "device": "cpu",
        "my_own_loop": mean_loss_loop,
    }
    before = [p.detach().clone() for p in model.parameters()]
    code = blocks("python")
    assert len(code) == 2
    for line, text in code:
        exec(compile("\n" * line + text, "README.md", "exec"), names)
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    printed = re.sub(r"test_ground\.py:\d+", "train.py:12", capsys.readouterr().out)
    (_, shown), *others = blocks("text")
    assert not others and shown == printed


def test_the_readme_has_its_parts_in_order():
    titles = re.findall(r"^## (.+)$", README, re.MULTILINE)
    assert titles == ["Two commands", "The right loop", "The audit", "Lessons", "For teachers", "Windows", "conda",
                      "Colab", "More"]  # fmt: skip
    assert README.index("](notebooks/images/") < README.index("## Two commands")


def test_the_readme_lists_the_lessons_that_exist_with_their_minutes():
    rows = dict(re.findall(r"\]\((notebooks/\S+?\.ipynb)\).*\| (\d+) \|$", README, re.MULTILINE))
    lessons = sorted((HOME / "notebooks").glob("*.ipynb"))
    assert len(lessons) > 1 and set(rows) == {f"notebooks/{path.name}" for path in lessons}
    for path in lessons:
        first = "".join(json.loads(path.read_bytes())["cells"][0]["source"])
        assert f"**{rows[f'notebooks/{path.name}']} minutes" in first, path.name


def test_every_link_of_the_documents_leads_somewhere():
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)\s:#]+)\)", (HOME / name).read_text(encoding="utf-8")):
            assert (HOME / target).exists(), f"{name} links to {target}"


def test_the_ci_script_can_be_run():
    script = HOME / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    for command in ("make test", "make browser"):
        assert command in script.read_text()
