"""A window happens whole or not at all: put a model back, and say what went wrong and what is kept."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from accumkit.batches import OUT_OF_MEMORY, describe
from accumkit.errors import AccumkitError, said, several
from accumkit.window import Window


class Undo:
    """Puts gradients and buffers (such as BatchNorm's statistics) back to where a window found them.

    Parameters do not change before the optimizer's step, unless forward itself writes into them, so they are not
    copied: that would cost as much as the model in every window. Gradients are set aside, not cleared in place: an
    epoch's first window may find some, later windows find none. Those of frozen parameters too: a step applies every
    ``.grad`` that it finds.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parameters: dict[nn.Parameter, None] = {}
        self._found: list[tuple[nn.Parameter, Tensor]] = []
        # those that are None yet, too: a forward may fill them
        self._buffers = [(module, name) for module in model.modules() for name in module._buffers]
        self._saved: list[tuple[nn.Module, str, Tensor | None, Tensor | None]] = []

    def set_aside(self, parameters: Iterable[nn.Parameter]) -> None:
        """Take in parameters, and set the gradients aside that they come with."""
        for parameter in parameters:
            if parameter not in self._parameters:
                if parameter.grad is not None:  # in this order, so that an interrupt between two lines loses none
                    self._found.append((parameter, parameter.grad))
                self._parameters[parameter] = None
                parameter.grad = None

    def clear(self) -> None:
        """Set every gradient to None."""
        for parameter in self._parameters:  # cheaper than optimizer.zero_grad(), and the same
            parameter.grad = None

    def remember(self) -> None:
        """Copy the buffers at the start of a window."""
        if self._buffers:
            found = [(module, name, module._buffers.get(name)) for module, name in self._buffers]
            self._saved = [(module, name, b, None if b is None else b.clone()) for module, name, b in found]

    def restore(self) -> list[str]:
        """Put gradients and buffers back; return what could not be, in words, and raise nothing.

        An error or an interrupt may be on its way, which a second one would hide.
        """
        self.clear()
        failed, copies = [], {}
        for parameter, gradient in self._found:
            try:
                parameter.grad = gradient
            except Exception as error:
                failed.append(f"a gradient found before the epoch ({said(error)})")
        for module, name, buffer, before in self._saved:
            try:
                if buffer is not None and not _as_before(buffer, before):
                    buffer = copies.setdefault(id(buffer), before)  # one tensor again where several modules share it
                setattr(module, name, buffer)  # a forward may have put another tensor in its place
            except Exception as error:
                failed.append(f"the buffer {name} of {type(module).__name__} ({said(error)})")
        self._saved = []
        return failed

    def settle(self) -> None:
        """Let go of everything after an update."""
        self.clear()
        self._saved, self._found = [], []


def _as_before(buffer: Tensor, before: Tensor) -> bool:
    """Make a buffer what it was, where torch lets it be written to, and return whether it is."""
    with torch.no_grad():
        try:
            if buffer.shape != before.shape:
                buffer.resize_(before.shape)
            if buffer.dtype is before.dtype and torch.equal(buffer, before):
                return True  # without a write, which one that is expanded or from inference mode refuses
        except RuntimeError:
            pass  # sparse ones cannot be compared
        try:
            buffer.copy_(before)
        except RuntimeError:
            return False
    return (buffer.shape, buffer.dtype) == (before.shape, before.dtype)


def bad_loss(loss: Any, where: str) -> AccumkitError:
    """Return the error for a loss that cannot be accumulated."""
    if not isinstance(loss, Tensor):
        return AccumkitError(
            f"{where}: the objective's loss is {type(loss).__name__}, not a tensor; return the summed loss as a tensor "
            "attached to the graph, so no .item(), float() or numpy"
        )
    if loss.dim():
        return AccumkitError(
            f"{where}: the objective's loss has shape {tuple(loss.shape)}, not a scalar; sum it, "
            'for example with reduction="sum" or .sum()'
        )
    if loss.is_complex():
        return AccumkitError(
            f"{where}: the objective's loss is complex, and no number of that kind is the smallest; return a real one, "
            "such as .real or .abs() of it"
        )
    return AccumkitError(
        f"{where}: the objective's loss is not attached to the graph, so it has no gradient; leave out .detach(), "
        ".item() and torch.no_grad(), and check that forward uses parameters that require a gradient"
    )


def not_finite(
    losses: list[float], counts: list[float], term: float | None, model: nn.Module, where: str
) -> AccumkitError:
    """Return the error for a window whose loss or per-update term is NaN or infinite."""
    if term is not None and isfinite(sum(losses)):
        return AccumkitError(f"{where}: the objective's per_update term is {term}; look at what it computes")
    first = next((i for i, loss in enumerate(losses) if not abs(loss) < float("inf")), len(losses) - 1)
    if any(not torch.isfinite(p).all() for p in model.parameters()):
        hint = "parameters of the model are not finite already: go back to a sound checkpoint"
    elif not counts[first]:
        hint = 'it has no valid unit: the mean of nothing is NaN, so let the objective sum (reduction="sum")'
    else:
        hint = "look at that batch's values, the learning rate, and logarithms or divisions in the loss"
    return AccumkitError(f"{where}, micro-batch {first + 1}: its loss is {losses[first]}; {hint}")


def added_within(where: str) -> AccumkitError:
    """Return the error for parameters that came to the optimizer while a window was gone through."""
    return AccumkitError(
        f"{where}: the optimizer was given other parameters in the middle of its window, so their gradient is not that "
        "of a whole one; add them between updates, for example when a scheduler steps"
    )


def nothing_counts(window: Window, where: str) -> AccumkitError:
    """Return the error for a window without one valid unit."""
    return AccumkitError(
        f"{where}: not one valid unit in its window ({several(len(window), 'micro-batch')}, "
        f"{several(window.examples, 'example')}, count {window.count}), so its mean is not defined; check targets and "
        "ignore_index, or use larger windows"
    )


DOING = {
    "fetch": "fetching a batch",
    "train": "forward, the objective or backward",
    "finish": "per_update or clipping",
    "step": "the optimizer's step",
    "schedule": "the scheduler's step",
}


def explain(error: BaseException, doing: str, update: int, micro_batch: int, batch: Any) -> BaseException:
    """Return the exception to raise for ``error`` in an epoch: what went wrong, where, and what is kept.

    Interrupts and out-of-memory errors stay what they are, with a note, since callers act on their type.

    Parameters
    ----------
    error : BaseException
        What was raised.
    doing : str
        A key of ``DOING``.
    update, micro_batch : int
        Which ones, from 1.
    batch : object
        The batch that was trained on, None where there was none.
    """
    made = update if doing == "schedule" else update - 1
    kept = {0: "No update was made yet", 1: "Update 1 is kept"}.get(made, f"Updates 1 to {made} are kept")
    if doing == "step":
        kept += f"; update {update} was cut inside the step, so parameters and optimizer may have changed in part"
    elif doing == "schedule":
        kept += f": update {update} was made, its scheduler step was not"
    else:
        kept += f"; the model is as it was before update {update}"
    if isinstance(error, AccumkitError):
        return AccumkitError(f"{said(error)}. {kept}.")
    doing = "fetch" if doing == "train" and batch is None else doing
    where = f"update {update}" + (f", micro-batch {micro_batch}" if doing == "train" else "")
    if not isinstance(error, Exception) or isinstance(error, OUT_OF_MEMORY):
        error.add_note(f"This was in {where}, in {DOING[doing]}. {kept}.")
        return error
    text = f"{where}: {DOING[doing]} raised {type(error).__name__}: {said(error)}."
    if doing == "train":
        text += f" The batch was {describe(batch)}; try objective.total(model, batch) on such a batch alone."
    return AccumkitError(f"{text} {kept}.")
