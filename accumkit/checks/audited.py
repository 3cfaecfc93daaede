"""A learner's function run on a setting of any kind, watched, and audited; whatever it does, there is a verdict."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from accumkit.audit import Verdict, audit
from accumkit.audit.status import UNKNOWN
from accumkit.checks.coverage import started_anew, with_coverage
from accumkit.checks.guarded import Ending, Stop, attribute, run
from accumkit.checks.trained import steps_elsewhere, with_what_was_trained
from accumkit.objective import Objective
from accumkit.trace.record import Trace
from accumkit.trace.watch import watch
from accumkit.trace.where import where

CALLS = 2  # two passes, so that what leaks from one into the next shows
PASSES = 20  # over the data, at most
COUNTED = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}


@dataclass(frozen=True)
class Setting:
    """What a learner's function is run on.

    Parameters
    ----------
    model : nn.Module
    objective : Objective
    loader : DataLoader
        As `in_micro_batches` makes it.
    arguments : dict
        What the function is called with, by name, in the order of its parameters.
    accumulation_steps : int
        N, the micro-batches of a full window.
    """

    model: nn.Module
    objective: Objective
    loader: DataLoader
    arguments: dict[str, Any]
    accumulation_steps: int


def audited(train: Callable, setting: Setting, seconds: float) -> Verdict:
    """Call a function twice, a pass each, and return the audit of what it did to the model.

    Parameters
    ----------
    train : callable
        What it returns is ignored.
    setting : Setting
    seconds : float
        How long both calls may take together.

    Returns
    -------
    Verdict
        A function that raises, takes other arguments, trains nothing, stops early or does not end gets one that says
        so, with the line.
    """
    refused = _refused(train, tuple(setting.arguments))
    if refused:
        return Verdict(UNKNOWN, False, (refused,), (), None)
    call = _call(train, setting.arguments)

    def every() -> None:
        for _ in range(CALLS):
            call()

    model, batches = setting.model, setting.loader.batch_sampler
    watched = watch(model, setting.objective, accumulation_steps=setting.accumulation_steps)
    with steps_elsewhere(model) as elsewhere, watched as trace:
        ending = run(every, seconds)
    if ending.raised or ending.late:
        return Verdict(UNKNOWN, False, (_told(ending, started_anew(trace, len(batches)), trace),), (), trace)
    sizes = [len(chunk) for chunk in batches.chunks]
    verdict = with_what_was_trained(audit(trace), sizes, CALLS, batches.passes, elsewhere)
    return with_coverage(verdict, sizes, setting.accumulation_steps, CALLS)


def in_micro_batches(data: Dataset, sizes: Sequence[int], collate_fn: Callable | None = None) -> DataLoader:
    """Return a loader of micro-batches of these sizes, which can be gone through a limited number of times."""
    stops = torch.tensor(sizes).cumsum(0).tolist()
    chunks = [list(range(stop - size, stop)) for size, stop in zip(sizes, stops, strict=True)]
    return DataLoader(data, batch_sampler=_Batches(chunks), collate_fn=collate_fn)


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


def _refused(train: Callable, names: tuple[str, ...]) -> str | None:
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
    for positional, named in ((names, {}), ((), dict.fromkeys(names))):
        try:
            signature.bind(*positional, **named)
            return None
        except TypeError:
            continue
    return (
        f"{_name(train)} takes {signature}, and is called as train({', '.join(names)}): give it these "
        f"{COUNTED.get(len(names), len(names))} arguments."
    )


def _call(train: Callable, arguments: dict[str, Any]) -> Callable[[], object]:
    try:
        inspect.signature(train).bind(*arguments.values())
    except TypeError:
        return lambda: train(**arguments)
    except Exception:  # what it takes cannot be told
        pass
    return lambda: train(*arguments.values())


def _name(train: Callable) -> str:
    code = attribute(train, "__code__")
    line = where(SimpleNamespace(f_code=code, f_lineno=code.co_firstlineno, f_lasti=-1, f_back=None)) if code else None
    name = attribute(train, "__name__") or type(train).__name__
    return f"{name} ({line})" if line else name


def _told(ending: Ending, anew: str | None, trace: Trace) -> str:
    at = f" at {ending.location}" if ending.location else ""
    if ending.raised:
        why = _why_raised(ending.raised, trace)
        return f"The function raised {ending.raised.rstrip('.')}{at}; it cannot be judged before it runs through.{why}"
    return f"The function {ending.late}{at}, and was stopped" + (f". {anew}" if anew else ": does its loop end?")


def _why_raised(raised: str, trace: Trace) -> str:
    """Return a sentence on errors that a window's end often makes."""
    if "StopIteration" in raised:
        return (
            " `next` found nothing left: the last window of a pass may be shorter than `accumulation_steps`. An "
            "`islice` of the iterator takes what there is, and gives an empty list at the end."
        )
    cleared = trace.events and trace.events[-1].kind in ("step", "zero_grad")
    if cleared and ("'NoneType'" in raised or raised.startswith("ZeroDivisionError")):
        return (
            " Nothing is left there: the step before has used all gradients, and they are cleared. Do it only if a "
            "backward came since."
        )
    return ""
