"""From a right loop's source and a patch to a wrong loop's source, and what differs between them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from accumkit.objective import AccumkitError

STEP = " " * 4  # of indentation


def apply(source: str, patch: Iterable[tuple[str, str]], name: str = "the loop") -> str:
    r"""Return a source with some of its lines replaced.

    Parameters
    ----------
    source : str
        Of the right loop.
    patch : iterable of (str, str)
        Pairs of an old line, written without its indentation, and the text in its place. Lines of the new text are
        indented like the old one; each "<" at the beginning of a line moves it one level out. An empty text removes
        the line.
    name : str
        Of the source, for messages.

    Returns
    -------
    str

    Raises
    ------
    AccumkitError
        An old line does not stand in the source exactly once.

    Examples
    --------
    >>> from accumkit.pitfalls.patching import apply
    >>> print(apply("if last:\n    step()\n    scheduler()\n", [("scheduler()", "<scheduler()")]), end="")
    if last:
        step()
    scheduler()
    """
    lines = source.splitlines()
    replaced = {}
    for old, new in patch:
        index = find(lines, old, name)
        if index in replaced:
            raise AccumkitError(f"two changes of {name} replace the same line {old.strip()!r}; give it once")
        replaced[index] = _indented(new, lines[index])
    done = [line for i, text in enumerate(lines) for line in replaced.get(i, [text])]
    return "\n".join(done) + "\n"


def find(lines: list[str], old: str, name: str = "the loop") -> int:
    """Return the index of the one line that reads ``old``, indentation aside."""
    found = [i for i, line in enumerate(lines) if line.strip() == old.strip()]
    if len(found) != 1:
        near = difflib.get_close_matches(old.strip(), [line.strip() for line in lines], 1)
        hint = f"; nearest to it: {near[0]!r}" if near and not found else ""
        raise AccumkitError(
            f"the line {old.strip()!r} stands {len(found)} times in {name}, and a patch needs it exactly once{hint}"
        )
    return found[0]


def _indented(text: str, like: str) -> list[str]:
    own = like[: len(like) - len(like.lstrip())]
    done = []
    for line in text.splitlines():
        outward = len(line) - len(line.lstrip("<"))
        done.append(own[len(STEP) * outward :] + line[outward:])
    return done


def difference(right: str, wrong: str, name: str) -> str:
    """Return the unified diff from the right source to the wrong one, with its whole context."""
    lines = difflib.unified_diff(
        right.splitlines(), wrong.splitlines(), "right.py", f"{name}.py", n=len(right), lineterm=""
    )
    return "\n".join(lines)


def changed(right: str, wrong: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the lines of the right source that the wrong one lacks, and those that it has instead, from 1."""
    matcher = difflib.SequenceMatcher(a=right.splitlines(), b=wrong.splitlines(), autojunk=False)
    removed: list[int] = []
    added: list[int] = []
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind != "equal":
            removed += range(a + 1, b + 1)
            added += range(c + 1, d + 1)
    return tuple(removed), tuple(added)
