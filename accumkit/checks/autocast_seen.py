"""Under which autocast a model's forwards ran, seen by the layers that compute."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from accumkit.trace.where import where


@dataclass(frozen=True)
class Forward:
    """A layer's forward for training."""

    dtype: torch.dtype | None  # of the autocast that it ran under; None without one
    location: str | None  # the line that called the model


class Seen(list[Forward]):
    """The forwards, in their order."""

    backward_under_it = False  # whether a backward ran under autocast too


@contextlib.contextmanager
def forwards_of(model: nn.Module) -> Iterator[Seen]:
    """Yield a list that gets every forward, with gradients, of the layers of a model; nothing stays on the model.

    Layers are asked and not the whole model, since autocast may be switched on inside its forward too.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Linear(2, 1)
    >>> with forwards_of(layer) as seen, torch.autocast("cpu", dtype=torch.float16):
    ...     y = layer(torch.ones(1, 2))
    >>> [forward.dtype for forward in seen]
    [torch.float16]
    """
    seen = Seen()
    device = next((p.device.type for p in model.parameters()), "cpu")

    def called(layer: nn.Module, args: tuple) -> None:
        if torch.is_grad_enabled():
            dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
            seen.append(Forward(dtype, where(sys._getframe(1))))

    def came(parameter: nn.Parameter) -> None:
        seen.backward_under_it = seen.backward_under_it or torch.is_autocast_enabled(device)

    computing = [layer for layer in model.modules() if any(p is not None for p in layer._parameters.values())]
    handles = [layer.register_forward_pre_hook(called) for layer in computing]
    handles += [p.register_post_accumulate_grad_hook(came) for p in model.parameters() if p.requires_grad]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def not_under(dtype: torch.dtype, seen: Sequence[Forward]) -> tuple[str, ...] | None:
    """Return heading and sentences on the first forward that did not run under autocast of a dtype, or None."""
    other = next((forward for forward in seen if forward.dtype != dtype), None)
    if other is None:
        return None
    name, at = str(dtype), f", at {other.location}" if other.location else ""
    if other.dtype is None:
        return (
            "The forward is not under autocast (no-autocast)",
            "Seen when the model was called: autocast was off, so all is computed in the precision of the parameters.",
            f'To change{at}: put the line that calls the model under `with torch.autocast("cpu", dtype={name}):`; it '
            "is no help to lines above or below its own.",
        )
    default = ", which autocast takes on the CPU where no `dtype` is given" * (other.dtype == torch.bfloat16)
    return (
        "Autocast of another precision (other-autocast-dtype)",
        f"Seen when the model was called: autocast was on in {str(other.dtype).removeprefix('torch.')}{default}.",
        f"To change{at}: `dtype={name}`. It is float16 that needs a scaler: small ones vanish in it.",
    )
