"""The folder that goes into the room: wheels, the course, install.py, and a page that says what to do."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from accumkit.errors import AccumkitError
from accumkit.offline import needs, pip
from accumkit.offline.platforms import Platform, platform

CONTENTS = "contents.json"  # what the folder is made for, and the size of each wheel: sticks lose the ends of files
COURSE = (
    "accumkit", "notebooks", "exercises", "pyproject.toml", "constraints.txt", "LICENSE",
    "README.md", "TEACHING.md", "CONTRIBUTING.md", "CHANGELOG.md",
)  # fmt: skip
TORCH_PAGE = "https://pytorch.org/get-started/locally/"


@dataclass(frozen=True)
class Filled:
    """What was put into a folder for one platform and one Python."""

    platform: str
    python: str
    lowest: str  # release of that Python which the wheels run on
    wheels: tuple[str, ...]  # names of files
    megabytes: float  # of these wheels, in millions of bytes

    def __repr__(self) -> str:
        return f"{self.platform}, Python {self.python}: {len(self.wheels)} wheels, {self.megabytes:.0f} MB"


def fill(
    project: Path, folder: Path, platforms: Sequence[str], pythons: Sequence[str], torch: str = ""
) -> list[Filled]:
    """Fill a folder with all that rooms of some platforms need to install the course without internet.

    It can be filled further later: wheels that are there are not brought again.

    Parameters
    ----------
    project : Path
        The project's folder.
    folder : Path
        A new or empty one, or one that was filled before.
    platforms : sequence of str
        Names in ``accumkit.offline.PLATFORMS``.
    pythons : sequence of str
        Versions of Python there, such as "3.12"; a wheel fits one of them only.
    torch : str
        Where torch is to come from, instead of where pip looks: a folder with its wheel, or the address that
        PyTorch's install page shows for the CPU.

    Returns
    -------
    list of Filled

    Raises
    ------
    AccumkitError
        An unknown platform or version, a folder with other things in it, or one of pip's failures.

    Examples
    --------
    It needs a network; in a shell: ``python -m accumkit wheels for-room-12 --platform windows --python 3.12``
    """
    check(project, folder, platforms, pythons)
    kinds, contents = [platform(name) for name in platforms], _contents(folder, project)
    filled = []
    try:
        (folder / "wheels").mkdir(parents=True, exist_ok=True)
        lay_course(project, folder)
        for kind in kinds:
            for python in pythons:
                filled.append(_gather(project, folder / "wheels", kind, python, torch))
                wheels = {name: (folder / "wheels" / name).stat().st_size for name in filled[-1].wheels}
                made = {"lowest": filled[-1].lowest, "wheels": wheels}
                contents["made for"][f"{kind.name} {python}"] = made
                _write(folder / CONTENTS, json.dumps(contents, indent=1, sort_keys=True))
        _write(folder / "README.txt", page(contents["made for"]))
    except OSError as cause:
        raise AccumkitError(pip.reason(str(cause), kinds[0], pythons[0], folder)) from cause
    return filled


def check(project: Path, folder: Path, platforms: Sequence[str], pythons: Sequence[str]) -> None:
    """Refuse what `fill` cannot do, before it begins.

    Raises
    ------
    AccumkitError
        An unknown platform or version, or a folder with other things in it.

    Examples
    --------
    >>> from pathlib import Path
    >>> from accumkit import course
    >>> check(course.home(), Path("a-new-folder"), ["windows"], ["3.12"])
    """
    for name in platforms:
        platform(name)
    _check_pythons(pythons, needs.lowest_python(project))
    _contents(folder, project)


def lay_course(project: Path, folder: Path) -> None:
    """Copy the course (without its solutions and tests) and install.py, in the place of those that are there."""
    leave_out = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info")
    for name in COURSE:
        source, goal = project / name, folder / "course" / name
        goal.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.rmtree(goal, ignore_errors=True)  # a lesson that was renamed would stay beside itself
            shutil.copytree(source, goal, ignore=leave_out)
        else:
            shutil.copyfile(source, goal)
    shutil.copyfile(Path(__file__).with_name("install.py"), folder / "install.py")


def page(made_for: Mapping[str, Mapping]) -> str:
    """Return what README.txt in the folder says.

    Examples
    --------
    >>> from accumkit.offline.folder import page
    >>> print(page({"windows 3.12": {"lowest": "3.12.0"}}).splitlines()[4])
    - Windows, 64 bits (x86-64): Python 3.12 (3.12.0 or newer)
    """
    kinds = "\n".join(
        f"- {platform(name).words}: Python {python} ({made_for[f'{name} {python}']['lowest']} or newer)"
        for name, python in map(str.split, sorted(made_for))
    )
    return f"""accumkit: a course on gradient accumulation, for a room without internet

This folder installs itself, without internet, on machines with

{kinds}

Python itself is not in it, and must be there. Its first two numbers must be those above: wheels for 3.12 do not fit
3.13.

1. Copy this folder onto the machine, to a place where you may write. From a memory stick it is slow.
2. In a terminal, in the copied folder:

       Windows:      py -3 install.py        (with several Pythons: py -3.12 install.py)
       other:        python3 install.py      (with several Pythons: python3.12 install.py)

   This makes the environment .venv in the folder, lays the lessons, and checks the machine.
3. Start the course:

       Windows:      .venv\\Scripts\\python -m accumkit lab
       other:        .venv/bin/python -m accumkit lab

