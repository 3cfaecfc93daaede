"""Lesson 04: train the digits with a fixed window, and watch the validation error by norm and micro-batch size."""

from __future__ import annotations

import time
from collections.abc import Iterator

import ipywidgets as widgets

from accumkit.figures.curves import CurvesPicture
from accumkit.figures.norm_words import describe_curves
from accumkit.figures.numbers import counted
from accumkit.panels.background import Background
from accumkit.panels.base import Answer, Panel
from accumkit.studies.curves import Curves, Plan, train
from accumkit.studies.stored_curves import stored

LIMIT = 60.0  # seconds
DRAWN_EVERY = 1.0  # seconds; a drawing costs two slices of training


class CurvesPanel(Panel):
    """Two buttons, a progress bar with the time left, and the curves; before a start, curves stored before.

    Attributes
    ----------
    start, stop : ipywidgets.Button
    progress : ipywidgets.FloatProgress
        From 0 to 1.
    curves : Curves
        What is shown.
    """

    def __init__(self, plan: Plan | None = None, strict: bool | None = None, limit: float = LIMIT) -> None:
        self.plan, self.curves, self._limit = plan or Plan(), stored(), limit
        self._picture, self._drawn_at, self._state = CurvesPicture(), 0.0, "stored"
        self._background = Background(self._came_on, self._ended, limit)
        size = widgets.Layout(width="max-content")
        self.start = widgets.Button(description="Start training", tooltip="Train every run anew, here", layout=size)
        self.stop = widgets.Button(
            description="Stop", tooltip="Stop, and keep what there is", disabled=True, layout=size
        )
        self.progress = widgets.FloatProgress(0.0, min=0.0, max=1.0, description="Progress")
        self.start.on_click(lambda _: self.begin())
        self.stop.on_click(lambda _: self._background.stop())
        row = widgets.Box([self.start, self.stop, self.progress], layout=widgets.Layout(flex_flow="row wrap"))
        super().__init__("norm-curves", {}, self._answer_now, before=(row,), strict=strict)

    @property
    def running(self) -> bool:
        """Whether a training goes on."""
        return self._background.running

    def begin(self) -> None:
        """Start the training anew; it goes on in small slices, so that the kernel answers in between."""
        self._state, self._drawn_at = "running", time.monotonic()
        self.start.disabled, self.stop.disabled = True, False
        self.curves = Curves(self.plan)
        self.refresh()
        self._background.start(self._train())

    def _train(self) -> Iterator[Curves]:
        for curves in train(self.plan):
            self.curves = curves
            yield curves

    def _answer_now(self) -> Answer:
        return Answer(describe_curves(self.curves), self._picture.html(self.curves), self._note())

    def _note(self) -> str:
        through = sum(len(self.curves.final(norm, size)) for norm in self.plan.norms for size in self.plan.sizes)
        if self._state == "stored":
            return (
                f"These curves were trained before and stored. Start trains all {len(self.plan.runs)} runs anew, here: "
                f"about 20 seconds on a laptop, {self._limit:.0f} at most."
            )
        runs = f"{through} of {counted(len(self.plan.runs), 'runs')} through"
        if self._state == "running":
            left = self._seconds_left()
            return f"Training: {runs}" + ("." if left is None else f", about {counted(round(left), 'seconds')} left.")
        if self._state == "done":
            return f"All {counted(through, 'runs')} are through; they took {self._background.seconds:.0f} seconds."
        late = "after the time that this panel allows itself" if self._background.seconds > self._limit else "by you"
        return f"Stopped {late}: {runs}. What is shown is as far as they came."

    def _seconds_left(self) -> float | None:
        """Estimate by the clock, so that drawing and the reader's moves count."""
        done = self.curves.done
        return self._background.seconds / done * (self.plan.work - done) if done else None

    def _came_on(self, _: object) -> None:
        self.progress.value = min(1.0, self.curves.done / self.plan.work)
        if time.monotonic() - self._drawn_at >= DRAWN_EVERY:
            self.refresh()
            self._drawn_at = time.monotonic()

    def _ended(self, how: str | Exception) -> None:
        self.start.disabled, self.stop.disabled = False, True
        self._state = "stopped" if isinstance(how, Exception) else how
        if isinstance(how, Exception):
            self._failed(how)
            if self.strict:
                raise how
        else:
            self.refresh()


def norm_curves(plan: Plan | None = None, strict: bool | None = None) -> CurvesPanel:
    """Return the second panel of lesson 04: training curves, stored ones first, and a button that trains them anew.

    Parameters
    ----------
    plan : Plan, optional
        What the button trains.
    strict : bool, optional
        See :class:`accumkit.panels.Panel`.

    Returns
    -------
    CurvesPanel

    Examples
    --------
    >>> from accumkit import panels
    >>> panel = panels.norm_curves()
    >>> panel.running, "stored" in panel.answered.note
    (False, True)
    """
    return CurvesPanel(plan, strict)
