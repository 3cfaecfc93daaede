"""Lesson 01: many micro-batches, one update, and the gradient of the big batch beside it."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import torch

from accumkit import tasks
from accumkit.figures.numbers import below, counted, listed
from accumkit.figures.picture import timeline_picture, weights_picture
from accumkit.objective import classification
from accumkit.panels.base import Answer, Panel, choice, slider
from accumkit.panels.prediction import Prediction
from accumkit.trace.record import Trace
from accumkit.trace.watch import watch
from accumkit.window import windows

GROWS, STAYS, SHRINKS = "it grows", "it stays at rounding error", "it shrinks"


@dataclass(frozen=True)
class Comparison:
    """A right loop, watched, and how far its gradients are from those of the big batch."""

    trace: Trace
    differences: tuple[float, ...]  # of each update: |accumulated - big batch| / |big batch|
    sizes: tuple[int, ...]  # examples in each update


def compare(
    micro_batch_size: int = 4,
    accumulation_steps: int = 3,
    examples: int = 19,
    dtype: str = "float64",
    device: str = "cpu",
) -> Comparison:
    """Train on handwritten digits with accumulation, and compare each gradient with one backward on the window.

    Parameters
    ----------
    micro_batch_size, accumulation_steps, examples : int
        Any sizes; the last micro-batch and the last window may be short.
    dtype : {"float64", "float32"}
    device : str

    Returns
    -------
    Comparison

    Examples
    --------
    >>> from accumkit.panels.one_update import compare
    >>> result = compare(examples=19, micro_batch_size=4, accumulation_steps=3)
    >>> result.sizes, max(result.differences) < 1e-12
    ((12, 7), True)
    """
    precision = getattr(torch, dtype)
    loader = tasks.loader(tasks.digits(examples, dtype=precision), micro_batch_size)
    model = tasks.mlp(dtype=precision).to(device)
    objective = classification()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    differences, sizes = [], []
    with watch(model, objective, accumulation_steps=accumulation_steps) as trace:
        for window in windows(loader, accumulation_steps, objective, device=device):
            optimizer.zero_grad()
            for batch in window:
                (objective.total(model, batch) / window.count).backward()
            differences.append(_difference(model, objective, list(window), window.count))
            sizes.append(window.examples)
            optimizer.step()
    return Comparison(trace, tuple(differences), tuple(sizes))


def one_update(strict: bool | None = None) -> Panel:
    """Return the panel of lesson 01: micro-batch size, N and examples, against one backward on the whole window.

    The loop runs for real at every move. Where CUDA is there, the device can be chosen.

    Parameters
    ----------
    strict : bool, optional
        See :class:`accumkit.panels.Panel`.

    Returns
    -------
    Panel

    Examples
    --------
    >>> from accumkit import panels
    >>> panel = panels.one_update()
    >>> panel.controls["accumulation_steps"].value = 1
    >>> panel.answered.sentence.startswith("19 examples in 5 micro-batches of at most 4, N = 1: 5 updates")
    True
    """
    weights, timeline = weights_picture(height=186), timeline_picture()
    measured: dict[int, float] = {}  # the largest difference for each N that the reader has tried in this precision
    precision = "float64"

    def answer(**settings) -> Answer:
        nonlocal precision
        result = compare(**settings)
        if settings["dtype"] != precision:
            measured.clear()
            precision = settings["dtype"]
        steps, worst = settings["accumulation_steps"], max(result.differences)
        measured[steps] = max(worst, measured.get(steps, 0.0))
        prediction.refresh()
        pictures = (timeline.html(result.trace), weights.html(result.trace))
        return Answer(_sentence(result, settings, worst), pictures)

    def reply(guess: str) -> str:
        if len(measured) < 3:
            return f"You predict: {guess}. Now move N to a few values and watch the relative difference."
        worst = below(max(measured.values()), _step(precision))
        right = "as you predicted" if guess == STAYS else f"not what you predicted ({guess})"
        tried = listed(sorted(measured), most=12)
        return f"For N = {tried} the relative difference was {worst}: it stays at rounding error, {right}."

    prediction = Prediction(
        "The accumulated gradient is compared with one backward over the whole window. "
        "What happens to their relative difference when N grows?",
        (GROWS, STAYS, SHRINKS),
        reply,
    )
    controls = {
        "micro_batch_size": slider("Micro-batch size", 4, 1, 16, "Examples in one forward and backward"),
        "accumulation_steps": slider("Accumulation steps N", 3, 1, 8, "Micro-batches in one update"),
        "examples": slider("Examples", 19, 1, 48, "Examples in the data set"),
        "dtype": choice("Precision", ("float64", "float32"), "float64", "The type that the model computes in"),
    }
    if torch.cuda.is_available():
        controls["device"] = choice("Device", ("cpu", "cuda"), "cpu", "Where the model computes")
    return Panel("one-update", controls, answer, before=(prediction,), strict=strict)


def _difference(model, objective, batches: list, count: float) -> float:
    """Return |accumulated - big batch| / |big batch|, where the big batch is one backward on a copy of the model."""
    twin = deepcopy(model)
    twin.zero_grad()
    whole = tuple(torch.cat(parts) for parts in zip(*batches, strict=True))
    (objective.total(twin, whole) / count).backward()
    accumulated, big = (torch.cat([p.grad.flatten().double() for p in m.parameters()]) for m in (model, twin))
    return float((accumulated - big).norm() / big.norm())


def _sentence(result: Comparison, settings: dict, worst: float) -> str:
    size, steps = settings["micro_batch_size"], settings["accumulation_steps"]
    micro_batches = counted(len(result.trace.micro_batches), "micro-batches")
    updates = counted(len(result.sizes), "updates")
    examples = counted(settings["examples"], "examples")
    return (
        f"{examples} in {micro_batches} of at most {size}, N = {steps}: {updates}, of {listed(result.sizes, most=8)} "
        f"examples. Relative difference between accumulated and big-batch gradients: "
        f"{below(worst, _step(settings['dtype']))}."
    )


def _step(dtype: str) -> float:
    """Return the bound that rounding stays below in a precision."""
    return 1e-12 if dtype == "float64" else 1e-5
