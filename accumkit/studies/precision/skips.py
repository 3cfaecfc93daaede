"""Overflow: one micro-batch that spoils its window, a scale that is searched for, and who moves on all the same."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from accumkit import tasks
from accumkit.loops import train_epoch
from accumkit.objective import AccumkitError, classification
from accumkit.studies import table
from accumkit.studies.precision.problem import MICRO_BATCH, Problem, problem

PIXELS = 255.0  # the spoiled micro-batch has pixels from 0 to 255, which someone forgot to divide


@dataclass(frozen=True, repr=False)
class Overflow:
    """A window in which one micro-batch overflowed.

    Attributes
    ----------
    spoiled : tuple of int
        After each backward of the window: how many entries of ``.grad`` are not finite.
    entries : int
        How many there are.
    scale_before, scale_after : float
    hooks : bool
        The optimizer's step hooks ran, although nothing was stepped: a fused optimizer skips inside its step.
    times_at_hook : float or None
        What ``.grad`` was multiplied by when the hook of the window *before*, which was stepped, saw it.
    parameters_moved, state_moved : bool
        Whether parameters and the optimizer's state changed.
    schedule_moved : bool
        Whether a scheduler moved that is stepped only where the scale did not fall.
    naive_schedule_moved : bool
        Whether one moved that is stepped after every window.
    """

    spoiled: tuple[int, ...]
    entries: int
    scale_before: float
    scale_after: float
    hooks: bool
    times_at_hook: float | None
    parameters_moved: bool
    state_moved: bool
    schedule_moved: bool
    naive_schedule_moved: bool

    @property
    def skipped(self) -> bool:
        """Whether the step changed nothing."""
        return not (self.parameters_moved or self.state_moved)

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]], str]:
        rows = [
            (f"after micro-batch {i}", f"{count:,} of {self.entries:,} entries of .grad are not finite")
            for i, count in enumerate(self.spoiled, 1)
        ]
        rows += [
            ("step", "skipped: parameters and optimizer are as they were" if self.skipped else "made"),
            ("scale", f"{self.scale_before:,.0f}, then {self.scale_after:,.0f}"),
            ("step hooks", "ran all the same" if self.hooks else "did not run"),
            ("schedule, with care", "moved" if self.schedule_moved else "stands"),
            ("schedule, without", "moved on" if self.naive_schedule_moved else "stands"),
        ]
        return ("what", "seen"), rows, ""

    def __repr__(self) -> str:
        return table.plain(*self._table())

    def _repr_html_(self) -> str:
        return table.html(*self._table())


def overflow(
    spoiled: int = 2, accumulation_steps: int = 4, scale: float = 65536.0, fused: bool = False,
    precision: str = "float16 autocast", device: str = "cpu",
) -> Overflow:  # fmt: skip
    """Train on one good window and on one whose micro-batch number ``spoiled`` overflows float16 for real.

    Its pixels run from 0 to 255 instead of 0 to 1, so that scaled gradients of the first layer pass 65,504.

    Parameters
    ----------
    spoiled : int
        From 1 to N; 0 for none.
    accumulation_steps : int
    scale : float
    fused : bool
        AdamW in its fused form.
    precision : str
        One of PRECISIONS; the others than float16 have the range for it.
    device : str

    Returns
    -------
    Overflow

    Examples
    --------
    >>> from accumkit.studies import precision
    >>> result = precision.overflow(spoiled=2)
    >>> result.skipped, result.scale_after, [count > 0 for count in result.spoiled]
    (True, 32768.0, [False, True, True, True])
    """
    if not 0 <= spoiled <= accumulation_steps:
        raise AccumkitError(f"spoiled={spoiled!r}: give a micro-batch from 1 to {accumulation_steps}, or 0 for none")

    def adamw(parameters):
        return torch.optim.AdamW(parameters, lr=0.01, fused=fused)

    setting = problem(2, accumulation_steps, scale, precision, device, optimizer=adamw)
    good, bad = setting.windows
    if spoiled:
        x, y = bad[spoiled - 1]
        bad[spoiled - 1] = (x * PIXELS, y)
    careful, naive = (torch.optim.lr_scheduler.LinearLR(setting.optimizer, total_iters=9) for _ in range(2))
    naive_before = None
    times: list[float] = []
    for window in (good, bad):
        setting.optimizer.zero_grad()
        counts = []
        for batch in window:
            setting.backward(batch, len(window))
            counts.append(int((~setting.gradient.isfinite()).sum()))
        before = setting.parameters, _state(setting), careful.last_epoch, naive.last_epoch
        times.clear()
        scaled = setting.gradient.norm().item()
        hook = setting.optimizer.register_step_pre_hook(lambda *_, s=scaled: times.append(_times(setting, s)))
        scale_before = setting.scaler.get_scale()
        setting.scaler.step(setting.optimizer)
        setting.scaler.update()
        hook.remove()
        ran = bool(times)
        naive.step()
        if setting.scaler.get_scale() >= scale_before:
            careful.step()
        if window is good:
            naive_before = times[-1] if times else None
    return Overflow(
        spoiled=tuple(counts),
        entries=len(setting.gradient),
        scale_before=scale_before,
        scale_after=setting.scaler.get_scale(),
        hooks=ran,
        times_at_hook=naive_before,
        parameters_moved=not torch.equal(before[0], setting.parameters),
        state_moved=not all(map(torch.equal, before[1], _state(setting))),
        schedule_moved=careful.last_epoch != before[2],
        naive_schedule_moved=naive.last_epoch != before[3],
    )


def _times(setting: Problem, scaled: float) -> float:
    """Return what ``.grad`` is multiplied by now, beside the true gradient."""
    return setting.gradient.norm().item() / (scaled / setting.scaler.get_scale())


def _state(setting: Problem) -> list[torch.Tensor]:
    state = setting.optimizer.state_dict()["state"]
    return [value.clone() for entry in state.values() for value in entry.values() if isinstance(value, torch.Tensor)]


@dataclass(frozen=True, repr=False)
class Search:
    """The first windows of a run: the scale each was scaled by, and whether its step was made."""

    scales: tuple[float, ...]
    skipped: tuple[bool, ...]
    scheduler_steps: int

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]], str]:
        rows = [
            (str(i), f"{scale:,.0f}", "skipped" if skipped else "made")
            for i, (scale, skipped) in enumerate(zip(self.scales, self.skipped, strict=True), 1)
        ]
        made = self.skipped.count(False)
        return ("window", "scale", "step"), rows, f"{made} updates, {self.scheduler_steps} scheduler steps."

    def __repr__(self) -> str:
        return table.plain(*self._table())

    def _repr_html_(self) -> str:
        return table.html(*self._table())


def search(init_scale: float = 2.0**24, windows: int = 8, accumulation_steps: int = 4, device: str = "cpu") -> Search:
    """Let ``train_epoch`` begin with a scale that is too large for float16, and watch it come down.

    Parameters
    ----------
    init_scale : float
    windows, accumulation_steps : int
    device : str

    Returns
    -------
    Search

    Examples
    --------
    >>> from accumkit.studies import precision
    >>> result = precision.search()
    >>> result.skipped[0], result.skipped[-1], result.scheduler_steps == result.skipped.count(False)
    (True, False, True)
    """
    setting = problem(1, 1, init_scale, "float16 autocast", device)
    scheduler = torch.optim.lr_scheduler.LinearLR(setting.optimizer, total_iters=100)
    scales, skipped = [], []
    for window in problem(windows, accumulation_steps).windows:
        batches = [(x.float(), y) for x, y in window]
        scales.append(setting.scaler.get_scale())
        log = train_epoch(
            setting.model, batches, setting.optimizer, classification(), accumulation_steps=accumulation_steps,
            scaler=setting.scaler, autocast_dtype=torch.float16, scheduler_per_update=scheduler,
        )  # fmt: skip
        skipped.append(log.updates[0].skipped)
    return Search(tuple(scales), tuple(skipped), scheduler.last_epoch)


@dataclass(frozen=True)
class Several:
    """One scaler for two optimizers, of which one has gradients that overflowed."""

    moved: tuple[bool, bool]  # the parameters of the first layer, and of the last
    scale_before: float
    scale_after: float


def several(scale: float = 65536.0, device: str = "cpu") -> Several:
    """Give each layer its own optimizer, both one scaler, and let the gradients of the first layer overflow.

    Each optimizer's step is skipped for its own gradients alone; the scale falls for both, once.

    Examples
    --------
    >>> from accumkit.studies import precision
    >>> precision.several()
    Several(moved=(False, True), scale_before=65536.0, scale_after=32768.0)
    """
    model = tasks.mlp(hidden=16).to(device)
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in layers]
    scaler = torch.amp.GradScaler(device, init_scale=scale)
    x, y = (part.to(device) for part in tasks.digits(MICRO_BATCH).tensors)
    with torch.no_grad():
        layers[0].weight /= PIXELS  # the pixels are large and all that follows is not, so one gradient alone overflows
    with torch.autocast(device, dtype=torch.float16):
        scores = model(x * PIXELS)
    scaler.scale(F.cross_entropy(scores.float(), y)).backward()
    before = [layer.weight.detach().clone() for layer in layers]
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    moved = tuple(not torch.equal(old, layer.weight) for old, layer in zip(before, layers, strict=True))
    return Several(moved, scale, scaler.get_scale())
