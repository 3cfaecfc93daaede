"""Unscale, clip, step, update: what comes of every order of the four calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import nn

from accumkit.objective import AccumkitError
from accumkit.studies import table
from accumkit.studies.precision.problem import NEAR, Problem, cosine, problem, times

CALLS = ("unscale", "clip", "step", "update")


@dataclass(frozen=True, slots=True)
class Moment:
    """``.grad`` after one call."""

    window: int  # from 0
    call: str  # "backward", or one of CALLS
    norm: float  # of .grad as it is
    scaled: float  # what scaling left in it, clipping apart; 1 is unscaled


@dataclass(frozen=True, slots=True)
class Passed:
    """One window that torch let pass."""

    true_norm: float  # of the window's gradient, unscaled and unclipped
    seen_norm: float | None  # what the clip function measured; not finite after an overflow
    factor: float | None  # what it multiplied .grad by
    right_factor: float  # what clipping should multiply the true gradient by
    update: float  # length of the SGD update, in units of the learning rate; 0 for a skipped step
    cosine: float  # between the update and the true gradient; nan for a skipped step
    skipped: bool
    scale: float  # after the window

    @property
    def ratio(self) -> float:
        """The update's length beside the right one; 1 is right."""
        return self.update / (self.true_norm * self.right_factor)


@dataclass(frozen=True, repr=False)
class Order:
    """One order of the calls, run for several windows.

    Attributes
    ----------
    calls : tuple of str
    windows : tuple of Passed
        Those that torch let pass.
    refused : str or None
        What torch said, where it refused.
    refused_at : tuple of (int, str) or None
        The window, from 0, and the call.
    moments : tuple of Moment
        ``.grad`` after every call.
    scale, max_norm : float
    """

    calls: tuple[str, ...]
    windows: tuple[Passed, ...]
    refused: str | None
    refused_at: tuple[int, str] | None
    moments: tuple[Moment, ...]
    scale: float
    max_norm: float

    @property
    def kind(self) -> str:
        """What becomes of it: "right", "refused", "refused later", "not clipped", or "silent"."""
        if self.refused_at is not None:
            return "refused later" if self.windows else "refused"
        made = [w for w in self.windows if not w.skipped]
        if not made:
            return "skipped"
        if all(abs(w.ratio - 1) <= NEAR for w in made):
            return "right"
        if all(abs(w.ratio * w.right_factor - 1) <= NEAR for w in made):
            return "not clipped"
        return "silent"

    def __repr__(self) -> str:
        updates = ", ".join("skipped" if w.skipped else times(w.ratio) for w in self.windows) or "none"
        said = f"; torch refuses {self.refused_at[1]} in window {self.refused_at[0] + 1}" if self.refused_at else ""
        return f"{', '.join(self.calls)}: {self.kind}; updates beside the right ones: {updates}{said}"


@dataclass(frozen=True, repr=False)
class Orders:
    """Every order of the four calls.

    Attributes
    ----------
    rows : tuple of Order
        All 24, in the order of ``itertools.permutations``.
    """

    rows: tuple[Order, ...]

    def of(self, kind: str) -> list[Order]:
        """Return the orders of one kind."""
        return [order for order in self.rows if order.kind == kind]

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]], str]:
        count = max(len(order.windows) for order in self.rows)
        head = ("order", *(f"window {i + 1}" for i in range(count)), "what comes of it")
        rows = []
        for order in self.rows:
            cells = [_cell(order, i) for i in range(count)]
            rows.append((", ".join(order.calls), *cells, _said(order)))
        kinds = {k: len(self.of(k)) for k in dict.fromkeys(order.kind for order in self.rows)}
        note = (
            "Cells: the length of the SGD update beside the right one; the last column quotes torch. Scale "
            f"{self.rows[0].scale:,.0f}, max_norm {self.rows[0].max_norm:g}. "
            + ", ".join(f"{n} {kind}" for kind, n in kinds.items())
            + "."
        )
        return head, rows, note

    def __repr__(self) -> str:
        return table.plain(*self._table())

    def _repr_html_(self) -> str:
        return table.html(*self._table())


def orders(
    scale: float = 65536.0, max_norm: float = 0.25, accumulation_steps: int = 4, windows: int = 3,
    precision: str = "float64", device: str = "cpu",
) -> Orders:  # fmt: skip
    """Run every order of unscale, clip, step and update on a real window after another.

    Parameters
    ----------
    scale : float
        Of the GradScaler.
    max_norm : float
        For ``clip_grad_norm_``; a gradient of this problem has a norm between about 0.4 and 0.8.
    accumulation_steps, windows : int
    precision : str
        One of PRECISIONS.
    device : str

    Returns
    -------
    Orders
        With a repr that is a table.

    Examples
    --------
    >>> from accumkit.studies import precision
    >>> table = precision.orders()
    >>> len(table.rows), [", ".join(order.calls) for order in table.of("right")]
    (24, ['unscale, clip, step, update'])
    """
    setting = (scale, max_norm, accumulation_steps, windows, precision, device)
    return Orders(tuple(run_order(calls, *setting) for calls in permutations(CALLS)))


