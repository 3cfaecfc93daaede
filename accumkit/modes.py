"""What torch is set to while the kit runs something of its own, whatever a notebook has set."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def as_new() -> Iterator[None]:
    """Run with torch's modes as in a new session, and put back what was set before.

    Gradients are recorded; inference mode, autocast and anomaly detection are off; tensors are made in float32, on the
    CPU. What a notebook left on would else decide what a check or a simulation finds. Deterministic algorithms, the
    number of threads and all else stay as they are.

    Examples
    --------
    >>> import torch
    >>> from accumkit.modes import as_new
    >>> with torch.no_grad(), as_new():
    ...     torch.ones(2, requires_grad=True).sum().requires_grad
    True
    """
    with contextlib.ExitStack() as left:
        left.enter_context(torch.inference_mode(False))
        left.enter_context(torch.enable_grad())
        if torch.is_autocast_enabled("cpu"):
            left.enter_context(torch.autocast("cpu", enabled=False))
        if torch.get_default_device().type != "cpu":
            left.enter_context(torch.device("cpu"))  # costs time in every call, so only where it is needed
        left.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        anomaly = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
        left.callback(torch.autograd.set_detect_anomaly, *anomaly)
        torch.autograd.set_detect_anomaly(False)
        yield
