"""How long a learner waits for a check: every solution and wrong answer, and the first check of a fresh kernel."""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

from accumkit import checks
from accumkit.checks.attempts import attempted

LIMIT = 2.0  # seconds, of the median
FIRST = """
import time
from accumkit import checks
from accumkit.checks.attempts import attempted
problem = checks.problems()[{name!r}]
begin = time.perf_counter()
attempted(problem, problem.solution_source)
print(time.perf_counter() - begin)
"""


def bench(quick: bool) -> str:
    """Return the table."""
    problems = checks.problems()
    rows, every = [], []
    for name, problem in problems.items():
        took = []
        for source in [problem.solution_source, *(wrong.source for wrong in problem.wrong_answers)]:
            begin = time.perf_counter()
            attempted(problem, source)
            took.append(time.perf_counter() - begin)
        every += took
        if not quick:
            first = [sys.executable, "-c", FIRST.format(name=name)]
            took.append(float(subprocess.run(first, capture_output=True, text=True, check=True).stdout))
        rows.append(f"  {f'{problem.id} {name}':26}  {median(took):>7.2f}  {max(took):>7.2f}")
    mark = "" if median(every) <= LIMIT else "  over its limit"
    first = "" if quick else ", the first check of a fresh kernel among them"
    return "\n".join(
        [
            f"A learner's check: seconds until it answers, over solution and wrong answers{first}",
            f"  {'':26}   median  slowest",
            *rows,
            f"  {'all':26}  {median(every):>7.2f}  {max(every):>7.2f}   limit of the median {LIMIT:g}{mark}",
        ]
    )
