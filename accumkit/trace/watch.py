"""Watch any training code, changing nothing in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from accumkit.objective import AccumkitError, Objective
from accumkit.trace.columns import lowest
from accumkit.trace.hooks import dismiss, listen
from accumkit.trace.record import Trace
from accumkit.trace.recorder import Recorder
from accumkit.trace.shorthand import Shorthand


@contextmanager
def watch(
    model: nn.Module, objective: Objective | None = None, *others: Any, accumulation_steps: int, tail: str = "step"
) -> Iterator[Trace]:
    """Trace what a training loop does in the block, and measure what every micro-batch weighs in every update.

    Parameters
    ----------
    model : nn.Module
        The model that the loop trains; the one to which the loop's forward calls go.
    objective : Objective, optional
        What an update should minimise. Without one, events are recorded and no shares are measured.
    accumulation_steps : int
        Micro-batches that the loop means to have in a window.
    tail : str
        "step" if the loop means to step the last, shorter window of an epoch; "drop" if it means to drop it.

    Yields
    ------
    Trace
        Filled while the block runs; complete after it.

    Raises
    ------
    AccumkitError
        An argument that cannot work. Nothing is raised inside the watched loop: what could not be seen is said in
        ``trace.reasons`` and ``update.why``.

    Notes
    -----
    Parameters, optimizer state, buffers and random numbers are those of the unwatched loop, bit for bit. With an
    objective, a window's inputs are kept until its step and run again on a copy of the model: about twice the time,
    and the memory of one more model with its gradients.

    A forward or an objective that keeps something outside the model's parameters and buffers (a generator or queue
    of its own, a counter) is run again on it, so there watching does change the loop; so it does where one begins to
    draw on Python's or numpy's generator after some windows in which it did not. Layers replaced in the block are not
    followed. Forward hooks are left out of the copy, so that a reader's own do not fire twice.

    Examples
    --------
    >>> import accumkit as ak, torch
    >>> model = torch.nn.Linear(2, 3)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> data = [(torch.ones(4, 2), torch.tensor([0, 1, 2, 0]))] * 4
    >>> with ak.watch(model, ak.classification(), accumulation_steps=2) as trace:
    ...     log = ak.train_epoch(model, data, optimizer, ak.classification(), accumulation_steps=2)
    >>> [round(m.share, 6) for m in trace.updates[0].micro_batches]
    [0.5, 0.5]
    """
    if not isinstance(model, nn.Module):
        raise AccumkitError(f"watch needs the model, an nn.Module; given: {type(model).__name__}")
    if objective is not None and not isinstance(objective, Objective):
        raise AccumkitError(f"objective needs an Objective such as ak.classification(); given: {objective!r}")
    if others:  # taken at all so that Python, where accumulation_steps is one of them, says that it is missing
        raise AccumkitError(f"watch needs accumulation_steps= and tail= by name; given without: {others!r}")
    check_steps(accumulation_steps)
    if tail not in ("step", "drop"):
        raise AccumkitError(f'tail needs "step" or "drop"; given: {tail!r}')
    model = _called(model)
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise AccumkitError(
            "the model has parameters without a shape yet (a lazy layer); run one batch through it before watching"
        )
    trainable = [p for p in model.parameters() if p.requires_grad]
    if not trainable:
        raise AccumkitError("the model has no parameter that requires a gradient, so no loop can train it")
    trace = Trace(
        accumulation_steps=accumulation_steps,
        tail=tail,
        unit=objective.unit if objective is not None else None,
        precision=str(lowest(trainable)).removeprefix("torch."),
    )
    recorder = Recorder(model, objective, trace)
    recorder = recorder if objective is not None else Shorthand(recorder)
    trace.fetch = recorder.fetch
    listen(recorder)
    try:
        yield trace
    finally:
        dismiss(recorder)
        recorder.finish()


def check_steps(accumulation_steps: Any) -> None:
    """Raise unless ``accumulation_steps`` is a whole number of at least 1."""
    whole = isinstance(accumulation_steps, int) and not isinstance(accumulation_steps, bool)
    if not whole or accumulation_steps < 1:
        raise AccumkitError(
            f"accumulation_steps needs a whole number of micro-batches, 1 or more; given: {accumulation_steps!r}"
        )


def _called(model: nn.Module) -> nn.Module:
    """Return the module inside a DistributedDataParallel wrapper, which calls it."""
    wrapped = isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel))
    return _called(model.module) if wrapped else model
