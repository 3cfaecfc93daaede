"""Is this machine fit for the course? One line a question, and what to do where the answer is no."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from importlib import import_module, metadata
from pathlib import Path

import torch
from torch import nn

from accumkit.lab import is_this_python, kernel_python

PYTHON = (3, 11)
NEEDED = {  # name of the distribution: (lowest version, module); the same as in pyproject.toml
    "torch": ("2.4", "torch"),
    "numpy": ("2.0", "numpy"),
    "scikit-learn": ("1.5", "sklearn"),
    "matplotlib": ("3.9", "matplotlib"),
    "ipywidgets": ("8.1", "ipywidgets"),
    "ipykernel": ("6.29", "ipykernel"),
    "jupyterlab": ("4.4", None),  # not imported: it is large, and lives in a process of its own
}
MEMORY_GIB = 0.75  # a kernel with torch, a figure and widgets takes 0.25 GiB; JupyterLab and a browser page the rest
INSTALL = 'in the project\'s folder, run: pip install -c constraints.txt -e ".[course]"'


class Unfit(Exception):
    """What is wrong (the first argument) and what to do about it (the second)."""


@dataclass(frozen=True)
class Line:
    """The answer to one question."""

    name: str
    state: str  # "ok", "not needed" or "mend"
    detail: str  # what was found; varies from machine to machine
    advice: str = ""  # what to do, where there is something to mend


@dataclass(frozen=True)
class Report:
    """Every answer. Its plain form holds no version, path or size, so that it is the same on every fit machine."""

    lines: tuple[Line, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is to be mended."""
        return all(line.state != "mend" for line in self.lines)

    @property
    def sentence(self) -> str:
        """The answers in one sentence."""
        if self.ok:
            return "This machine is fit for the course."
        wrong = [line.name for line in self.lines if line.state == "mend"]
        return f"To mend before the course: {', '.join(wrong)}."

    def details(self) -> str:
        """Return the table with what was found on this machine."""
        return _table([(line.name, line.state, line.detail) for line in self.lines], self)

    def __repr__(self) -> str:
        return _table([(line.name, line.state) for line in self.lines], self)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th scope='row' style='text-align:left'>{escape(line.name)}</th>"
            f"<td style='text-align:left'>{escape(line.state)}</td></tr>"
            for line in self.lines
        )
        advice = "".join(f"<p>{escape(text)}</p>" for text in [*_advice(self), self.sentence])
        return f"<table>{rows}</table>{advice}"


def check(directory: Path | str | None = None) -> Report:
    """Look at this machine, and train a small model on it for one update.

    Parameters
    ----------
    directory : path, optional
        Where the copies of the lessons lie or will lie; the working directory if not given.

    Returns
    -------
    Report
        Its repr is a table that is the same on every fit machine; ``details()`` tells what was found.

    Examples
    --------
    >>> from accumkit import doctor
    >>> report = doctor.check()
    >>> print(report.sentence)
    This machine is fit for the course.
    """
    questions: list[tuple[str, Callable[[], str]]] = [("Python", _python)]
    questions += [(name, lambda name=name: _package(name)) for name in NEEDED]
    questions += [
        ("notebook kernel", _kernel),
        ("memory", _memory),
        ("writing files", lambda: _writing(Path(directory or "."))),
        ("a training step", lambda: _training_step(torch.device("cpu"))),
    ]
    return Report((*(_answer(name, ask) for name, ask in questions), _gpu()))


def _answer(name: str, ask: Callable[[], str]) -> Line:
    try:
        return Line(name, "ok", ask())
    except Unfit as wrong:
        return Line(name, "mend", *wrong.args)
    except Exception as wrong:  # an answer, not a crash: a broken package can raise anything
        return Line(name, "mend", f"{type(wrong).__name__}: {wrong}", f"install the packages again; {INSTALL}")


def _python() -> str:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < PYTHON:
        raise Unfit(found, f"Python {'.'.join(map(str, PYTHON))} or newer is needed: make a new environment with it")
    return f"{found} at {sys.executable}"


