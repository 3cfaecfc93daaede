"""The right loops: their sources, and the data, model and objective that each runs on."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accumkit.objective import Objective, classification, next_token

LOOPS = Path(__file__).parent / "loops"


@dataclass(frozen=True)
class Base:
    """A right loop.

    Parameters
    ----------
    name : str
        Its source is ``loops/name.py``, with "-" written as "_".
    objective : callable
        Gives the objective that it minimises.
    task : {"images", "tokens"}
        Its data.
    dtype : str
        The precision of its parameters by default.
    dtypes : tuple of str
        Those that it can run in.
    builds : bool
        Whether its source has a ``build()`` for the model.
    flaw : {None, "broken", "broken later", "no targets"}
        What one micro-batch of its data has: images that are not finite (in the second one, or in the second window's
        first), or no target to learn from.
    even : bool
        Whether it is right only where the micro-batches of a window count the same.
    """

    name: str
    objective: Callable[[], Objective] = classification
    task: str = "images"
    dtype: str = "float64"
    dtypes: tuple[str, ...] = ("float64", "float32")
    builds: bool = False
    flaw: str | None = None
    even: bool = False

    @property
    def source(self) -> str:
        """The text of the loop, as it is shown and run."""
        return _read(self.name.replace("-", "_"))


@functools.cache
def _read(name: str) -> str:
    """Return a loop's file without its first docstring, which would praise the wrong loop too."""
    text = (LOOPS / f"{name}.py").read_text(encoding="utf-8")
    first = ast.parse(text).body[0]
    return "".join(text.splitlines(keepends=True)[first.end_lineno :]).lstrip("\n")


def _class_weighted() -> Objective:
    return classification(class_weight=torch.linspace(0.5, 2.0, 10))


def _penalised() -> Objective:
    def penalty(model: nn.Module) -> Tensor:
        return 0.01 * sum(p.square().sum() for p in model.parameters())

    objective = classification()
    return Objective(loss=objective.loss, count=objective.count, per_update=penalty)


def _contrastive() -> Objective:
    def loss(output: Tensor, batch: Any) -> Tensor:
        labels = batch[1]
        return F.cross_entropy(output[:, labels], torch.arange(len(labels), device=labels.device), reduction="sum")

    return Objective(loss=loss, count=lambda batch: len(batch[1]))


_MIXED = {"dtype": "float32", "dtypes": ("float32",)}  # autocast leaves float64 alone

BASES = MappingProxyType(
    {
        base.name: base
        for base in (
            Base("plain"),
            Base("mean", even=True),
            Base("collected"),
            Base("tool"),
            Base("validating"),
            Base("tokens", next_token, "tokens"),
            Base("masked", next_token, "tokens", flaw="no targets"),
            Base("weighted", _class_weighted),
            Base("penalised", _penalised),
            Base("skipping", flaw="broken"),
            Base("clipped"),
            Base("amp", **_MIXED),
            Base("amp-scheduled", flaw="broken later", **_MIXED),
            Base("overflowing", **_MIXED),
            Base("scheduled"),
            Base("averaged"),
            Base("normalised", builds=True),
            Base("dropped-out", builds=True),
            Base("contrastive", _contrastive),
            Base("low-precision", builds=True, **_MIXED),
            Base("logged"),
        )
    }
)
