"""The audit pointed at a learner's training function, on data on which faults show."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import torch
from torch.utils.data import DataLoader

from accumkit import tasks
from accumkit.audit import Verdict, audit
from accumkit.audit.status import UNKNOWN
from accumkit.checks.coverage import started_anew, with_coverage
from accumkit.checks.guarded import Ending, Stop, attribute, run
from accumkit.checks.trained import steps_elsewhere, with_what_was_trained
from accumkit.objective import AccumkitError, classification
from accumkit.trace.watch import check_steps, watch
from accumkit.trace.where import where

SIZES = (4, 2, 6, 3, 5, 1, 4, 6, 2, 5, 3)  # examples in the micro-batches, over and over
MOST_STEPS = 128  # beyond, the digits do not fill three windows
CALLS = 2  # two passes, so that what leaks from one into the next shows
PASSES = 20  # over the data, at most
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
    It runs in a thread of its own. Random generators, warning filters, torch's settings, and torch's functions and
    methods if it replaced any, are afterwards as they were.

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
    refused = _refused(train)
    if refused:
        return Verdict(UNKNOWN, False, (refused,), (), None)
    model = tasks.mlp(dtype=torch.float64, hidden=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = _loader(accumulation_steps)
    call = _call(train, (model, loader, optimizer, accumulation_steps))

    def both() -> None:
        for _ in range(CALLS):
            call()

    watched = watch(model, classification(), accumulation_steps=accumulation_steps)
    with steps_elsewhere(model) as elsewhere, watched as trace:
        ending = run(both, seconds)
    if ending.raised or ending.late:
        return Verdict(UNKNOWN, False, (_told(ending, started_anew(trace, len(loader))),), (), trace)
    sizes = [len(chunk) for chunk in loader.batch_sampler.chunks]
    verdict = with_what_was_trained(audit(trace), sizes, CALLS, loader.batch_sampler.passes, elsewhere)
    return with_coverage(verdict, sizes, accumulation_steps, CALLS)


class _Batches:
    """Gives a DataLoader its micro-batches, for a limited number of passes."""

    def __init__(self, chunks: list[list[int]]) -> None:
        self.chunks, self.passes = chunks, 0

    def __len__(self) -> int:
        return len(self.chunks)

    def __iter__(self) -> Iterator[list[int]]:
        self.passes += 1
        if self.passes > PASSES:
            raise Stop(f"went over its data more than {PASSES} times instead of once a call")
        return iter(self.chunks)


def _loader(steps: int) -> DataLoader:
    """Return digits in micro-batches of unequal size: two full windows, and one that is short where N allows it."""
    sizes = [SIZES[i % len(SIZES)] for i in range(2 * steps + max(1, steps - 1))]
    stops = torch.tensor(sizes).cumsum(0).tolist()
    chunks = [list(range(stop - size, stop)) for size, stop in zip(sizes, stops, strict=True)]
    return DataLoader(tasks.digits(stops[-1], torch.float64), batch_sampler=_Batches(chunks))


def _refused(train: Callable) -> str | None:
    """Return why a function cannot be run as a training loop, or None."""
    try:
        waits = inspect.iscoroutinefunction(train)
        yields = inspect.isgeneratorfunction(train) or inspect.isasyncgenfunction(train)
        signature = None if waits or yields else inspect.signature(train)
    except Exception:  # some built-in callables have none, and an object of a reader's own may raise anything
        return None
    if signature is None:
        kind = "a coroutine (async def)" if waits else "a generator (it has a yield)"
        return f"{_name(train)} is {kind}: calling it runs none of its lines, so nothing is trained."
    for positional, named in ((ARGUMENTS, {}), ((), dict.fromkeys(ARGUMENTS))):
        try:
            signature.bind(*positional, **named)
            return None
        except TypeError:
            continue
    return (
        f"{_name(train)} takes {signature}, and is called as train({', '.join(ARGUMENTS)}): give it these four "
        "arguments."
    )


def _call(train: Callable, arguments: tuple) -> Callable[[], object]:
    try:
        inspect.signature(train).bind(*arguments)
    except TypeError:
        return lambda: train(**dict(zip(ARGUMENTS, arguments, strict=True)))
    except Exception:  # what it takes cannot be told
        pass
    return lambda: train(*arguments)


def _shown(thing: object) -> str:
    try:
        return f"{type(thing).__name__} {thing!r}"[:200]
    except Exception:  # its own __repr__ may raise anything
        return f"a {type(thing).__name__}"


def _name(train: Callable) -> str:
    code = attribute(train, "__code__")
    line = where(SimpleNamespace(f_code=code, f_lineno=code.co_firstlineno, f_back=None)) if code else None
    name = attribute(train, "__name__") or type(train).__name__
    return f"{name} ({line})" if line else name


def _told(ending: Ending, anew: str | None) -> str:
    at = f" at {ending.location}" if ending.location else ""
    if ending.raised:
        return f"The function raised {ending.raised.rstrip('.')}{at}; it cannot be judged before it runs through."
    return f"The function {ending.late}{at}, and was stopped" + (f". {anew}" if anew else ": does its loop end?")
