"""What a loop trained: the model that it was given, and all of its data once a call."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from accumkit.audit import Verdict
from accumkit.audit.findings import several
from accumkit.audit.status import DIFFERENT, EQUIVALENT
from accumkit.trace.where import where

ONE_PASS = "one pass a call was asked for"
OFTEN = {1: "once", 2: "twice"}


@contextlib.contextmanager
def steps_elsewhere(model: nn.Module) -> Iterator[list[str | None]]:
    """Yield a list that gets the line of every optimizer step that has no parameter of ``model``.

    Examples
    --------
    >>> import torch
    >>> given, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    >>> with steps_elsewhere(given) as lines:
    ...     torch.optim.SGD(other.parameters(), lr=0.1).step()
    ...     torch.optim.SGD(given.parameters(), lr=0.1).step()
    >>> len(lines)
    1
    """
    own, lines = {id(p) for p in model.parameters()}, []

    def stepped(optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        if not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
            lines.append(where(sys._getframe(1)))

    handle = register_optimizer_step_post_hook(stepped)
    try:
        yield lines
    finally:
        handle.remove()


def with_what_was_trained(
    verdict: Verdict, sizes: Sequence[int], calls: int, begun: int, elsewhere: list[str | None]
) -> Verdict:
    """Say it where the model given was not trained, or was trained on more than a pass a call.

    Parameters
    ----------
    verdict : Verdict
        Of the audit.
    sizes : sequence of int
        Examples in each micro-batch of a pass.
    calls : int
        How often the function was called.
    begun : int
        How often the loader was gone through, to train or for something else.
    elsewhere : list of (str or None)
        As `steps_elsewhere` gives them.

    Returns
    -------
    Verdict
    """
    trace = verdict.trace
    if not trace.micro_batches:
        return replace(verdict, ok=False, reasons=(_not_trained(verdict, elsewhere),))
    examples, due = sum(m.examples for m in trace.micro_batches), calls * sum(sizes)
    if examples <= due or any(finding.pitfall == "data-reused" for finding in verdict.findings):
        return verdict
    passes = min(begun, sum(size > 0 for size in trace.epoch_sizes))
    often, rest = divmod(passes, calls)
    if passes <= calls:
        seen = f"The function trained on {examples} examples in {calls} calls, where a pass each has {due}"
    elif rest:
        seen = f"The function went through the loader {passes} times in {calls} calls"
    else:
        seen = f"The function went through the loader {OFTEN.get(often, f'{often} times')} in one call"
    status = DIFFERENT if verdict.status == EQUIVALENT else verdict.status
    reason = f"{seen}: {ONE_PASS}, so each example should be trained on once."
    others = [said for said in verdict.reasons if not said.startswith("Windows of ")]  # whose windows say no more
    return replace(verdict, status=status, ok=False, reasons=(reason, *others))


def _not_trained(verdict: Verdict, elsewhere: list[str | None]) -> str:
    made, forwards = verdict.trace.count_of("step"), verdict.trace.count_of("forward")
    if made and forwards and not elsewhere:
        return (
            f"{several(forwards, 'forward call')} and {several(made, 'optimizer step')}, but no backward: only "
            "`.backward()` can be watched. Gradients that come from `torch.autograd.grad`, or are put into `.grad` by "
            "hand, are not seen. Call `backward()` on each loss; it adds to `.grad` by itself."
        )
    if not elsewhere:
        return f"{verdict.reason} (If a copy of the model was trained: train the one that was given.)"
    at = f" (at {elsewhere[0]})" if elsewhere[0] else ""
    return (
        f"The model given was not trained: {several(len(elsewhere), 'step')}{at} changed other parameters. Train the "
        "model that is given, no copy of it, with the optimizer that is given."
    )
