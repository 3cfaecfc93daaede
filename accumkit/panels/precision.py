"""Lesson 05: four calls put into an order, and the sum that bfloat16 keeps."""

from __future__ import annotations

from math import inf

import ipywidgets as widgets
import torch

from accumkit.figures.numbers import below, counted, listed, number
from accumkit.figures.precision import order_picture, sums_picture
from accumkit.panels.base import Answer, Panel, choice, slider
from accumkit.panels.prediction import Prediction
from accumkit.studies.precision import AT, CALLS, PRECISIONS, Order, Sums, run_order, sums
from accumkit.studies.precision.problem import times

PLACES = ("first", "second", "third", "last")
SCALES = tuple(2.0**power for power in range(25))
NORMS = (0.1, 0.25, 0.5, 1.0, 5.0, inf)
SAME, SHORT, REFUSED = "it is the same", "it is next to nothing", "torch refuses the order"
GROWS, FLAT = "it grows", "it stays as it is"
WINDOWS = 2  # the second shows what an order leaves behind


def call_order(strict: bool | None = None) -> Panel:
    """Return the panel of lesson 05 on unscale, clip, step and update, in any order.

    Each call has a slider for its place; dragged, or moved with the arrow keys, it goes there and the others make room.
    The order is run for real on two windows of handwritten digits at every move. Where CUDA is there, the device can be
    chosen.

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
    >>> panel = panels.call_order()
    >>> panel.controls["clip"].value = 0
    >>> {call: panel.controls[call].value for call in ("clip", "unscale", "step", "update")}
    {'clip': 0, 'unscale': 1, 'step': 2, 'update': 3}
    >>> panel.answered.sentence
    'clip, unscale, step, update at scale 65,536, N = 4: accepted in silence, and wrong.'
    """
    picture = order_picture()
    results: dict[tuple, Order] = {}
    scaled_clips: list[Order] = []  # what was tried with a clip before unscale, on scaled gradients

    def answer(scale: float, max_norm: float, steps: int, precision: str, device: str = "cpu", **places: int) -> Answer:
        calls = tuple(sorted(CALLS, key=places.get))
        if len(set(places.values())) < len(calls):
            return panel.answered  # in the middle of a move: the others make room at once
        key = (calls, scale, max_norm, steps, precision, device)
        if key not in results:
            if len(results) > 200:
                results.clear()
            results[key] = run_order(calls, scale, max_norm, steps, WINDOWS, precision, device)
        result = results[key]
        if calls.index("clip") < calls.index("unscale") < calls.index("step") < calls.index("update") and scale > 100:
            scaled_clips.append(result)
        prediction.refresh()
        said = f"{', '.join(calls)} at scale {scale:,.0f}, N = {steps}: {_verdict(result)}."
        return Answer(said, (picture.html(result),))

    def reply(guess: str) -> str:
        tried = [o for o in scaled_clips if o.windows and not o.windows[0].skipped]
        if not tried:
            return f"You predict: {guess}. Now put clip before unscale."
        ratio = times(tried[-1].windows[0].ratio)
        right = "as you predicted" if guess == SHORT else f"not what you predicted ({guess})"
        return f"At scale {tried[-1].scale:,.0f} the update had {ratio} times the right length, {right}."

    prediction = Prediction(
        "Gradients are clipped to max_norm while they are still multiplied by the scale, and unscaled afterwards. "
        "How long is the update, beside the right one?",
        (SAME, SHORT, REFUSED),
        reply,
    )
    controls: dict[str, widgets.Widget] = {
        call: widgets.SelectionSlider(
            options=[(name, place) for place, name in enumerate(PLACES)], value=i, description=f"{call} comes",
            tooltip=f"The place of {call} among the four calls", style={"description_width": "initial"},
            layout=widgets.Layout(width="260px"),
        )
        for i, call in enumerate(CALLS)
    }  # fmt: skip
    _making_room([controls[call] for call in CALLS])
    controls["scale"] = widgets.SelectionSlider(
        options=[(f"{scale:,.0f}", scale) for scale in SCALES], value=65536.0, description="Scale",
        tooltip="What the scaler multiplies the loss by", style={"description_width": "initial"},
        layout=widgets.Layout(width="400px"),
    )  # fmt: skip
    controls["max_norm"] = choice("max_norm", [(f"{n:g}", n) for n in NORMS], 0.25, "inf measures and clips nothing")
    controls["steps"] = slider("Accumulation steps N", 4, 1, 8, "Micro-batches in one update")
    controls["precision"] = choice("Precision", PRECISIONS, "float64", "What forward and backward compute in")
    if torch.cuda.is_available():
        controls["device"] = choice("Device", ("cpu", "cuda"), "cpu", "Where the model computes")
    panel = Panel("call-order", controls, answer, before=(prediction,), strict=strict)
    return panel


def _making_room(sliders: list[widgets.SelectionSlider]) -> None:
    """Keep the places of four sliders a permutation: when one moves, those that it passes go one place back."""
    moving = False

    def shift(change: dict) -> None:
        nonlocal moving
        if moving:
            return
        moving = True
        try:
            old, new = change["old"], change["new"]
            for other in sliders:
                if other is not change["owner"] and min(old, new) <= other.value <= max(old, new):
                    other.value += 1 if new < old else -1
        finally:
            moving = False

    for one in sliders:
        one.observe(shift, names="value")


def _verdict(order: Order) -> str:
    return {
        "right": "right",
        "refused": "refused by torch",
        "refused later": "refused by torch, but only in the second window",
        "not clipped": "accepted, and nothing is clipped",
        "skipped": "every step is skipped",
        "silent": "accepted in silence, and wrong",
    }[order.kind]


def low_sums(strict: bool | None = None) -> Panel:
    """Return the panel of lesson 05 on sums: N and the type that the window is added up in.

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
    >>> panels.low_sums().answered.sentence
    '64 gradients added up in bfloat16: off by 0.008; in float32: below 1e-6.'
    """
    picture = sums_picture()
    known: dict[str, Sums] = {}
    seen: set[int] = set()

    def answer(n: int, dtype: str) -> Answer:
        if dtype not in known:
            known[dtype] = sums(dtype, rounded=True)
        seen.add(n)
        prediction.refresh()
        row = known[dtype].at(n)
        said = (
            f"{counted(n, 'gradients')} added up in {dtype}: off by {number(row.in_grad, 1)}; in float32: "
            f"{below(row.in_float32, 1e-6)}."
        )
        return Answer(said, (picture.html((known[dtype], n)),))

    def reply(guess: str) -> str:
        if len(seen) < 3:
            return f"You predict: {guess}. Now move N to a few values."
        result = known["bfloat16"]
        errors = listed([number(result.at(n).in_grad, 1) for n in sorted(seen)], most=12)
        right = "as you predicted" if guess == GROWS else f"not what you predicted ({guess})"
        return f"For N = {listed(sorted(seen), most=12)} the sum in bfloat16 is off by {errors}: it grows, {right}."

    prediction = Prediction(
        "A model is kept in bfloat16, and so its gradients are added up in bfloat16. How does the relative error of "
        "the sum change when N grows?",
        (GROWS, FLAT),
        reply,
    )
    controls = {
        "n": widgets.SelectionSlider(
            options=AT, value=64, description="Accumulation steps N", tooltip="Gradients that are added up",
            style={"description_width": "initial"}, layout=widgets.Layout(width="400px"),
        ),
        "dtype": choice("Model kept in", ("bfloat16", "float16"), "bfloat16", "The type of parameters and gradients"),
    }  # fmt: skip
    return Panel("low-sums", controls, answer, before=(prediction,), strict=strict)
