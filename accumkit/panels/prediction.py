"""A question to answer before trying: the reader's guess, and what was measured beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

import ipywidgets as widgets


class Prediction(widgets.VBox):
    """A question with choices; what is said in reply follows what the reader has measured so far.

    Parameters
    ----------
    question : str
    choices : sequence of str
    reply : callable
        From the reader's choice to a sentence. Called again by :meth:`refresh`.

    Examples
    --------
    >>> from accumkit.panels.prediction import Prediction
    >>> prediction = Prediction("Heads or tails?", ("heads", "tails"), lambda guess: f"You said {guess}.")
    >>> prediction.choices.value = "tails"
    >>> prediction.said
    'You said tails.'
    """

    def __init__(self, question: str, choices: Sequence[str], reply: Callable[[str], str]) -> None:
        self._reply, self.said = reply, ""
        text = widgets.HTML(
            f'<div style="max-width:900px;line-height:1.45"><b>Predict first.</b> {escape(question)}</div>'
        )
        self.choices = widgets.RadioButtons(
            options=list(choices), value=None, description="Your answer", tooltip=question,
            style={"description_width": "initial"}, layout=widgets.Layout(width="max-content"),
        )  # fmt: skip
        self.reply = widgets.HTML()
        super().__init__([text, self.choices, self.reply])
        self.choices.observe(lambda _change: self.refresh(), names="value")

    def reset(self) -> None:
        """Ask anew: no choice, nothing said."""
        self.said = self.reply.value = ""
        self.choices.value = None

    def refresh(self) -> None:
        """Say again what follows from the choice, if one was made."""
        if self.choices.value is None:
            return
        said = self._reply(self.choices.value)
        if said != self.said:
            self.said = said
            self.reply.value = f'<div role="status" style="max-width:900px;line-height:1.45">{escape(said)}</div>'