def _package(name: str) -> str:
    lowest, module = NEEDED[name]
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        if name == "jupyterlab" and _in_notebook():
            return "not installed, and not needed for the notebook that asks"
        raise Unfit("not installed", f"{name} {lowest} or newer is needed; {INSTALL}") from None
    if _numbers(found) < _numbers(lowest):
        raise Unfit(found, f"{name} {lowest} or newer is needed; {INSTALL}")
    if module:
        import_module(module)
    return found


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: 2.13.0+cpu is (2, 13, 0)."""
    numbers = []
    for part in version.split("+")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _in_notebook() -> bool:
    """Whether a notebook of any kind is asking: JupyterLab's, an editor's or a hosted one."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")


def _kernel() -> str:
    if _in_notebook():
        return "this notebook runs in this Python"
    command = kernel_python()
    if not is_this_python(command):
        raise Unfit(
            str(command), "notebooks would run in another Python; run: python -m ipykernel install --sys-prefix"
        )
    return "notebooks run in this Python"


def _memory() -> str:
    free = _free_bytes()
    if free is None:
        return "could not be measured"
    found = f"{free / 2**30:.1f} GiB free"
    if free < MEMORY_GIB * 2**30:
        raise Unfit(found, f"{MEMORY_GIB} GiB are needed: close other programs, or give the container more")
    return found


def _free_bytes() -> int | None:
    """Return the memory that a new process can have: the machine's, or a container's where that is less."""
    import psutil  # comes with ipykernel

    free = psutil.virtual_memory().available
    try:
        limit, used = (int(Path("/sys/fs/cgroup", name).read_text()) for name in ("memory.max", "memory.current"))
        return min(free, limit - used)
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return free


def _writing(directory: Path) -> str:
    place = directory.resolve()
    while not place.exists():
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"accumkit")
    except OSError as cause:
        # not the error's own text, which names a file that nobody has asked for
        raise Unfit(
            cause.strerror or str(cause), f"make {place} writable, or name another folder with --dir"
        ) from cause
    return f"in {place}"


def _training_step(device: torch.device) -> str:
    """Accumulate one update over three micro-batches, and hold it against one backward on all examples."""
    from accumkit.loops import train_epoch  # here, so that a part that cannot be imported is an answer too
    from accumkit.objective import regression

    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(n, k, generator=draw, dtype=torch.float64).to(device) for n, k in ((10, 3), (10, 1)))
    with torch.random.fork_rng(devices=[]):
        model = nn.Linear(3, 1, dtype=torch.float64).to(device)
    before = [p.detach().clone() for p in model.parameters()]
    big = torch.autograd.grad(nn.functional.mse_loss(model(x), y), list(model.parameters()))
    micro_batches = [(x[i : i + 4], y[i : i + 4]) for i in (0, 4, 8)]  # 4, 4 and 2 examples
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    train_epoch(model, micro_batches, optimizer, regression(), accumulation_steps=3)
    gap = max(float((b - p.detach() - g).abs().max()) for b, p, g in zip(before, model.parameters(), big, strict=True))
    if not gap < 1e-12:
        raise Unfit(
            f"the accumulated gradient differs by {gap:.1e} from that of the whole batch",
            f"this machine's arithmetic or its torch is faulty: install torch again; {INSTALL}",
        )
    return "three micro-batches give the update of their one big batch"


def _gpu() -> Line:
    if not torch.cuda.is_available():
        return Line("GPU", "not needed", "no GPU: everything works on the CPU")
    answer = _answer("GPU", lambda: _training_step(torch.device("cuda")))
    name = torch.cuda.get_device_name()
    if answer.state == "ok":
        return Line("GPU", "not needed", f"{name}: works, and panels offer it")
    return Line("GPU", "not needed", f"{name} does not work ({answer.detail}); everything works on the CPU")


def _advice(report: Report) -> list[str]:
    return [f"{line.name}: {line.detail}. {line.advice}" for line in report.lines if line.state == "mend"]


def _table(rows: list[tuple[str, ...]], report: Report) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, "", *_advice(report), report.sentence])
