"""Run the training curves of lesson 04 and store their numbers in the package: ``python tests/write_curves.py``.

The lesson shows them before a reader starts the training; a test runs a part of it again and compares.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from accumkit.studies.curves import train

STORED = Path(__file__).resolve().parent.parent / "accumkit" / "studies" / "stored_curves.py"
HEAD = '''"""Training curves run before and stored by ``python tests/write_curves.py``: numbers, nothing else."""

from __future__ import annotations

from accumkit.studies.curves import Curves, Plan

# By norm and micro-batch size, then by seed: validation error in percent after each epoch.
ERRORS = {errors}
# The same networks at the end, on the same digits in training mode.
IN_TRAINING_MODE = {modes}


def stored() -> Curves:
    """Return the default plan's curves as they came out when they were stored.

    Examples
    --------
    >>> from accumkit.studies.stored_curves import stored
    >>> stored().finished
    True
    """
    plan = Plan()
    return Curves(plan, dict(ERRORS), dict(IN_TRAINING_MODE), plan.work)
'''


def main() -> None:
    """Train, print the table, and write the module."""
    *_, found = train()
    print(found, f"\n{found.seconds:.1f} s")
    errors = {key: [[round(e, 4) for e in run] for run in runs] for key, runs in found.errors.items()}
    modes = {key: [round(e, 4) for e in runs] for key, runs in found.in_training_mode.items()}
    STORED.write_text(HEAD.format(errors=errors, modes=modes), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(STORED)], check=True)


if __name__ == "__main__":
    main()
