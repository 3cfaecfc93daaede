"""The marks as a page to read: one file that needs nothing else, light or dark as the reader's system is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape

from accumkit.grading.marks import BROKEN, NO_EXERCISE, NOT_ATTEMPTED, NOT_YET, NOTHING, RIGHT, STATUSES, Mark

STYLE = """
:root { color-scheme: light dark; --line: #b5b5b5; --right: #00664a; --other: #8a3b00; }
@media (prefers-color-scheme: dark) { :root { --line: #666; --right: #5fd0a8; --other: #ffb27d; } }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 76em; padding: 0 1em; }
table { border-collapse: collapse; }
caption { text-align: left; padding: 0 0 .5em; }
th, td { border: 1px solid var(--line); padding: .3em .6em; text-align: left; vertical-align: top; }
td { overflow-wrap: anywhere; min-width: 6em; }
td.number { min-width: 3em; text-align: right; font-variant-numeric: tabular-nums; }
.right { color: var(--right); font-weight: 600; }
.broken { color: var(--other); font-weight: 600; }
.table { overflow-x: auto; margin: 0 0 2em; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .3em 0; max-width: 60em; }
"""
NONE = "none"  # handed in, or no fault named
NOT_CHECKED = "not checked"
CHECKED = (RIGHT, NOT_YET, NOT_ATTEMPTED)


def of(done: Sequence[Mark], summary: str) -> str:
    """Return the page for these marks, as HTML; what learners wrote is text in it, whatever it looks like.

    Examples
    --------
    >>> from accumkit.grading.marks import Mark
    >>> from accumkit.grading.page import of
    >>> "&lt;b&gt;" in of([Mark("<b>", "a.ipynb", "01a", "Write the loop", "right")], "1 notebook: 1 right")
    True
    """
    exercises = [mark for mark in done if mark.status != NO_EXERCISE]
    others = [mark for mark in done if mark.status == NO_EXERCISE]
    parts = [
        f"<h1>Marks</h1><p>{escape(summary)}.</p>",
        "<p>Each notebook was run from top to bottom in a process of its own, and its answer was checked anew: "
        "outputs that were stored in it have no part in its mark.</p>",
        f"<h2>By learner</h2>{_by_learner(exercises)}",
        f"<h2>By exercise</h2>{_by_exercise(exercises)}",
        f"<h2>By notebook</h2>{_by_notebook([mark for mark in exercises if mark.status != NOTHING])}",
    ]
    if others:
        listed = "".join(f"<li>{escape(mark.file)}</li>" for mark in others)
        parts.append(f"<h2>No exercises of this course</h2><p>These were not run.</p><ul>{listed}</ul>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Marks</title><style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )


def _by_learner(done: Sequence[Mark]) -> str:
    ids = sorted({mark.exercise for mark in done if mark.exercise})
    rows = []
    for learner in dict.fromkeys(mark.learner for mark in done):
        best = [_best(done, learner, id) for id in ids]
        cells = "".join(_status(status) for status in best)
        rows.append(f'{_head(learner)}<td class="number">{best.count(RIGHT)} of {len(ids)}</td>{cells}')
    return _table("What each learner has, exercise by exercise; of several notebooks, the best.",
                  ["Learner", "Right", *ids], rows)  # fmt: skip


def _by_exercise(done: Sequence[Mark]) -> str:
    rows = []
    for id, title in sorted({(mark.exercise, mark.title) for mark in done if mark.exercise}):
        those = [mark for mark in done if mark.exercise == id]
        count = Counter(mark.status for mark in those)
        numbers = (count[RIGHT], count[NOT_YET], count[NOT_ATTEMPTED])
        numbers += (len(those) - sum(numbers),)
        cells = "".join(f'<td class="number">{number}</td>' for number in numbers)
        rows.append(f"{_head(f'{id} {title}')}{cells}<td>{escape(common(mark.faults for mark in those) or NONE)}</td>")
    return _table("How many notebooks of each exercise are right, and which faults are the most common.",
                  ["Exercise", "Right", "Not yet", "Not attempted", "Not run to its end", "Faults"], rows)  # fmt: skip


def _by_notebook(done: Sequence[Mark]) -> str:
    rows = []
    for mark in done:
        exercise = f"{mark.exercise} {mark.title}".strip() or "unknown"
        first, *more = mark.said.split("\n\n")
        first = " ".join(first.split())  # as wide as the page is
        said = f"<details><summary>{escape(first)}</summary><pre>{escape(mark.said)}</pre></details>"
        said = said if more else escape(first)
        faults = ", ".join(mark.faults) or (NONE if mark.status in CHECKED else NOT_CHECKED)
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in (exercise, mark.file))
        cells += f"{_status(mark.status)}<td>{escape(faults)}</td><td>{said}</td>"
        rows.append(f'{_head(mark.learner)}{cells}<td class="number">{mark.seconds:.1f}</td>')
    head = ["Learner", "Exercise", "File", "Status", "Faults", "What was said", "Seconds"]
    return _table("Every notebook that is an exercise; the beginning of what was said opens the rest.", head, rows)


def common(faults: Iterable[Sequence[str]], most: int = 5) -> str:
    """Return the most common faults with the number of notebooks that have them, the most common first.

    Examples
    --------
    >>> common([["mean-of-means"], ["tail-dropped", "mean-of-means"]])
    'mean-of-means 2, tail-dropped 1'
    """
    return most_common(Counter(fault for named in faults for fault in dict.fromkeys(named)), most)


def most_common(count: Counter[str], most: int = 5) -> str:
    """Return what was counted with its numbers, the most common first, and how many more there are.

    Examples
    --------
    >>> from collections import Counter
    >>> most_common(Counter("aabbcd"), most=2)
    'a 2, b 2, and 2 more'
    """
    ordered = sorted(count.items(), key=lambda item: (-item[1], item[0]))
    left = [f"and {len(ordered) - most} more"] if len(ordered) > most else []
    return ", ".join([f"{name} {number}" for name, number in ordered[:most]] + left)


def _best(done: Iterable[Mark], learner: str, exercise: str) -> str:
    statuses = {mark.status for mark in done if mark.learner == learner and mark.exercise == exercise}
    return next((status for status in STATUSES if status in statuses), NONE)


def _status(status: str) -> str:
    known = {RIGHT: "right", NOT_YET: "", NOT_ATTEMPTED: "", NONE: ""}
    return f'<td class="{known.get(status, BROKEN)}">{escape(status)}</td>'


def _head(text: str) -> str:
    return f'<th scope="row">{escape(text)}</th>'


def _table(caption: str, head: Sequence[str], rows: Sequence[str]) -> str:
    heads = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(f"<tr>{row}</tr>\n" for row in rows)
    # A wide table scrolls in its own frame, which the keyboard reaches.
    return (
        f'<div class="table" role="region" tabindex="0" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{heads}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )
