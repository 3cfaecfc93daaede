"""What is said under the table of progress: what comes next, and where all this is kept."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from accumkit.checks.problem import Problem
from accumkit.checks.recording import Kept
from accumkit.checks.records import Progress
from accumkit.course import OWN, START

QUIZ_AFTER = "05_mixed_precision_and_clipping.ipynb"  # the lesson that ends with it


def next_step(progress: Progress, problems: Sequence[Problem]) -> tuple[str, str]:
    """Return what to do next, in words, and how the name of its notebook begins ("" where there is none).

    The quiz before the lessons comes first, but only as long as no exercise was tried.

    Examples
    --------
    >>> from accumkit.checks import problems
    >>> from accumkit.checks.progress_notes import next_step
    >>> from accumkit.checks.records import Progress
    >>> next_step(Progress(), list(problems().values()))
    ('the quiz at the end of lesson 00', '00_start_here')
    """
    done = {when for when, one in progress.quiz.items() if one.finished}
    if not done and not any(one.attempts for one in progress.exercises):
        return "the quiz at the end of lesson 00", START.removesuffix(".ipynb")
    for problem in problems:
        one = progress.exercise(problem.id)
        if one is None or not one.solved:
            verb = "go on with exercise" if one and one.attempts else "exercise"
            return f"{verb} {problem.id}, {problem.title}", f"{problem.id}_"
    if "after" not in done:
        return "the quiz at the end of lesson 05", QUIZ_AFTER.removesuffix(".ipynb")
    return "everything here is done; now watch a loop of your own, with ak.watch and ak.audit", ""


def notes(kept: Kept) -> list[str]:
    """Return sentences on where progress is kept, and what is wrong there."""
    if kept.folder is None:
        return [
            "Progress is kept for this session only, since this is no folder that the course was laid in. To keep it, "
            f"open the course with make lab; or make a folder {OWN} beside this notebook, with "
            f'import os; os.mkdir("{OWN}"), and it is written there from then on.'
        ]
    said = []
    if kept.trouble:
        said.append(
            f"Something is wrong with your progress file: {kept.trouble}. Checks answer as always, and what they "
            "found is kept for this session; it is written as soon as that is possible."
        )
    if kept.damaged:
        said.append(
            f"A damaged progress file was set aside and is still there, in the folder {OWN}: "
            f"{', '.join(kept.damaged)}. Progress began anew after it."
        )
    if kept.progress.edited:
        said.append("The progress file was changed by hand at some time; whoever collects it can see that.")
    if ahead := kept.progress.ahead(time.time()):
        said.append(
            f"Something was noted at {ahead}, which is in the future: the clock of this computer was ahead, or is "
            "behind now. Look whether it is right. Nothing is lost; whoever collects the file can see that, too."
        )
    named = re.sub(r"[^\w -]", "", kept.progress.name).strip() or "YOUR NAME"
    return [
        *said,
        f"Kept in {shown(kept.file)}, on this computer only.",
        f'To hand it in: ak.progress().save("progress {named}.json") writes a copy beside this notebook.',
    ]


def shown(file: Path) -> str:
    """Return a path as short as it can be said from here."""
    try:
        near = Path(os.path.relpath(file)).as_posix()
    except (OSError, ValueError):  # ValueError: another drive, on Windows
        near = str(file)
    return near if len(near) < len(str(file)) else str(file)
