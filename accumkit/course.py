"""The learner's own copies of lessons and exercises: laid once, refreshed while untouched, never written over."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from accumkit.errors import AccumkitError

START = "00_start_here.ipynb"
RUN_FIRST = "run-first"  # the tag of a cell whose output the learner is to guess before it is seen
OWN = ".accumkit"  # a hidden folder beside the copies, for what the kit itself needs to know


def home() -> Path:
    """Return the folder that holds the kit's notebooks and exercises.

    Returns
    -------
    Path
        The project's folder.

    Raises
    ------
    AccumkitError
        The package was installed without its course.

    Examples
    --------
    >>> from accumkit import course
    >>> (course.home() / "notebooks").is_dir()
    True
    """
    folder = Path(__file__).resolve().parent.parent
    if not (folder / "notebooks" / START).is_file():
        raise AccumkitError(
            f"there is no notebooks/{START} in {folder}, beside this accumkit: the package was installed without its "
            'course; get the whole project and, in its folder, run: pip install -c constraints.txt -e ".[course]"'
        )
    return folder


def lay(folder: Path, directory: Path) -> dict[str, str]:
    """Copy lessons and exercises into ``directory`` without ever writing over what the learner touched.

    A copy counts as touched once it differs from what was laid; a notebook that was only run and saved does.

    Parameters
    ----------
    folder : Path
        Where the kit's ``notebooks`` and ``exercises`` lie.
    directory : Path
        Where the copies go: lessons at its top, exercises in ``exercises``. It is made if it is not there.

    Returns
    -------
    dict
        What was done, in words, by the name of the copy.

    Raises
    ------
    AccumkitError
        The directory is one of the kit's own, or cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from accumkit import course
    >>> with tempfile.TemporaryDirectory() as kit, tempfile.TemporaryDirectory() as work:
    ...     lesson = Path(kit, "notebooks", "01_lesson.ipynb")
    ...     lesson.parent.mkdir()
    ...     _ = lesson.write_text("a lesson")
    ...     course.lay(Path(kit), Path(work)), course.lay(Path(kit), Path(work))
    ({'01_lesson.ipynb': 'new'}, {'01_lesson.ipynb': 'as it was'})
    """
    inside = [folder.resolve(), *(folder.resolve() / room for room in ("notebooks", "exercises"))]
    if directory.resolve() in inside:
        raise AccumkitError(f"{directory} holds the kit's own files; name another folder for your copies")
    try:
        (directory / OWN).mkdir(parents=True, exist_ok=True)
        laid = _read(directory / OWN / "laid.json")
        kit = originals(folder)
        done = {name: _lay_one(directory / name, name, content, laid) for name, content in kit.items()}
        for name in sorted(laid.keys() - kit.keys()):
            done[name] = _withdraw(directory / name, name, laid)
        _write(directory / OWN / "laid.json", json.dumps(laid, indent=1, sort_keys=True).encode())
    except OSError as cause:
        raise AccumkitError(
            f"your copies cannot be laid in {directory} ({cause}); make room there or make it writable, "
            "or name another folder with --dir"
        ) from cause
    return done


def originals(folder: Path) -> dict[str, bytes]:
    """Return the content of each file to lay, by the name of its copy.

    Links between the two rooms are adjusted, and cells that answer what a lesson asks come without their outputs.
    """
    found = {}
    for room, place, link, adjusted in (
        ("notebooks", Path(), b"](../exercises/", b"](exercises/"),
        ("exercises", Path("exercises"), b"](../notebooks/", b"](../"),
    ):
        for path in sorted((folder / room).rglob("*")):
            inside = path.relative_to(folder / room)
            if path.is_file() and not any(part.startswith((".", "__")) for part in inside.parts):
                content = path.read_bytes()
                if path.suffix == ".ipynb":
                    content = _unanswered(content.replace(link, adjusted))
                found[(place / inside).as_posix()] = content
    return found


def _unanswered(content: bytes) -> bytes:
    """Return a notebook without what the cells tagged `RUN_FIRST` printed when it was stored."""
    if f'"{RUN_FIRST}"'.encode() not in content:
        return content
    notebook = json.loads(content)
    for cell in notebook["cells"]:
        if RUN_FIRST in cell["metadata"].get("tags", []):
            cell["outputs"], cell["execution_count"] = [], None
    return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()


def _lay_one(copy: Path, name: str, content: bytes, laid: dict[str, str]) -> str:
    """Lay one file, note its hash in ``laid``, and say what was done."""
    original = _hash(content)
    if not copy.exists():
        _write(copy, content)
        laid[name] = original
        return "new"
    present = _hash(copy.read_bytes())
    if present == original:
        laid[name] = original
        return "as it was"
    if present == laid.get(name):
        _write(copy, content)
        laid[name] = original
        return "refreshed: you had not touched it, and the kit has a newer one"
    if laid.get(name) == original:
        return "yours, kept"
    return "yours, kept; the kit has a newer one: rename yours and run this again to get it beside yours"


def _withdraw(copy: Path, name: str, laid: dict[str, str]) -> str:
    """Take back an untouched copy of a file that the kit no longer has; what the learner touched stays."""
    untouched = copy.is_file() and _hash(copy.read_bytes()) == laid[name]
    if untouched:
        copy.unlink()
    del laid[name]
    return "taken away: the kit no longer has it, and you had not touched it" if untouched else "yours, kept"


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read(manifest: Path) -> dict[str, str]:
    """Return the hash of each copy as it was laid; nothing where that is unknown, so that every copy is kept."""
    try:
        laid = json.loads(manifest.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return laid if isinstance(laid, dict) else {}


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.half")
    half.write_bytes(content)
    os.replace(half, path)
