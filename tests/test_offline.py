"""Rooms without internet: pip fills a folder for a platform, here from tiny wheels, and it installs itself."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest

from accumkit import course, offline
from accumkit.__main__ import main
from accumkit.errors import AccumkitError
from accumkit.offline import install, needs, pip

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
TAGS = {"windows": "win_amd64", "macos": "macosx_11_0_arm64", "linux": "manylinux_2_17_x86_64.manylinux2014_x86_64"}

PYPROJECT = """
[build-system]
requires = ["builder>=1"]
build-backend = "backend"
backend-path = ["accumkit"]
[project]
name = "accumkit"
version = "1"
requires-python = ">=3.11"
dependencies = ["torch>=1"]
[project.optional-dependencies]
course = ["panels[large]>=1; python_version >= '3.11'"]
test = ["unwanted"]
"""
BACKEND = """
from pathlib import Path
from zipfile import ZipFile


def build_editable(folder, config_settings=None, metadata_directory=None):
    told = "Metadata-Version: 2.1\\nName: accumkit\\nVersion: 1\\nProvides-Extra: course\\nRequires-Dist: torch>=1\\n"
    told += 'Requires-Dist: panels[large]>=1; extra == "course"\\n'
    with ZipFile(Path(folder, "accumkit-1-py3-none-any.whl"), "w") as file:
        file.writestr("accumkit.pth", str(Path(__file__).resolve().parent.parent))
        file.writestr("accumkit-1.dist-info/METADATA", told)
        file.writestr("accumkit-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        file.writestr("accumkit-1.dist-info/RECORD", "")
    return "accumkit-1-py3-none-any.whl"
"""
OWN_COURSE = """
from pathlib import Path


def home():
    return Path(__file__).resolve().parent.parent


def lay(kit, work):
    import torch, panels, large
    work.mkdir()
    (work / "lesson.txt").write_text("laid")
"""


def wheel(index: Path, name: str, *requires: str, tag: str = "py3-none-any", python: str = ">=3.9", version="1.0"):
    """Write a tiny wheel that holds one module."""
    path, told = index / f"{name}-{version}-{tag}.whl", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    told += f"Requires-Python: {python}\n" + "".join(f"Requires-Dist: {r}\n" for r in requires)
    told += "Provides-Extra: large\n" * (name == "panels")
    inside = f"{name}-{version}.dist-info"
    with ZipFile(path, "w") as file:
        file.writestr(f"{name}.py", "")
        file.writestr(f"{inside}/METADATA", told)
        file.writestr(f"{inside}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        file.writestr(f"{inside}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Where pip looks: a folder, and nothing else."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    told = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": os.devnull}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    wheel(folder, "builder")
    wheel(folder, "panels", 'large; extra == "large"', 'console; sys_platform == "win32"', 'dock; os_name != "nt"')
    for name in ("large", "console", "dock", "unwanted"):
        wheel(folder, name)
    for tag in TAGS.values():
        for python in dict.fromkeys(("3.12", HERE)):
            cp = "cp" + python.replace(".", "")
            wheel(folder, "torch", tag=f"{cp}-{cp}-{tag}")
    return folder


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    for room in ("accumkit/__pycache__", "notebooks", "exercises", "solutions", ".venv"):
        (folder / room).mkdir(parents=True)
    pins = [f"{name}==1.0" for name in ("builder", "torch", "panels", "large", "console", "dock")]
    texts = {
        "pyproject.toml": PYPROJECT, "constraints.txt": "# exact\n" + "\n".join(pins), "README.md": "", "LICENSE": "",
        "TEACHING.md": "", "CONTRIBUTING.md": "", "CHANGELOG.md": "",
        "accumkit/__init__.py": "", "accumkit/course.py": OWN_COURSE, "accumkit/backend.py": BACKEND,
        "accumkit/__main__.py": "print('fit')", "accumkit/__pycache__/x.pyc": "", "notebooks/lesson.ipynb": "{}",
        "solutions/answer.ipynb": "{}",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder


def names(folder: Path) -> list[str]:
    return sorted({path.name.split("-")[0] for path in (folder / "wheels").iterdir()})


@pytest.mark.parametrize(("platform", "own"), [("windows", ["console"]), ("macos", ["dock"]), ("linux", ["dock"])])
def test_each_platform_gets_what_its_own_conditions_ask_for(index, project, tmp_path, platform, own):
    (filled,) = offline.fill(project, tmp_path / "room", [platform], ["3.12"])
    assert names(tmp_path / "room") == sorted(["builder", "large", "panels", "torch", *own])
    assert f"torch-1.0-cp312-cp312-{TAGS[platform]}.whl" in filled.wheels
    assert repr(filled).startswith(f"{platform}, Python 3.12: 5 wheels, ")
    assert filled.megabytes == sum(p.stat().st_size for p in (tmp_path / "room" / "wheels").iterdir()) / 1e6


def test_the_folder_holds_the_course_without_answers_and_says_what_to_do(index, project, tmp_path):
    room = tmp_path / "room"
    offline.fill(project, room, ["windows", "linux"], ["3.12"])
    assert sorted(path.name for path in room.iterdir()) == [
        "README.txt", "contents.json", "course", "install.py", "wheels"
    ]  # fmt: skip
    assert (room / "course" / "notebooks" / "lesson.ipynb").is_file()
    assert not (room / "course" / "solutions").exists() and not list(room.rglob("__pycache__"))
    said = (room / "README.txt").read_text()
    assert "Windows, 64 bits (x86-64): Python 3.12 (3.12.0 or newer)" in said and "py -3 install.py" in said
    assert max(map(len, said.splitlines())) <= 120
    made_for = json.loads((room / "contents.json").read_text())["made for"]
    assert sorted(made_for) == ["linux 3.12", "windows 3.12"]
    sizes = made_for["windows 3.12"]["wheels"]
    assert sizes == {name: (room / "wheels" / name).stat().st_size for name in sizes} and len(sizes) == 5


def test_what_the_documents_point_to_is_in_the_folder_too(tmp_path):
    offline.folder.lay_course(course.home(), tmp_path)
    for name in ("README.md", "TEACHING.md"):
        for target in re.findall(r"\]\(([^)\s:#]+)(?:#[^)]*)?\)", (tmp_path / "course" / name).read_text("utf-8")):
            assert (tmp_path / "course" / target).exists(), f"{name} links to {target}"


def test_a_folder_can_be_filled_further(index, project, tmp_path):
    room = tmp_path / "room"
    offline.fill(project, room, ["windows"], ["3.12"])
    (project / "notebooks" / "lesson.ipynb").rename(project / "notebooks" / "renamed.ipynb")
    offline.fill(project, room, ["macos"], ["3.12"])
    assert sorted(json.loads((room / "contents.json").read_text())["made for"]) == ["macos 3.12", "windows 3.12"]
    assert [path.name for path in (room / "course" / "notebooks").iterdir()] == ["renamed.ipynb"]


def test_wheels_that_ask_for_a_later_release_are_brought_and_it_is_said(index, project, tmp_path):
    wheel(index, "large", python=">=3.12.4")
    (filled,) = offline.fill(project, tmp_path / "room", ["windows"], ["3.12"])
    assert filled.lowest == "3.12.4"
    made_for = json.loads((tmp_path / "room" / "contents.json").read_text())["made for"]
    with pytest.raises(install.CannotInstall, match=r"This is Python 3\.12\.3; some packages need 3\.12\.4 or a newer"):
        install.wheels_for(made_for, "Windows", "AMD64", (3, 12, 3))
    assert len(install.wheels_for(made_for, "Windows", "AMD64", (3, 12, 4))) == 5


def test_a_package_without_a_wheel_for_the_platform_is_named(index, project, tmp_path):
    next(index.glob("torch-*cp312-win_amd64.whl")).unlink()
    with pytest.raises(AccumkitError, match=r"torch==1\.0 has no wheel for windows and Python 3\.12 where pip looks"):
        offline.fill(project, tmp_path / "room", ["windows"], ["3.12"])
    (index / "console-1.0-py3-none-any.whl").unlink()
    (index / "console-1.0.tar.gz").write_bytes(b"source only")
    wheel(index, "torch", tag="cp312-cp312-win_amd64")
    with pytest.raises(AccumkitError, match=r"console==1\.0 has no wheel for windows"):
        offline.fill(project, tmp_path / "room", ["windows"], ["3.12"])


def test_a_package_without_an_exact_version_is_named(index, project, tmp_path):
    pins = project / "constraints.txt"
    pins.write_text(pins.read_text().replace("console==1.0\n", ""))
    with pytest.raises(AccumkitError, match=r"console: needed on windows, and constraints\.txt has no version of it"):
        offline.fill(project, tmp_path / "room", ["windows"], ["3.12"])


def test_torch_for_cuda_is_refused_and_taken_away_and_torch_can_come_from_elsewhere(index, project, tmp_path):
    large = wheel(index, "torch", 'nvidia-cudnn==9; platform_system == "Linux"', tag=f"cp312-cp312-{TAGS['linux']}")
    room = tmp_path / "room"
    with pytest.raises(AccumkitError, match=r"is the one for CUDA, .*nvidia-cudnn.*--torch .*pytorch\.org"):
        offline.fill(project, room, ["linux"], ["3.12"])
    assert not (room / "wheels" / large.name).exists()

    elsewhere = tmp_path / "torch wheels"
    elsewhere.mkdir()
    wheel(elsewhere, "torch", tag=f"cp312-cp312-{TAGS['linux']}", version="1.0+cpu")
    (filled,) = offline.fill(project, room, ["linux"], ["3.12"], torch=str(elsewhere))
    assert any(name.startswith("torch-1.0+cpu-") for name in filled.wheels)

    shutil.rmtree(room)
    page = tmp_path / "cpu" / "torch"
    page.mkdir(parents=True)
    (found,) = elsewhere.iterdir()
    (page / "index.html").write_text(f'<!DOCTYPE html><a href="{found.as_uri()}">{found.name}</a>')
    (filled,) = offline.fill(project, room, ["linux"], ["3.12"], torch=page.parent.as_uri())
    assert any(name.startswith("torch-1.0+cpu-") for name in filled.wheels)
    with pytest.raises(AccumkitError, match="no such folder"):
        offline.fill(project, room, ["linux"], ["3.12"], torch=str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("platforms", "pythons", "said"),
    [
        (["windows", "amiga"], ["3.12"], "unknown platform 'amiga': wheels can be gathered for windows"),
        (["windows"], ["3.10"], "--python 3.10: the course needs Python >=3.11"),
        (["windows"], ["3.12.4"], "give the first two numbers of a version"),
        (["windows"], ["x"], "give the first two numbers of a version"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_written(project, tmp_path, platforms, pythons, said):
    with pytest.raises(AccumkitError, match=said):
        offline.fill(project, tmp_path / "room", platforms, pythons)
    assert not (tmp_path / "room").exists()


def test_folders_that_hold_other_things_are_left_alone(index, project, tmp_path):
    other = tmp_path / "letters"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    own = "the project's own"
    for folder, said in (
        (other, r"holds other things \(letter.txt\)"),
        (other / "letter.txt", "is a file"),
        (project, own),
        (project / "accumkit" / "w", own),
    ):
        with pytest.raises(AccumkitError, match=said):
            offline.fill(project, folder, ["windows"], ["3.12"])
    assert [path.name for path in other.iterdir()] == ["letter.txt"]


def test_without_a_network_it_says_so_and_what_has_come_is_kept(index, project, tmp_path, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    (index / "large-1.0-py3-none-any.whl").unlink()
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nothing listens there
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(AccumkitError, match="pip cannot reach its package index"):
        offline.fill(project, tmp_path / "room", ["windows"], ["3.12"])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wheel(index, "large")
    assert len(offline.fill(project, tmp_path / "room", ["windows"], ["3.12"])) == 1


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("OSError: [Errno 28] No space left on device", "is full: make room"),
        ("[WinError 112] There is not enough space on the disk", "is full: make room"),
        ("/usr/bin/python: No module named pip", "has no pip"),
        (
            "Retrying: NewConnectionError(...)\nERROR: No matching distribution found for a==1",
            "cannot reach",
        ),
        ("ERROR: No matching distribution found for a==1; x", "a==1 has no wheel for macos and Python 3.12"),
        ("something\n\nelse", "pip failed, and said: something / else"),
    ],
)
def test_why_pip_failed_in_words(said, told):
    assert told in pip.reason(said, offline.platform("macos"), "3.12", Path("room"))


def test_the_command_says_how_much_and_what_next(index, project, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(course, "home", lambda: project)
    room = tmp_path / "room"
    assert main(["wheels", str(room), "--platform", "windows", "macos", "--python", "3.12"]) == 0
    said = capsys.readouterr().out
    assert "windows, Python 3.12: 5 wheels, " in said and f"Copy {room} onto each machine" in said
    assert "in it run: py -3 install.py (Windows) or python3 install.py (macOS, Linux). README.txt" in said
    for wrong in (["--platform", "amiga"], ["--platform", "windows", "--python", "2.7"]):
        assert main(["wheels", str(room), *wrong]) == 1
        said = capsys.readouterr()
        assert ("unknown platform 'amiga'" in said.err or "--python 2.7" in said.err) and said.out == ""


@pytest.mark.parametrize("platform", offline.PLATFORMS)
def test_every_package_of_the_course_has_an_exact_version_on_every_platform(platform):
    pins = needs.pins_of(course.home())

    def fetch(names: list[str]) -> dict[str, needs.Metadata]:
        assert not [name for name in names if name not in pins]
        return {name: needs.Metadata(tuple(requires(name))) for name in names}

    found = needs.follow(needs.asked_for(course.home()), offline.platform(platform).answers("3.12"), fetch)
    assert {"torch", "jupyterlab", "setuptools"} <= set(found) and len(found) > 80
    assert ("pywinpty" in found) == (platform == "windows") and ("appnope" in found) == (platform == "macos")


def requires(name: str) -> list[str]:
    """Return what a package requires, as far as this machine has it; those of other systems require nothing more."""
    try:
        found = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []
    return [text for text in found if not (name == "torch" and "Linux" in text)]  # this machine's may be the CUDA one


def test_the_installer_needs_nothing_but_python_and_an_old_one_can_read_it():
    text = Path(install.__file__).read_text(encoding="utf-8")
    tree = ast.parse(text, feature_version=(3, 7))
    named = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    named |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in named} <= sys.stdlib_module_names


MADE_FOR = {"windows 3.12": {"lowest": "3.12.0", "wheels": {}}, "windows 3.13": {"lowest": "3.13.0", "wheels": {}}}


@pytest.mark.parametrize(
    ("system", "machine", "version", "said"),
    [
        ("Windows", "AMD64", (3, 11, 9), "made for Python 3.12 or 3.13. Start it so: py -3.12 install.py"),
        (
            "Linux",
            "x86_64",
            (3, 12, 1),
            "This machine is Linux x86_64 with Python 3.12; the folder is made for win",
        ),
        ("Darwin", "x86_64", (3, 12, 1), "This machine is Darwin x86_64"),
    ],
)
def test_the_installer_names_what_does_not_fit(system, machine, version, said):
    with pytest.raises(install.CannotInstall, match=said.replace(".", r"\.")):
        install.wheels_for(MADE_FOR, system, machine, version)


def test_the_installer_notices_wheels_cut_off_and_a_full_disk(tmp_path, monkeypatch):
    (tmp_path / "a.whl").write_bytes(b"1234")
    install.check_wheels(tmp_path, {"a.whl": 4})
    with pytest.raises(install.CannotInstall, match=r"a\.whl is not whole: copy the folder again"):
        install.check_wheels(tmp_path, {"a.whl": 5})
    with pytest.raises(install.CannotInstall, match=r"b\.whl is missing"):
        install.check_wheels(tmp_path, {"b.whl": 5})
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(10**9, 9 * 10**8, 10**8))
    install.check_room(tmp_path, {"a.whl": 10**7})
    with pytest.raises(install.CannotInstall, match="100 MB are free on this disk, and about 500 MB are needed"):
        install.check_room(tmp_path, {"a.whl": 10**8})


@pytest.mark.skipif(sys.platform != "linux", reason="the tiny torch of this test is made for Linux, Windows and macOS")
def test_a_room_installs_itself_with_nothing_but_the_folder(index, project, tmp_path):
    room = tmp_path / "room 12"
    offline.fill(project, room, ["linux"], [HERE])
    shutil.rmtree(index)
    environment = {"PATH": os.environ["PATH"], "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
    command = [sys.executable, str(room / "install.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (room / "course" / "my-work" / "lesson.txt").read_text() == "laid"
    python = room / ".venv" / "bin" / "python"
    assert done.stdout.rstrip().endswith(f"Start the course with\n\n    {python} -m accumkit lab")
    assert "fit\n" in done.stdout  # what the doctor said

    (room / "wheels" / "large-1.0-py3-none-any.whl").unlink()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1 and "large-1.0-py3-none-any.whl is missing: copy the folder again" in done.stderr
    (room / "contents.json").unlink()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1 and "is not whole" in done.stderr and "Traceback" not in done.stderr
