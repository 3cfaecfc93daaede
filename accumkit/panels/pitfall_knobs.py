"""The controls of the pitfall panel: what they are called, how far they go, and which of them can matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ipywidgets as widgets

from accumkit.errors import AccumkitError
from accumkit.panels.base import slider
from accumkit.pitfalls.bases import BASES
from accumkit.pitfalls.pitfall import Pitfall

SIZES = {  # name of the setting: description, low, high, tip
    "accumulation_steps": ("Accumulation steps N", 1, 12, "Micro-batches in one update"),
    "micro_batch_size": ("Micro-batch size", 1, 16, "Examples in one forward and backward"),
    "examples": ("Examples", 1, 64, "Examples in the data set"),
    "epochs": ("Epochs", 1, 3, "Passes over the data"),
}
START = {"accumulation_steps": 4, "micro_batch_size": 4, "examples": 19}
SEVERAL_EPOCHS = ("boundary", "schedule", "data")  # families in which a second pass can matter
UNEVEN = ("scale", "weighting")  # families in which sizes of micro-batches can


def check(name: str, value: int | bool) -> None:
    """Raise unless a setting is one that the panel has a control for, in its range.

    Raises
    ------
    AccumkitError
        The setting is unknown, of the wrong type or out of range.

    Examples
    --------
    >>> from accumkit.panels.pitfall_knobs import check
    >>> check("examples", 19)
    """
    if name == "unequal":
        if not isinstance(value, bool):
            raise AccumkitError(f"unequal={value!r}: give True or False")
        return
    if name not in SIZES:
        raise AccumkitError(f"{name}={value!r}: the panel has no such control; it has {', '.join(SIZES)} and unequal")
    _, low, high, _ = SIZES[name]
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise AccumkitError(
            f"{name}={value!r}: the panel's slider goes from {low} to {high}; give a whole number in it"
        )


def controls(pitfall: Pitfall, slugs: Sequence[str], settings: Mapping[str, int | bool]) -> dict[str, widgets.Widget]:
    """Return the controls by the name of what each sets, standing at ``settings`` or where the pitfall shows.

    Parameters
    ----------
    pitfall : Pitfall
        What is chosen first.
    slugs : sequence of str
        To choose from.
    settings : mapping
        Checked values of some of the controls.
    """
    start = START | {"epochs": pitfall.epochs, "unequal": pitfall.unequal} | settings
    knobs = {"fault": one_of("Fault", slugs, pitfall.slug, "Which lines of the right loop are changed")}
    for name, (description, low, high, tip) in SIZES.items():
        knobs[name] = slider(description, start[name], low, high, tip)
    knobs["unequal"] = _switch("Micro-batches of unequal size", start["unequal"])
    knobs["mended"] = _switch("Mend it: run the right loop instead", False)
    knobs["look"] = slider("Look into micro-batch", 1, 1, 999, "Shows its examples; a triangle marks its bar")
    return knobs


def one_of(description: str, options: Sequence[str], value: str | None, tip: str) -> widgets.RadioButtons:
    """Return options side by side, each of them reached with Tab and chosen with the space bar.

    A drop-down list is moved with the arrow keys, which JupyterLab takes for itself as long as no cell is edited.
    """
    return across(
        widgets.RadioButtons(
            options=options,
            value=value,
            description=description,
            tooltip=tip,
            style={"description_width": "initial"},
            layout=widgets.Layout(width="auto", max_width="900px"),
        )
    )


def across(radio: widgets.RadioButtons) -> widgets.RadioButtons:
    """Lay the options of a radio button side by side, in as many rows as they need."""
    if radio.has_trait("orientation"):  # since ipywidgets 8.1.2
        radio.orientation = "horizontal"
    radio.add_class("accumkit-across")
    return radio


ACROSS = "<style>.accumkit-across .widget-radio-box-horizontal{flex-wrap:wrap;height:auto}</style>"


def fit(knobs: Mapping[str, widgets.Widget], pitfall: Pitfall) -> None:
    """Show the controls that can matter for a pitfall, under names that fit its data."""
    lines = BASES[pitfall.base].task == "tokens"
    knobs["examples"].description = "Lines of text" if lines else "Examples"
    shown = {
        "epochs": pitfall.family in SEVERAL_EPOCHS or pitfall.epochs > 1,
        "unequal": pitfall.family in UNEVEN,
    }
    for name, is_shown in shown.items():
        knobs[name].layout.display = None if is_shown else "none"


def _switch(description: str, value: bool) -> widgets.Checkbox:
    return widgets.Checkbox(
        value, description=description, indent=False, tooltip=description,
        style={"description_width": "initial"}, layout=widgets.Layout(width="max-content"),
    )  # fmt: skip
