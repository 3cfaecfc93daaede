"""A panel: controls, an answer in words, and pictures that follow the controls. Core widgets only."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import ipywidgets as widgets
from IPython.display import display

from accumkit.figures import large_type
from accumkit.panels.projector import CLASS, LIVE, RULES, WIDER

STRICT = "ACCUMKIT_STRICT"  # set in the environment, it makes panels raise what they else only report


@dataclass(frozen=True)
class Answer:
    """What a panel shows for one setting of its controls."""

    sentence: str  # plain text
    pictures: tuple[str, ...]  # HTML, each with its own alternative text
    note: str = ""  # what the reader should know about the setting, such as a value that was adapted


class Panel(widgets.VBox):
    """Controls above an answer and its pictures; one widget tree.

    The latest setting wins: a control that moves while an answer is worked out starts it again. An answer that
    fails is reported in the status line, and the pictures that no longer belong to the setting are greyed.

    Parameters
    ----------
    slug : str
        The panel's name in style sheets, such as "one-update".
    controls : mapping of str to widget
        By the name of the argument of ``answer`` that each of them sets.
    answer : callable
        From the settings, as keyword arguments, to an :class:`Answer`.
    before : sequence of widget
        Shown above the controls.
    strict : bool, optional
        Raise errors besides reporting them; by default where ``ACCUMKIT_STRICT`` is set.

    Attributes
    ----------
    controls : dict
    sentence, status, pictures : ipywidgets.HTML
        The answer in words, the status line, and the pictures.
    answered : Answer or None
        What is shown.

    Examples
    --------
    >>> from accumkit import panels
    >>> panel = panels.Panel("twice", {"n": panels.slider("N", 2, 1, 4)},
    ...                      lambda n: panels.Answer(f"Twice {n} is {2 * n}.", ()))
    >>> panel.controls["n"].value = 3
    >>> panel.answered.sentence
    'Twice 3 is 6.'
    """

    def __init__(
        self,
        slug: str,
        controls: Mapping[str, widgets.Widget],
        answer: Callable[..., Answer],
        before: Sequence[widgets.Widget] = (),
        strict: bool | None = None,
    ) -> None:
        self.slug, self.controls, self._answer = slug, dict(controls), answer
        self.strict = bool(os.environ.get(STRICT)) if strict is None else strict
        self.answered: Answer | None = None
        self._answered_for: dict[str, object] = {}
        self._busy = self._again = self.has_failed = False
        self.sentence, self.status, self.pictures = widgets.HTML(), widgets.HTML(), widgets.HTML()
        # Where the panel lives, the still beside it (see `still`) would show the same picture twice.
        rule = f".accumkit-still-{slug}{{display:none}}"
        self._style = widgets.HTML(f"<style>{rule}</style>", layout=widgets.Layout(height="0", margin="0"))
        row = widgets.Layout(flex_flow="row wrap", align_items="center", grid_gap="0 18px")
        knobs = widgets.Box(list(self.controls.values()), layout=row)
        super().__init__([*before, knobs, self.sentence, self.status, self.pictures, self._style])
        for control in self.controls.values():
            control.observe(self._moved, names="value")
        self._usual_widths: dict[str, str] = {}
        LIVE.add(self)
        self.fit_type()

    @property
    def settings(self) -> dict[str, object]:
        """The values of the controls, by name."""
        return {name: control.value for name, control in self.controls.items()}

    def refresh(self) -> None:
        """Work out the answer for the controls as they stand, and show it."""
        if self._busy:  # moved in the middle of an answer: the one at work is out of date
            self._again = True
            return
        self._busy = True
        try:
            while True:
                self._again = False
                settings = self.settings
                try:
                    answer = self._answer(**settings)
                except Exception as error:
                    if self._again:
                        continue
                    self._failed(error)
                    if self.strict:
                        raise
                    return
                if not self._again:
                    self._show(answer, settings)
                    return
        finally:
            self._busy = False

    def fit_type(self) -> None:
        """Take the size of type that `projector` has set, and show the answer in it."""
        large = large_type.is_large()
        for name, control in self.controls.items():
            usual = self._usual_widths.setdefault(name, control.layout.width or "")
            if usual.endswith("px"):
                control.layout.width = f"{WIDER + float(usual[:-2]):.0f}px" if large else usual
        (self.add_class if large else self.remove_class)(CLASS)
        self._style.value = self._style.value.replace(RULES, "") + RULES * large
        self.refresh()

    def still(self) -> dict[str, str]:
        """Return what is shown as a static output, for readers without a kernel; hidden where the panel lives."""
        sentence = self.answered.sentence if self.answered else _plain(self.status.value)
        pictures = "".join(self.answered.pictures) if self.answered else ""
        return {
            "text/plain": sentence,
            "text/html": f'<details open class="accumkit-still-{self.slug}"><summary>The panel as first drawn, for '
            f"reading without running</summary><p>{escape(sentence)}</p>{pictures}</details>",
        }

    def _ipython_display_(self) -> None:
        # Two outputs: one that holds both view and picture shows an error instead of the picture once the notebook
        # is trusted and no kernel runs.
        live = super()._repr_mimebundle_()
        display({**live, "text/plain": "Run this cell to move the controls of this panel."}, raw=True)
        display(self.still(), raw=True)

    def _moved(self, _change: dict) -> None:
        self.refresh()

    def _show(self, answer: Answer, settings: dict[str, object]) -> None:
        self.answered, self._answered_for, self.has_failed = answer, settings, False
        with self.hold_sync():
            self.sentence.value = f'<div role="status" style="{TEXT}">{escape(answer.sentence)}</div>'
            self.status.value = f'<div role="status" style="{TEXT}">{escape(answer.note)}</div>' if answer.note else ""
            self.pictures.value = "".join(answer.pictures)

    def _failed(self, error: Exception) -> None:
        self.has_failed = True
        what = f"This setting failed: {type(error).__name__}: {str(error).rstrip('.') or 'no message'}."
        if self.answered is not None:
            kept = ", ".join(f"{self._name(name)} {value}" for name, value in self._answered_for.items())
            what += f" What is greyed below belongs to the last setting that worked: {kept}."
            self.sentence.value = f'<div style="opacity:.4;{TEXT}">{escape(self.answered.sentence)}</div>'
            self.pictures.value = f'<div style="opacity:.4">{"".join(self.answered.pictures)}</div>'
        self.status.value = f'<div role="status" style="{TEXT};border-left:4px solid #D55E00;padding-left:8px">' + (
            f"{escape(what)}</div>"
        )

    def _name(self, name: str) -> str:
        return getattr(self.controls[name], "description", "") or name


TEXT = "line-height:1.45;max-width:900px;white-space:normal"


def show(panel: Panel) -> None:
    """Display a panel, and beside it, in an output of its own, the still that stays when no kernel runs."""
    display(panel)


def slider(description: str, value: int, low: int, high: int, tip: str = "") -> widgets.IntSlider:
    """Return a slider over whole numbers that is wide enough to aim with, and follows the arrow keys at once."""
    return widgets.IntSlider(
        value, low, high, description=description, tooltip=tip or description, continuous_update=True,
        style={"description_width": "initial"}, layout=widgets.Layout(width="400px"),
    )  # fmt: skip


def choice(description: str, options: Sequence, value: object, tip: str = "") -> widgets.Dropdown:
    """Return a drop-down list."""
    return widgets.Dropdown(
        options=options, value=value, description=description, tooltip=tip or description,
        style={"description_width": "initial"}, layout=widgets.Layout(width="max-content"),
    )  # fmt: skip


def _plain(html: str) -> str:
    return html.split(">", 1)[-1].rsplit("<", 1)[0]
