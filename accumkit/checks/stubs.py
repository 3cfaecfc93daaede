"""From a solution to its stub, and whether a stub is still one."""

from __future__ import annotations

import dis
import re
from typing import Any

from accumkit.checks.guarded import attribute
from accumkit.errors import AccumkitError

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
PLACEHOLDER = "...  # your answer here"


def cut_solution(source: str, placeholder: str = PLACEHOLDER) -> str:
    """Return ``source`` with what stands between `BEGIN` and `END` replaced by a placeholder that does nothing.

    Raises
    ------
    AccumkitError
        A mark without its partner, or one inside another.
    """
    kept: list[str] = []
    inside = False
    for number, line in enumerate(source.splitlines(True), 1):
        mark = line.strip()
        if mark not in (BEGIN, END):
            if re.search(r"#\s*(BEGIN|END) SOLUTION", line, re.IGNORECASE):
                raise AccumkitError(
                    f"line {number}, {mark!r}: a mark stands alone on its line, as {BEGIN!r} or {END!r}"
                )
            if not inside:
                kept.append(line)
            continue
        if inside == (mark == BEGIN):
            raise AccumkitError(f"line {number}: {mark!r} where its partner should come first")
        if mark == BEGIN:
            kept.append(line.replace(BEGIN, placeholder))
        inside = mark == BEGIN
    if inside:
        raise AccumkitError(f"{BEGIN!r} without {END!r}")
    return "".join(kept)


def is_blank(attempt: Any) -> bool:
    """Return True for what holds no answer yet.

    A function does nothing at all (only a docstring, ``...``, ``pass`` or ``return``); in a dict, list or tuple every
    value is still ``...`` or None.
    """
    if attempt is None or attempt is Ellipsis:
        return True
    if type(attempt) in (dict, list, tuple):
        return all(value is None or value is ... for value in (attempt.values() if type(attempt) is dict else attempt))
    code = attribute(attempt, "__code__")
    if code is None:
        return False
    idle = {"RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST"}
    return all(step.opname in idle and (step.opname == "RESUME" or step.argval in (None, ...))
               for step in dis.get_instructions(code))  # fmt: skip
