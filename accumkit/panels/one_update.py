"""Lesson 01: many micro-batches, one update, and the gradient of the big batch beside it."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import torch

from accumkit import tasks
from accumkit.figures.numbers import below, counted, grouped, listed
from accumkit.figures.picture import timeline_picture, weights_picture
from accumkit.objective import classification
from accumkit.panels.base import Answer, Panel, choice, slider
from accumkit.panels.prediction import Prediction
from accumkit.trace.record import Trace
from accumkit.trace.watch import watch
from accumkit.window import windows

# What the reader may predict: the settings that the question names, and none of them.
MORE = "N = 8: many micro-batches in an update"
SHORT = "17 examples: a last micro-batch of one"
COARSE = "float32: numbers of about 7 digits"
NONE = "none of these"


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
    tried: dict[str, str] = {}  # the largest difference at each setting that the question names, in words

    def answer(**settings) -> Answer:
        result = compare(**settings)
        worst = max(result.differences)
        tried.update(dict.fromkeys(_named_in_question(settings), below(worst, _step(settings["dtype"]))))
        prediction.refresh()
        pictures = (timeline.html(result.trace), weights.html(result.trace))
        return Answer(_sentence(result, settings, worst), pictures)

    def reply(guess: str) -> str:
        left = [setting for setting in (MORE, SHORT, COARSE) if setting not in tried]
        if left:
            return f"You predict: {_short(guess)}. Now try it; not set so far: {listed([_short(s) for s in left])}."
        measured = listed([f"{tried[setting]} with {_short(setting)}" for setting in (MORE, SHORT, COARSE)])
        right = "as you predicted" if guess == COARSE else f"not what you predicted ({_short(guess)})"
        return (
            f"The relative difference was {measured}. However the examples are grouped, only rounding is left, and "
            f"that depends on the precision: {right}."
        )

    prediction = Prediction(
        "In float64 (numbers of about 16 digits) the accumulated gradient differed from that of the big batch by less "
        "than a millionth of a millionth. Which one change makes that difference more than a thousand times larger?",
        (MORE, SHORT, COARSE, NONE),
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


def _named_in_question(settings: dict) -> list[str]:
    """Return which of the settings that the question names these are."""
    coarse = settings["dtype"] == "float32"
    held = {
        MORE: settings["accumulation_steps"] == 8 and not coarse,
        SHORT: settings["examples"] == 17 and not coarse,
        COARSE: coarse,
    }
    return [name for name, holds in held.items() if holds]


def _short(choice: str) -> str:
    return choice.partition(":")[0]


def _difference(model, objective, batches: list, count: float) -> float:
    """Return |accumulated - big batch| / |big batch|, where the big batch is one backward on a copy of the model."""
    twin = deepcopy(model)
    twin.zero_grad()
    whole = tuple(torch.cat(parts) for parts in zip(*batches, strict=True))
    (objective.total(twin, whole) / count).backward()
    accumulated, big = (torch.cat([p.grad.flatten().double() for p in m.parameters()]) for m in (model, twin))
    return float((accumulated - big).norm() / big.norm())


def _sentence(result: Comparison, settings: dict, worst: float) -> str:
    micro_batches = result.trace.micro_batches
    largest = max(m.examples for m in micro_batches)
    most = "" if len({m.examples for m in micro_batches}) == 1 else "at most "
    held = f"{counted(len(micro_batches), 'micro-batches')} of {most}{largest}"
    return (
        f"{counted(settings['examples'], 'examples')} in {held}, N = {settings['accumulation_steps']}: "
        f"{grouped(result.sizes, 'updates', 'examples')}. Relative difference between accumulated and big-batch "
        f"gradients: {below(worst, _step(settings['dtype']))}."
    )


def _step(dtype: str) -> float:
    """Return the bound that rounding stays below in a precision."""
    return 1e-12 if dtype == "float64" else 1e-5