def run_order(
    calls: Sequence[str], scale: float = 65536.0, max_norm: float = 0.25, accumulation_steps: int = 4,
    windows: int = 3, precision: str = "float64", device: str = "cpu",
) -> Order:  # fmt: skip
    """Run one order of the calls; some may be left out or stand twice. Parameters are those of :func:`orders`.

    Examples
    --------
    >>> from accumkit.studies import precision
    >>> precision.run_order(["clip", "unscale", "step", "update"], windows=1)
    clip, unscale, step, update: silent; updates beside the right ones: 1/65,536
    """
    unknown = [call for call in calls if call not in CALLS]
    if unknown:
        raise AccumkitError(f"unknown call {unknown[0]!r}: give some of {', '.join(CALLS)}")
    setting = problem(windows, accumulation_steps, scale, precision, device)
    passed: list[Passed] = []
    moments: list[Moment] = []
    for number, window in enumerate(setting.windows):
        setting.optimizer.zero_grad()
        true = torch.zeros_like(setting.parameters)
        for batch in window:
            before = setting.gradient
            setting.backward(batch, len(window))
            true = true + (setting.gradient - before) / setting.scaler.get_scale()
            moments.append(Moment(number, "backward", setting.gradient.norm().item(), setting.scaler.get_scale()))
        try:
            passed.append(_finish(setting, calls, number, true, max_norm, moments))
        except _Refused as refusal:
            said, call = str(refusal), refusal.call
            return Order(tuple(calls), tuple(passed), said, (number, call), tuple(moments), scale, max_norm)
    return Order(tuple(calls), tuple(passed), None, None, tuple(moments), scale, max_norm)


class _Refused(Exception):
    def __init__(self, call: str, said: str) -> None:
        super().__init__(said)
        self.call = call


def _finish(
    setting: Problem, calls: Sequence[str], number: int, true: torch.Tensor, max_norm: float, moments: list[Moment]
) -> Passed:
    """Make the four calls at the end of a window, noting what the optimizer is given."""
    used: list[torch.Tensor] = []
    seen: float | None = None
    hook = setting.optimizer.register_step_pre_hook(lambda *_: used.append(setting.gradient))
    try:
        for call in calls:
            try:
                if call == "unscale":
                    setting.scaler.unscale_(setting.optimizer)
                elif call == "clip":
                    seen = nn.utils.clip_grad_norm_(setting.model.parameters(), max_norm).item()
                elif call == "step":
                    setting.scaler.step(setting.optimizer)
                else:
                    setting.scaler.update()
            except (RuntimeError, AssertionError) as refusal:  # torch's own: an order it does not allow
                raise _Refused(call, str(refusal)) from refusal
            moments.append(_after(call, setting, moments[-1]))
    finally:
        hook.remove()
    norm = true.norm().item()
    return Passed(
        true_norm=norm,
        seen_norm=seen,
        factor=None if seen is None else _factor(max_norm, seen),
        right_factor=_factor(max_norm, norm),
        update=used[-1].norm().item() if used else 0.0,
        cosine=cosine(used[-1], true) if used else float("nan"),
        skipped="step" in calls and not used,
        scale=setting.scaler.get_scale(),
    )


def _after(call: str, setting: Problem, before: Moment) -> Moment:
    norm = setting.gradient.norm().item()
    change = norm / before.norm if call != "clip" and before.norm else 1.0  # a step unscales too, where nobody has
    return Moment(before.window, call, norm, before.scaled * change)


def _factor(max_norm: float, norm: float) -> float:
    """Return what ``clip_grad_norm_`` multiplies by."""
    return min(1.0, max_norm / (norm + 1e-6))


def _cell(order: Order, index: int) -> str:
    if index < len(order.windows):
        window = order.windows[index]
        return "skipped" if window.skipped else times(window.ratio)
    return "refused" if order.refused_at and order.refused_at[0] == index else "-"


def _said(order: Order) -> str:
    said = {"right": "right", "not clipped": "the step comes before the clip, so nothing is clipped"}
    if order.kind in said:
        return said[order.kind]
    if order.refused is not None:
        return f"{order.refused_at[1]}: {order.refused.split('. ')[0].rstrip('.')}"
    return "passes in silence" if order.kind == "silent" else "every step is skipped"
