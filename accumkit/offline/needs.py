"""What the course needs on another machine: every package at its exact version, found by following requirements."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from accumkit.errors import AccumkitError


@dataclass(frozen=True)
class Metadata:
    """What one wheel says of itself."""

    requires: tuple[str, ...]
    python: str = ""  # the versions that it runs on, such as ">=3.11.5"; "" for any


def asked_for(project: Path) -> list[str]:
    """Return what the course is installed from: the project's own requirements, and those to build it.

    Examples
    --------
    >>> from accumkit import course
    >>> from accumkit.offline.needs import asked_for
    >>> [text for text in asked_for(course.home()) if text.startswith(("torch", "setuptools"))]
    ['setuptools>=77', 'torch>=2.4']
    """
    told = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    extras = told["project"].get("optional-dependencies", {})
    return [
        *told.get("build-system", {}).get("requires", []),
        *told["project"].get("dependencies", []),
        *extras.get("course", []),
    ]


def lowest_python(project: Path) -> str:
    """Return what the project says about Python's version, such as ">=3.11"."""
    told = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    return told["project"].get("requires-python", "")


def pins_of(project: Path) -> dict[str, str]:
    """Return the exact version of each package in the project's constraints.txt, by its normal name."""
    pins = {}
    for line in (project / "constraints.txt").read_text(encoding="utf-8").splitlines():
        name, _, version = line.partition("#")[0].strip().partition("==")
        if version:
            pins[normal(name)] = version.strip()
    return pins


def normal(name: str) -> str:
    """Return a package's name as indexes compare it.

    Examples
    --------
    >>> from accumkit.offline.needs import normal
    >>> normal("Jupyter_Core")
    'jupyter-core'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def follow(
    requirements: Iterable[str],
    answers: Mapping[str, str],
    fetch: Callable[[list[str]], Mapping[str, Metadata]],
) -> dict[str, Metadata]:
    """Return all packages that requirements lead to on a platform, with what they say of themselves.

    Parameters
    ----------
    requirements : iterable of str
    answers : mapping
        What the platform answers to the conditions in them.
    fetch : callable
        Given the names of a round, brings their wheels and returns what each says of itself.

    Returns
    -------
    dict
        By normal name, in order.

    Examples
    --------
    >>> from accumkit.offline.needs import Metadata, follow
    >>> wheels = {"a": ('b[x]; sys_platform == "win32"',), "b": ('c; extra == "x"', 'd; extra == "y"'), "c": ()}
    >>> list(follow(["a"], {"sys_platform": "win32"}, lambda names: {name: Metadata(wheels[name]) for name in names}))
    ['a', 'b', 'c']
    """
    from packaging.requirements import Requirement

    known: dict[str, Metadata] = {}
    done: set[tuple[str, str]] = set()  # a package, and one of its extras; "" for the package itself
    todo = [(requirement, "") for requirement in requirements]
    while todo:
        wanted: list[tuple[str, str]] = []
        for text, extra in todo:
            one = Requirement(text)
            if one.marker is None or one.marker.evaluate({**answers, "extra": extra}):
                wanted += [(normal(one.name), asked) for asked in ("", *sorted(one.extras))]
        new = list(dict.fromkeys(pair for pair in wanted if pair not in done))
        names = sorted({name for name, _ in new} - known.keys())
        if names:
            known.update(fetch(names))
        done.update(new)
        todo = [(text, extra) for name, extra in new for text in known[name].requires]
    return {name: known[name] for name in sorted(known)}


def lowest_release(python: str, wheels: Iterable[Metadata]) -> str:
    """Return the first release of a Python that all wheels run on.

    Examples
    --------
    >>> from accumkit.offline.needs import Metadata, lowest_release
    >>> lowest_release("3.11", [Metadata((), ">=3.9"), Metadata((), ">=3.11.5")])
    '3.11.5'
    """
    from packaging.specifiers import SpecifierSet

    asked = [SpecifierSet(wheel.python) for wheel in wheels]
    return next(f"{python}.{patch}" for patch in range(100) if all(f"{python}.{patch}" in one for one in asked))


def metadata_of(wheel: Path) -> Metadata:
    """Return what a wheel says of itself.

    Raises
    ------
    AccumkitError
        The file is no whole wheel.
    """
    try:
        with ZipFile(wheel) as file:
            inside = next(name for name in file.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
            told = message_from_bytes(file.read(inside))
            return Metadata(tuple(told.get_all("Requires-Dist", [])), told.get("Requires-Python", ""))
    except (BadZipFile, StopIteration) as cause:
        raise AccumkitError(f"{wheel} is no whole wheel: delete it and run this again") from cause
