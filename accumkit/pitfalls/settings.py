"""What a simulation is run with, checked before anything runs."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from accumkit import tasks
from accumkit.objective import AccumkitError

LIMITS = {"accumulation_steps": 1_024, "micro_batch_size": 256, "examples": 1_797, "epochs": 50}
OPTIMIZERS = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.1),
    "momentum": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adam": functools.partial(torch.optim.Adam, lr=0.01),
    "adamw": functools.partial(torch.optim.AdamW, lr=0.01, weight_decay=0.01),
}
MODELS = {"mlp": tasks.mlp, "cnn": tasks.cnn}
DTYPES = ("float64", "float32")


@dataclass(frozen=True)
class Settings:
    """What a simulation is run with.

    Parameters
    ----------
    accumulation_steps, micro_batch_size, examples, epochs : int
        From 1 to LIMITS.
    optimizer : str
        One of OPTIMIZERS.
    model : str or None
        One of MODELS; None for the loop's own one.
    dtype : str or None
        One of DTYPES; None for the loop's own choice.
    device : str
        Such as "cpu" or "cuda".
    seed : int
        Of the data's order, the model's first parameters and random numbers.
    unequal : bool
        Whether micro-batches differ in size; else only the last one may be shorter.

    Raises
    ------
    AccumkitError
        A value is out of range or of the wrong type.

    Examples
    --------
    >>> from accumkit.pitfalls.settings import Settings
    >>> Settings(accumulation_steps=3).text
    'N = 3, 19 examples in micro-batches of 4, 1 epoch, sgd'
    """

    accumulation_steps: int = 4
    micro_batch_size: int = 4
    examples: int = 19
    epochs: int = 1
    optimizer: str = "sgd"
    model: str | None = None
    dtype: str | None = None
    device: str = "cpu"
    seed: int = 0
    unequal: bool = False

    def __post_init__(self) -> None:
        for name, most in LIMITS.items():
            whole_number(name, getattr(self, name), 1, most)
        whole_number("seed", self.seed, 0, 2**32 - 1)
        one_of("optimizer", self.optimizer, OPTIMIZERS)
        if self.model is not None:
            one_of("model", self.model, MODELS)
        if self.dtype is not None:
            object.__setattr__(self, "dtype", str(self.dtype).removeprefix("torch."))
            one_of("dtype", self.dtype, DTYPES)
        if not isinstance(self.unequal, bool):
            raise AccumkitError(f"unequal={self.unequal!r}: give True or False")
        object.__setattr__(self, "device", _device(self.device))

    @property
    def torch_dtype(self) -> torch.dtype:
        """The precision, as torch has it."""
        return getattr(torch, self.dtype)

    @property
    def text(self) -> str:
        """The settings in words."""
        parts = [
            f"N = {self.accumulation_steps}",
            f"{self.examples} example{'s' * (self.examples > 1)} in micro-batches of "
            f"{'about ' * self.unequal}{self.micro_batch_size}",
            f"{self.epochs} epoch{'s' * (self.epochs > 1)}",
            self.optimizer,
        ]
        parts += [part for part in (self.model, self.dtype) if part]
        if self.device != "cpu":
            parts.append(self.device)
        return ", ".join(parts + ([f"seed {self.seed}"] if self.seed else []))


def whole_number(name: str, value: Any, least: int, most: int) -> None:
    """Raise unless a setting is a whole number in its range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise AccumkitError(f"{name}={value!r}: give a whole number from {least:,} to {most:,}")


def one_of(name: str, value: Any, allowed: Any) -> None:
    """Raise unless a setting is one of those allowed."""
    if value not in allowed:
        raise AccumkitError(f"{name}={value!r}: give one of {', '.join(map(repr, allowed))}")


def _device(device: Any) -> str:
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except Exception as error:
        raise AccumkitError(
            f"device={device!r} cannot be used here ({error}); give 'cpu', or a device torch has"
        ) from error
    return str(place)
