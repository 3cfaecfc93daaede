"""Which notebooks were handed in, whose they are, and which exercise each of them is."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from accumkit.checks.problem import Problem
from accumkit.errors import AccumkitError

HIDDEN = (".", "__")  # how the names of folders begin that are no learner's
LARGEST = 32 * 2**20  # bytes of a notebook; beyond, it is not read
IMPORT = re.compile(r"^\s*from\s+accumkit\.checks(?:\.exercises)?\s+import\s+(\w+)", re.MULTILINE)
ID = re.compile(r"(?<![0-9A-Za-z])(\d\d[a-z])(?=[_ .-])")
NAMELESS = "(no name)"  # whose file lies beside others', and says no name where theirs do


@dataclass(frozen=True)
class Submission:
    """A notebook that was handed in.

    Parameters
    ----------
    learner : str
        The name of the learner's folder; of a notebook that lies beside others', what its name has before or after
        the exercise's, `NAMELESS` where that is nothing.
    path : Path
    file : str
        Its place below the folder that is graded.
    exercise : str or None
        The exercise's name, None where it is none.
    cells : tuple of str
        Its code, cell by cell.
    unreadable : str
        Why it cannot be run, "" where it can.
    """

    learner: str
    path: Path
    file: str
    exercise: str | None = None
    cells: tuple[str, ...] = ()
    unreadable: str = ""


def find(folder: Path, problems: Mapping[str, Problem]) -> list[Submission]:
    """Return the notebooks of a folder, in the order of learners and files.

    Parameters
    ----------
    folder : Path
        With a folder for each learner, or with all notebooks side by side. Hidden folders and links are passed over.
    problems : mapping of str to Problem
        The exercises by name, as `accumkit.checks.problems` returns them.

    Raises
    ------
    AccumkitError
        There is no such folder, or no notebook in it.
    """
    if not folder.is_dir():
        raise AccumkitError(f"{folder} is no folder; give the folder that holds what was handed in")
    found = [_submission(folder, path, problems) for path in notebooks(folder)]
    if not found:
        raise AccumkitError(f"there is no notebook (*.ipynb) in {folder} or below it; give the folder that holds them")
    names = owners(folder, [one.learner for one in found])
    found = [replace(one, learner=name) for one, name in zip(found, names, strict=True)]
    return sorted(found, key=lambda one: (one.learner.casefold(), one.file))


def empty_handed(folder: Path, found: Sequence[Submission], out: Path) -> list[str]:
    """Return the learners who have a folder and no notebook in it; none where all notebooks lie side by side.

    ``out`` is where the marks are written, and no learner's.
    """
    return folders_without(folder, [one.file for one in found], out)


def folders_without(folder: Path, files: Iterable[str], out: Path) -> list[str]:
    """Return the learners' folders in which none of these files lies; none where all of them lie side by side."""
    with_some = {file.partition("/")[0] for file in files if "/" in file}
    own = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    folders = {path.name for path in own if not out.resolve().is_relative_to(path.resolve())}
    return sorted(name for name in folders - with_some if with_some and not name.startswith(HIDDEN))


def notebooks(folder: Path) -> Iterator[Path]:
    """Yield the notebooks below a folder; what is hidden and what is a link is passed over."""
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(HIDDEN))
        for name in sorted(names):
            path = Path(here, name)
            if path.suffix.lower() == ".ipynb" and not name.startswith(".") and not path.is_symlink():
                yield path


def _submission(folder: Path, path: Path, problems: Mapping[str, Problem]) -> Submission:
    inside = path.relative_to(folder)
    learner = inside.parts[0] if len(inside.parts) > 1 else _name_in(path.stem, problems)
    try:
        metadata, cells = read(path)
        unreadable = ""
    except AccumkitError as refused:
        metadata, cells, unreadable = {}, (), str(refused)
    exercise = _exercise(metadata, cells, path.stem, problems)
    return Submission(learner, path, inside.as_posix(), exercise, cells, unreadable)


def read(path: Path) -> tuple[dict, tuple[str, ...]]:
    """Return a notebook's metadata, and its code cell by cell.

    Raises
    ------
    AccumkitError
        It cannot be read, or is no notebook of format 4.
    """
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise AccumkitError(f"it has {size / 2**20:.0f} MB, {LARGEST / 2**20:.0f} at most: clear its outputs")
        if not size:
            raise AccumkitError("it is empty: it was not saved or copied to its end")
        notebook = json.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as cause:
        raise AccumkitError(f"it cannot be read ({cause.strerror})") from cause
    except (ValueError, RecursionError) as cause:  # of what is no UTF-8, too
        if isinstance(cause, AccumkitError):
            raise
        raise AccumkitError("it is no notebook: its content is not JSON; it may be half of a file") from cause
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        old = isinstance(notebook, dict) and "worksheets" in notebook
        why = "it has the format of 2014 (open it in JupyterLab and save it)" if old else "it has no list of cells"
        raise AccumkitError(f"it is no notebook of format 4: {why}")
    metadata = notebook.get("metadata")
    return metadata if isinstance(metadata, dict) else {}, tuple(_code(notebook["cells"]))


def _code(cells: list) -> Iterator[str]:
    for number, cell in enumerate(cells, 1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source")
        lines = [source] if isinstance(source, str) else source
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise AccumkitError(f"it is no notebook of format 4: the source of cell {number} is no text")
        yield "".join(lines)


def _exercise(metadata: dict, cells: tuple[str, ...], stem: str, problems: Mapping[str, Problem]) -> str | None:
    """Return which exercise it is: as its metadata says, else as its imports do, else as its name does."""
    own = metadata.get("accumkit")
    told = [own.get("exercise")] if isinstance(own, dict) else []
    told += [name for source in cells for name in IMPORT.findall(source)]
    for name in told:
        if isinstance(name, str) and name in problems:
            return name
    named = ID.search(f"{stem}.".lower())
    return next((name for name, problem in problems.items() if named and problem.id == named[1]), None)


def _name_in(stem: str, problems: Mapping[str, Problem]) -> str:
    """Return what the name of a notebook says beside the exercise's name: whose it is, as a rule."""
    words = {problem.id: re.sub(r"[^a-z0-9]+", "_", problem.title.lower()).strip("_") for problem in problems.values()}
    return beside(stem, *(f"{id}(_{title})?" for id, title in words.items()))


def beside(stem: str, *patterns: str) -> str:
    """Return what the name of a file says beside these patterns, and beside what JupyterLab and browsers add.

    Examples
    --------
    >>> beside("progress anna (1)", "progress"), beside("progress-Copy1", "progress")
    ('anna', '')
    """
    said = re.sub(r"-Copy\d+|\(\d+\)", "", stem)
    for pattern in patterns:
        said = re.sub(pattern, "", said, flags=re.IGNORECASE)
    return said.strip(" _-.")


def owners(folder: Path, names: Sequence[str]) -> list[str]:
    """Return learners' names with something in the place of each "", which stands for a file that says no name.

    Where no file says one, it is a learner's own folder that was given, and its name is the learner's.

    Examples
    --------
    >>> from pathlib import Path
    >>> owners(Path("class"), ["ada", ""]), owners(Path("class/ada"), ["", ""])
    (['ada', '(no name)'], ['ada', 'ada'])
    """
    return [name or (NAMELESS if any(names) else folder.resolve().name) for name in names]
