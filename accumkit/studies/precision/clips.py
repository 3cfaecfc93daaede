"""Clipping: the norm that clipping saw, the factor it applied, and the update that resulted, by way and by scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from accumkit.objective import AccumkitError
from accumkit.studies import table
from accumkit.studies.precision.problem import Problem, cosine, problem, times

WAYS = (
    "after unscaling",
    "before unscaling",
    "before unscaling, by hand",
    "each micro-batch",
    "by value, after unscaling",
    "by value, before unscaling",
    "max_norm=inf, before unscaling",
)


@dataclass(frozen=True, slots=True)
class Clip:
    """One window, clipped in one way."""

    way: str  # one of WAYS
    scale: float
    true_norm: float  # of the window's gradient, unscaled and unclipped
    seen_norm: float  # of .grad when it was clipped last
    factor: float  # |.grad| after the clips / before them; for each micro-batch, the last one's
    update: float  # length of the SGD update, in units of the learning rate
    right: float  # what it should be
    cosine: float  # between the update and the true gradient

    @property
    def ratio(self) -> float:
        """The update's length beside the right one."""
        return self.update / self.right


@dataclass(frozen=True, repr=False)
class Clips:
    """The ways to clip, scale by scale."""

    rows: tuple[Clip, ...]
    max_norm: float
    max_value: float

    def row(self, way: str, scale: float) -> Clip:
        """Return one row."""
        return next(r for r in self.rows if r.way == way and r.scale == scale)

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]], str]:
        head = ("clipped", "scale", "true norm", "norm seen", "factor", "update / right", "cosine")
        rows = [
            (r.way, f"{r.scale:,.0f}", f"{r.true_norm:.3f}", _seen(r.seen_norm), _short(r.factor), times(r.ratio),
             f"{r.cosine:.3f}")
            for r in self.rows
        ]  # fmt: skip
        return head, rows, f"max_norm {self.max_norm:g}; limit of a value {self.max_value:g}."

    def __repr__(self) -> str:
        return table.plain(*self._table())

    def _repr_html_(self) -> str:
        return table.html(*self._table())


def clipping(
    scales: Sequence[float] = (1.0, 256.0, 65536.0), max_norm: float = 0.25, max_value: float = 0.02,
    accumulation_steps: int = 4, precision: str = "float64", device: str = "cpu", ways: Sequence[str] = WAYS,
) -> Clips:  # fmt: skip
    """Clip one window's gradient in every way, under every scale, and see what SGD is given.

    Parameters
    ----------
    scales : sequence of float
        Of the GradScaler; 1 changes nothing.
    max_norm, max_value : float
        For clipping by norm and by value.
    accumulation_steps : int
    precision : str
        One of PRECISIONS.
    device : str
    ways : sequence of str
        Some of WAYS.

    Returns
    -------
    Clips
        With a repr that is a table.

    Examples
    --------
    >>> from accumkit.studies import precision
    >>> row = precision.clipping([65536.0]).row("before unscaling", 65536.0)
    >>> abs(row.ratio * 65536 - 1) < 1e-3
    True
    """
    unknown = [way for way in ways if way not in WAYS]
    if unknown:
        raise AccumkitError(f"unknown way {unknown[0]!r}: give some of {', '.join(WAYS)}")
    rows = []
    for way in ways:
        for scale in scales:
            rows.append(_clip(way, problem(1, accumulation_steps, scale, precision, device), max_norm, max_value))
    return Clips(tuple(rows), max_norm, max_value)


def _clip(way: str, setting: Problem, max_norm: float, max_value: float) -> Clip:
    model, optimizer, scaler = setting.model, setting.optimizer, setting.scaler
    [window] = setting.windows
    scale = scaler.get_scale()
    clip = _way(way, model, max_norm, max_value)
    true, used, seen, factor = torch.zeros_like(setting.gradient), [], 0.0, 1.0
    hook = optimizer.register_step_pre_hook(lambda *_: used.append(setting.gradient))
    for i, batch in enumerate(window, 1):
        before = setting.gradient
        setting.backward(batch, len(window))
        true = true + (setting.gradient - before) / scale
        if i == len(window) and way.endswith("after unscaling"):
            scaler.unscale_(optimizer)
        if i == len(window) or way == "each micro-batch":
            seen = setting.gradient.norm().item()
            clip()
            factor = setting.gradient.norm().item() / seen
    scaler.step(optimizer)
    scaler.update()
    hook.remove()
    norm = true.norm().item()
    if "value" in way:
        right = true.clamp(-max_value, max_value).norm().item()
    else:
        right = norm * min(1.0, (float("inf") if "inf" in way else max_norm) / (norm + 1e-6))
    made = used[-1] if used else torch.zeros_like(true)
    return Clip(way, scale, norm, seen, factor, made.norm().item(), right, cosine(made, true))


def _way(way: str, model: nn.Module, max_norm: float, max_value: float) -> Callable[[], object]:
    if "value" in way:
        return lambda: nn.utils.clip_grad_value_(model.parameters(), max_value)
    if "by hand" in way:
        return lambda: _by_hand(model, max_norm)
    limit = float("inf") if "inf" in way else max_norm
    return lambda: nn.utils.clip_grad_norm_(model.parameters(), limit)


def _by_hand(model: nn.Module, max_norm: float) -> None:
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    if norm > max_norm:
        for p in model.parameters():
            p.grad *= max_norm / norm


def _seen(norm: float) -> str:
    return f"{norm:,.0f}" if norm >= 1000 else f"{norm:.3f}"


def _short(factor: float) -> str:
    return f"{factor:.3f}" if factor > 1e-3 else times(factor)