The learner's own copies of the lessons are in course/my-work. To begin anew, delete .venv and run install.py again.
The folder can be moved before it is installed, not afterwards.
"""


def _gather(project: Path, wheels: Path, kind: Platform, python: str, torch: str) -> Filled:
    """Bring the wheels for one platform and one Python."""
    pins, used = needs.pins_of(project), {}

    def fetch(names: list[str]) -> dict[str, needs.Metadata]:
        unpinned = [name for name in names if name not in pins]
        if unpinned:
            raise AccumkitError(_unpinned(unpinned, used, kind))
        source = _source(torch)
        apart = [name for name in names if name == "torch" and source]
        for group, environment in ((apart, source), ([n for n in names if n not in apart], {})):
            if group:
                pip.download([f"{n}=={pins[n]}" for n in group], wheels, kind, python, environment)
        used.update((name, _wheel_of(name, pins[name], wheels, kind, python)) for name in names)
        return {name: needs.metadata_of(used[name]) for name in names}

    found = needs.follow(needs.asked_for(project), kind.answers(python), fetch)
    size = sum(wheel.stat().st_size for wheel in used.values())
    lowest = needs.lowest_release(python, found.values())
    return Filled(kind.name, python, lowest, tuple(sorted(wheel.name for wheel in used.values())), size / 1e6)


def _source(torch: str) -> dict[str, str]:
    """Return what tells pip where torch is to come from."""
    if not torch:
        return {}
    if "://" in torch:
        return {"PIP_INDEX_URL": torch, "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "", "PIP_NO_INDEX": "0"}
    if not Path(torch).is_dir():
        raise AccumkitError(f"--torch {torch}: no such folder; give a folder with torch's wheel, or the address that "
                            f"PyTorch's install page ({TORCH_PAGE}) shows for the CPU")  # fmt: skip
    return {"PIP_FIND_LINKS": Path(torch).resolve().as_uri(), "PIP_NO_INDEX": "1"}


def _unpinned(names: list[str], used: dict[str, Path], kind: Platform) -> str:
    """Say why packages without an exact version are not brought; those of CUDA, with what to do."""
    cuda = [name for name in names if name.startswith(("nvidia-", "cuda-", "triton"))]
    if "torch" in used and cuda:
        used["torch"].unlink()  # half a gigabyte that the room has no use for
        return (
            f"the torch that pip finds for {kind.name} is the one for CUDA, with gigabytes of packages beside it "
            f"({', '.join(cuda[:3])}, ...): give --torch and the address that PyTorch's install page ({TORCH_PAGE}) "
            "shows for the CPU, or a folder with that wheel"
        )
    return f"{', '.join(names)}: needed on {kind.name}, and constraints.txt has no version of it; add name==version"


def _wheel_of(name: str, version: str, wheels: Path, kind: Platform, python: str) -> Path:
    """Return the wheel of a package, among those in the folder, that fits a platform and a Python."""
    from packaging.tags import compatible_tags, cpython_tags, mac_platforms
    from packaging.utils import parse_wheel_filename
    from packaging.version import Version

    release = tuple(map(int, python.split(".")))
    tags = [*mac_platforms((14, 0), "arm64")] if kind.name == "macos" else list(kind.tags)
    fits = {*cpython_tags(release, platforms=tags), *compatible_tags(release, f"cp{release[0]}{release[1]}", tags)}
    for wheel in sorted(wheels.glob("*.whl"), reverse=True):
        found, its, _, its_tags = parse_wheel_filename(wheel.name)
        same = found == name and its.public == Version(version).public
        if same and its_tags & fits:
            return wheel
    raise AccumkitError(f"{name}=={version} did not come into {wheels}: run this again")


def _check_pythons(pythons: Sequence[str], lowest: str) -> None:
    try:
        from packaging.specifiers import SpecifierSet
    except ImportError as cause:
        raise AccumkitError(
            "the package packaging is missing here; it comes with the course: in the project's folder, run: "
            'pip install -c constraints.txt -e ".[course]"'
        ) from cause
    for python in pythons:
        parts = python.split(".")
        if len(parts) != 2 or not all(map(str.isdigit, parts)):
            raise AccumkitError(f"--python {python}: give the first two numbers of a version, such as 3.12")
        if f"{python}.99" not in SpecifierSet(lowest):
            raise AccumkitError(f"--python {python}: the course needs Python {lowest}")


def _contents(folder: Path, project: Path) -> dict:
    """Return what the folder was made for so far."""
    inside = folder.resolve()
    if inside == project.resolve() or project.resolve() / "accumkit" in (inside, *inside.parents):
        raise AccumkitError(f"{folder} is the project's own: name another folder for the wheels")
    if folder.exists() and not folder.is_dir():
        raise AccumkitError(f"{folder} is a file: name a folder")
    try:
        return json.loads((folder / CONTENTS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        others = (
            {path.name for path in folder.iterdir()} - {"wheels", "course", "install.py"} if folder.exists() else ()
        )
        if others:
            raise AccumkitError(f"{folder} holds other things ({sorted(others)[0]}): name a new folder") from None
        return {"made for": {}}
    except ValueError as cause:
        raise AccumkitError(f"{folder / CONTENTS} cannot be read: name a new folder, or delete this one") from cause


def _write(path: Path, text: str) -> None:
    half = path.with_name(f".{path.name}.half")
    half.write_text(text, encoding="utf-8")
    os.replace(half, path)
