"""Source text made into a module whose tracebacks and locations point at that very text."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import linecache
from hashlib import sha1
from types import CodeType, ModuleType

from accumkit.objective import AccumkitError


class _Text(importlib.abc.InspectLoader):
    """Loads a module from a text in memory; linecache, inspect and tracebacks ask it for the text."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text

    def get_source(self, fullname: str) -> str:
        return self.text

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.text, self.path)

    def is_package(self, fullname: str) -> bool:
        return False


@functools.lru_cache(maxsize=256)
def compiled(name: str, text: str) -> ModuleType:
    r"""Return a module that runs a text.

    Parameters
    ----------
    name : str
        The file's name in tracebacks and locations is ``name.py``, in a folder of its own for each text.
    text : str
        Of the whole module.

    Returns
    -------
    ModuleType
        The same one for the same text.

    Raises
    ------
    AccumkitError
        The text is no Python.

    Examples
    --------
    >>> from accumkit.pitfalls.compiled import compiled
    >>> compiled("two", "def two():\n    return 2\n").two()
    2
    """
    path = f"pitfall-{sha1(text.encode()).hexdigest()[:8]}/{name}.py"  # a file of this name must not exist
    loader = _Text(path, text)
    module = ModuleType(name)
    module.__file__, module.__loader__ = path, loader
    module.__spec__ = importlib.machinery.ModuleSpec(name, loader, origin=path)
    linecache.cache[path] = (len(text), None, text.splitlines(True), path)  # no time of change: checkcache keeps it
    try:
        loader.exec_module(module)
    except SyntaxError as error:
        line = f"line {error.lineno}: {(error.text or '').strip()}"
        raise AccumkitError(f"{name}.py is no valid Python ({error.msg}, {line})") from error
    return module
