"""The process that keeps notebooks' processes: ``python -m accumkit.grading.worker``, a request and a mark a line.

It imports torch and the exercises once. Each notebook then runs in a copy of it, which starts at once.
"""

from __future__ import annotations

import contextlib
import json
import sys

import torch

from accumkit import checks, tasks
from accumkit.grading import keeper, limits


def main(arguments: list[str]) -> None:
    """Answer requests from the standard input until it ends; or be the process of one notebook."""
    if arguments == ["--one"]:
        keeper.run_job(json.loads(sys.stdin.buffer.read()))
    limits.prctl(limits.REAPS_ORPHANS, 1)
    import_all()
    isolated = limits.possible()
    answer({"isolated": isolated})
    for line in sys.stdin:
        answer(keeper.keep(json.loads(line), isolated))


def import_all() -> None:
    """Load what the checks need, and compute nothing: a copy of a process that has computed may stand still."""
    checks.problems()
    torch.optim.SGD([torch.zeros(1)], lr=1.0)  # the first optimizer imports a good part of torch: seconds
    with contextlib.suppress(Exception):  # a check that needs them says so itself
        tasks.digits(1)


def answer(said: dict) -> None:
    """Write a line to the one who asks."""
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
