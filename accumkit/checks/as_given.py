"""Whether a loop used what it was given as it was given: the optimizer, its settings, and the model's mode."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from accumkit.audit.findings import several
from accumkit.trace.where import where


class AsGiven:
    """What optimizer steps showed of a model and an optimizer that were handed to a learner's loop.

    Parameters
    ----------
    model : nn.Module
    optimizer : Optimizer

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> given = AsGiven(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> with given.seen():
    ...     torch.optim.SGD(model.parameters(), lr=0.2).step()
    >>> given.wrong[0]
    'The steps are those of another optimizer (another-optimizer)'
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.settings, self.training = _settings(optimizer), model.training
        self.own, self.others = 0, []  # steps of the optimizer given, and the lines of others that move the model
        self.changed: tuple[str, object, str | None] | None = None
        self.mode: tuple[str | None] | None = None

    @contextlib.contextmanager
    def seen(self) -> Iterator[None]:
        """Look at every optimizer step made inside."""
        handle = register_optimizer_step_post_hook(self._stepped)
        try:
            yield
        finally:
            handle.remove()

    @property
    def steps(self) -> int:
        """Steps that moved the model, whoever made them."""
        return self.own + len(self.others)

    @property
    def wrong(self) -> tuple[str, ...] | None:
        """Heading and sentences on what was not used as given; None where all was."""
        if self.others and not self.own:
            return (
                "The steps are those of another optimizer (another-optimizer)",
                f"Measured: {several(len(self.others), 'step')}, none of them of the `optimizer` that is given; the "
                "settings and the state of that one, its momentum for example, play no part.",
                f"To change, at {self.others[0] or 'the step'}: call `optimizer.step()` of the one that is given, and "
                "make no other.",
            )
        if self.changed:
            name, value, line = self.changed
            return (
                "The optimizer's settings are changed (changed-settings)",
                f"Measured: {name}={_shown(value)} at a step, where {name}={_shown(self.settings[name])} was given.",
                f"To change, before the step{_at(line)}: leave {name} as it is. The loop's task is the gradient; a "
                "mean over the window needs no other learning rate than the big batch does.",
            )
        if self.mode:
            return (
                "The model is not in training mode (eval-mode)",
                "Measured: `model.training` is False at a step. This model does the same in both modes; with dropout "
                "or BatchNorm it would not, and would train as it should only be tested.",
                f"To change, before the step{_at(self.mode[0])}: leave out `model.eval()`.",
            )
        return None

    def _stepped(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        line = where(sys._getframe(1))
        if optimizer is not self.optimizer:
            moved = {id(p) for p in self.model.parameters()}
            if any(id(p) in moved for group in optimizer.param_groups for p in group["params"]):
                self.others.append(line)
            return
        self.own += 1
        now = _settings(optimizer)
        other = next((name for name, value in self.settings.items() if now.get(name) != value), None)
        if other and self.changed is None:
            self.changed = other, now.get(other), line
        if self.training and not self.model.training and self.mode is None:
            self.mode = (line,)


def _settings(optimizer: Optimizer) -> dict[str, object]:
    """Return the settings of the first group; the optimizers of the exercises have one."""
    return {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}


def _at(line: str | None) -> str:
    return f" at {line}" if line else ""


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:40]
