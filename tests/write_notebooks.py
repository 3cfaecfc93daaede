"""Run the lessons and solutions in place, and store what they print: ``python tests/write_notebooks.py [NAME ...]``.

What is stored is what a strict comparison holds every later run against, and what a reader without a kernel sees.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

sys.path.insert(0, str(Path(__file__).resolve().parent))  # also when it runs as a script from elsewhere

from roles import with_roles

ROOT = Path(__file__).resolve().parent.parent
LIVE_ONLY = "application/vnd.jupyter.widget-view+json"  # names a model that dies with its kernel
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # sums in one order on every machine
SECONDS_A_CELL = 120


def notebooks(*rooms: str) -> list[Path]:
    """Return the notebooks of these folders, sorted; none at all is an error, since it would test nothing."""
    found = sorted(path for room in rooms for path in (ROOT / room).glob("*.ipynb"))
    if not found:
        raise FileNotFoundError(f"no notebook in {', '.join(rooms)} under {ROOT}")
    return found


def read(path: Path) -> NotebookNode:
    """Read a notebook, its ids and outputs as stored."""
    return nbformat.read(path, as_version=4)


def executed(path: Path) -> NotebookNode:
    """Return the notebook run from top to bottom in its own folder, as nbval runs it, and normalised.

    A solution gets what belongs to the roles of its cells first.
    """
    notebook = read(path)
    if path.parent.name == "solutions":
        with_roles(notebook)
    os.environ.update(ENVIRONMENT)  # the kernel inherits it
    client = NotebookClient(
        notebook,
        timeout=SECONDS_A_CELL,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        store_widget_state=False,
        coalesce_streams=True,
    )
    client.execute()
    return normalised(notebook)


def normalised(notebook: NotebookNode) -> NotebookNode:
    """Return the notebook without anything that differs from run to run or from machine to machine."""
    notebook.metadata = NotebookNode(METADATA | _only(notebook.metadata, "accumkit"))
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    count = 0
    for cell in notebook.cells:
        cell.metadata = NotebookNode(_only(cell.metadata, "nbgrader", "tags"))
        if cell.cell_type != "code":
            continue
        if cell.execution_count is not None:
            count += 1
            cell.execution_count = count
        for output in cell.outputs:
            output.get("data", {}).pop(LIVE_ONLY, None)
            if output.output_type == "execute_result":
                output.execution_count = cell.execution_count
    return notebook


def _only(metadata: NotebookNode, *keys: str) -> dict:
    return {key: metadata[key] for key in keys if metadata.get(key)}


def write(notebook: NotebookNode, path: Path) -> bool:
    """Write the notebook where it differs from the file; return whether it did."""
    nbformat.validate(notebook)
    text = nbformat.writes(notebook, version=4) + "\n"
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    return True


def main(names: list[str]) -> None:
    """Run the notebooks whose names contain one of ``names``; all of them by default."""
    for path in notebooks("notebooks", "solutions"):
        if not names or any(name in path.name for name in names):
            changed = write(executed(path), path)
            print(f"{'written  ' if changed else 'unchanged'}  {path.relative_to(ROOT)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
