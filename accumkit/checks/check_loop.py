"""The audit pointed at a learner's training function, on data on which faults show."""

from __future__ import annotations

from collections.abc import Callable

import torch

from accumkit import tasks
from accumkit.audit import Verdict
from accumkit.checks.audited import Setting, audited, in_micro_batches
from accumkit.modes import as_new
from accumkit.objective import AccumkitError, Objective, classification
from accumkit.trace.watch import check_steps

SIZES = (4, 2, 6, 3, 5, 1, 4, 6, 2, 5, 3)  # examples in the micro-batches, over and over
MOST_STEPS = 128  # beyond, the digits do not fill three windows
ARGUMENTS = ("model", "loader", "optimizer", "accumulation_steps")


def check_loop(train: Callable, accumulation_steps: int = 4, *, seconds: float = 20.0) -> Verdict:
    """Run a training function on built-in data and audit what it does.

    The data are handwritten digits for classification, in micro-batches of 1 to 6 examples, three windows a pass of
    which the last is shorter; the function is called twice, a pass each, in float64, with SGD.

    Parameters
    ----------
    train : callable
        ``train(model, loader, optimizer, accumulation_steps)``: one pass over the loader; what it returns is ignored.
    accumulation_steps : int
        N, the micro-batches of a full window; 128 at most.
    seconds : float
        How long it may take, both calls together.

    Returns
    -------
    Verdict
        Of the audit. A function that raises, takes other arguments, trains nothing, stops early or does not end gets
        one that says so, with the line.

    Raises
    ------
    AccumkitError
        ``train`` cannot be called, or another argument cannot work.

    Notes
    -----
    It runs in a thread of its own, with torch's modes as in a new session: gradients are recorded, and tensors are made
    in float32 on the CPU. Random generators, warning filters, torch's settings, and torch's functions and methods if it
    replaced any, are afterwards as they were.

    Examples
    --------
    >>> import accumkit as ak
    >>> def train(model, loader, optimizer, accumulation_steps):
    ...     objective = ak.classification()
    ...     for window in ak.windows(loader, accumulation_steps, objective):
    ...         optimizer.zero_grad()
    ...         for batch in window:
    ...             (objective.total(model, batch) / window.count).backward()
    ...         optimizer.step()
    >>> ak.check_loop(train).ok
    True
    """
    if not callable(train):
        raise AccumkitError(f"check_loop needs a function train({', '.join(ARGUMENTS)}); given: {_shown(train)}")
    check_steps(accumulation_steps)
    if accumulation_steps > MOST_STEPS:
        raise AccumkitError(f"accumulation_steps={accumulation_steps}: {MOST_STEPS} at most, for data of this size")
    if not isinstance(seconds, (int, float)) or not seconds > 0:
        raise AccumkitError(f"seconds={seconds!r}: give a number above 0")
    with as_new():
        return audited(train, setting_of(accumulation_steps, unequal(accumulation_steps)), seconds)


def setting_of(steps: int, sizes: list[int], objective: Objective | None = None) -> Setting:
    """Return digits in micro-batches of these sizes with a small model; by default for classification."""
    model = tasks.mlp(dtype=torch.float64, hidden=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = in_micro_batches(tasks.digits(sum(sizes), torch.float64), sizes)
    arguments = dict(zip(ARGUMENTS, (model, loader, optimizer, steps), strict=True))
    return Setting(model, objective or classification(), loader, arguments, steps)


def unequal(steps: int) -> list[int]:
    """Return the sizes of micro-batches for two full windows, and one that is short where N allows it."""
    return [SIZES[i % len(SIZES)] for i in range(2 * steps + max(1, steps - 1))]


def _shown(thing: object) -> str:
    try:
        return f"{type(thing).__name__} {thing!r}"[:200]
    except Exception:  # its own __repr__ may raise anything
        return f"a {type(thing).__name__}"
