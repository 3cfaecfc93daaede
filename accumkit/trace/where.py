"""Which line of the reader's code did this."""

from __future__ import annotations

import os
import sys
import sysconfig
from sys import _getframe
from types import CodeType, FrameType

import torch

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_LIBRARIES = tuple({sysconfig.get_paths()[key] + os.sep for key in ("stdlib", "platstdlib", "purelib", "platlib")})
_inner: dict[str, bool] = {}  # by file name: is it torch, this package, the standard library or an installed one?
_names: dict[tuple[int, int], tuple[CodeType, str]] = {}  # by code and instruction; the code is kept, so its id is too
_callers: dict[tuple[int, int, int], str] = {}  # the same, by how many frames up it stood as well
_codes: list[CodeType] = []  # theirs
MOST = 4096  # lines remembered; a long session compiles many cells


def caller(usual: int = 1) -> str | None:
    """Return ``where`` for whatever called the function that calls this.

    ``usual``: how many frames up the reader's line nearly always stands; then it is found without a look at those
    between. A line that has called through them once is named also when it calls through others.
    """
    try:
        frame = _getframe(usual + 1)
        return _callers[id(frame.f_code), frame.f_lasti, usual]
    except (ValueError, KeyError):  # not so many frames, or a line that is new
        return _look(usual)


def _look(usual: int) -> str | None:
    frame = _getframe(3)
    name = where(frame)
    for _ in range(usual - 1):
        if frame is None or not _inner.get(frame.f_code.co_filename):
            return name
        frame = frame.f_back
    if frame is not None and _inner.get(frame.f_code.co_filename) is False:
        if len(_callers) > MOST:
            _callers.clear()
            _codes.clear()
        _callers[id(frame.f_code), frame.f_lasti, usual] = name
        _codes.append(frame.f_code)
    return name


def where(frame: FrameType | None) -> str | None:
    """Return "train.py:12" (or "cell 5, line 3") for the nearest frame outside torch and libraries.

    Where every frame belongs to a library (a framework's trainer started by a test runner, say), the nearest
    frame outside torch and this package is named.
    """
    fallback = None
    while frame is not None:
        code = frame.f_code
        known = _names.get((id(code), frame.f_lasti))  # a line number costs more than the instruction's
        if known is not None:
            return known[1]
        inner = _inner.get(code.co_filename)
        if inner is None:
            inner = _inner[code.co_filename] = _is_inner(code.co_filename)
        if not inner:
            return _known(code, frame)
        if fallback is None and not code.co_filename.startswith((_OWN, _TORCH)):
            fallback = (code, frame.f_lineno)
        frame = frame.f_back
    return _name(*fallback) if fallback else None


def _is_inner(filename: str) -> bool:
    if filename.startswith("<") and not filename.startswith(("<stdin", "<ipython", "<string")):
        return True  # <frozen importlib...> and the like
    path = os.path.abspath(filename)
    return path.startswith((_OWN, _TORCH, *_LIBRARIES))


def _known(code: CodeType, frame: FrameType) -> str:
    """Return the name of a reader's line, and keep it for the next time."""
    if len(_names) > MOST:
        _names.clear()
    name = _name(code, frame.f_lineno)
    _names[id(code), frame.f_lasti] = code, name
    return name


def _name(code: CodeType, line: int) -> str:
    return _cell(code.co_filename, line) or f"{os.path.basename(code.co_filename)}:{line}"


def _cell(filename: str, line: int) -> str | None:
    """Name a notebook cell as the reader sees it, from IPython's own table of compiled cells."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    try:
        kind, label = shell.compile.format_code_name(filename)
    except (AttributeError, TypeError):  # no IPython, an older one, or not a cell
        return None
    return f"{kind.lower()} {label.removeprefix('In[').removesuffix(']')}, line {line}"
