"""The pitfall panel: choose a fault, predict what it does, see it run for real, and mend it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from html import escape

import ipywidgets as widgets

from accumkit.errors import AccumkitError
from accumkit.figures.diff import describe_diff
from accumkit.figures.numbers import UNITS
from accumkit.figures.picture import timeline_picture, weights_picture
from accumkit.panels import effects
from accumkit.panels import pitfall_words as words
from accumkit.panels.base import Answer, Panel
from accumkit.panels.examples import examples_html
from accumkit.panels.pitfall_knobs import ACROSS, SIZES, across, check, controls, fit, one_of
from accumkit.panels.prediction import Prediction
from accumkit.pitfalls.catalog import CATALOG
from accumkit.pitfalls.composing import named
from accumkit.pitfalls.simulation import Simulation
from accumkit.pitfalls.simulator import simulate, warm_up
from accumkit.trace.record import Trace

FEW = 4  # so many pitfalls need no family
GREY = '<div style="opacity:.4">'
QUESTION = "The marked lines are changed, and nothing else. What becomes of what one example weighs in its update?"


@dataclass(frozen=True)
class PitfallAnswer(Answer):
    """What the panel shows for one setting."""

    code: str = ""  # HTML: the lines that differ
    why: str = ""  # HTML: the fault in words; empty until the reader has predicted
    looked: str = ""  # HTML: the examples of the chosen micro-batch


class PitfallPanel(Panel):
    """The panel of one or more pitfalls; see :func:`pitfalls`."""

    def __init__(self, slugs: tuple[str, ...], settings: dict[str, int | bool], strict: bool | None = None) -> None:
        self._families: dict[str, list[str]] = {}
        for slug in slugs:
            family = CATALOG[slug].family if len(slugs) > FEW else ""  # a few are one list
            self._families.setdefault(family, []).append(slug)
        self.simulation: Simulation | None = None
        self._simulate = lru_cache(maxsize=16)(simulate)  # choosing a bar or mending runs nothing again
        self._weights, self._timeline = weights_picture(height=196), timeline_picture()
        self._lined: tuple[Trace | None, str] = (None, "")  # the timeline drawn last, and of what
        self.prediction = Prediction(QUESTION, effects.CHOICES, self._reply)
        across(self.prediction.choices)
        self.code, self.why, self.looked, self.timeline = (widgets.HTML() for _ in range(4))
        first, families = CATALOG[slugs[0]], list(self._families)
        self.family = one_of("Family", families, families[0], "Kinds of faults")
        self.controls = controls(first, self._families[families[0]], settings)
        fit(self.controls, first)
        self.family.observe(self._family_chosen, names="value")
        # Before the panel's own observer: it sets what the panel then runs.
        self.controls["fault"].observe(self._fault_chosen, names="value")
        warm_up()
        super().__init__("pitfalls-" + slugs[0], self.controls, self._work, strict=strict)
        self._style.value += ACROSS
        self.prediction.choices.observe(self._moved, names="value")
        self.children = self._arranged(
            [self.family] * (len(families) > 1) + [self.controls["fault"]] * (len(slugs) > 1)
        )

    def _arranged(self, chosen: list[widgets.Widget]) -> list[widgets.Widget]:
        row = widgets.Layout(flex_flow="row wrap", align_items="center", grid_gap="0 18px")
        knobs = self.controls
        return [
            widgets.VBox(chosen), self.code,
            widgets.Box([knobs[name] for name in (*SIZES, "unequal")], layout=row), self.prediction,
            knobs["mended"], self.sentence, self.status, self.why, self.pictures, knobs["look"], self.looked,
            self.timeline, self._style,
        ]  # fmt: skip

    def fit_type(self) -> None:
        """See `Panel`; the timeline that is kept was drawn in the other type."""
        self._lined = (None, "")
        super().fit_type()

    def still(self) -> dict[str, str]:
        """Return the panel as first drawn and, folded under the question, what the fault does."""
        if self.answered is None or self.simulation is None:
            return super().still()
        told = self._answer_of(self.simulation, revealed=True, mended=False)
        right = self._answer_of(self.simulation, revealed=False, mended=False)
        sentence = f"{describe_diff(self.simulation.right_source, self.simulation.source)} {told.sentence}"
        return {
            "text/plain": sentence,
            "text/html": f'<details open class="accumkit-still-{self.slug}"><summary>The panel as first drawn, for '
            f"reading without running</summary>{right.code}<p>{escape(right.sentence)}</p>{right.pictures[0]}"
            f"<p>{escape(QUESTION)} ({', '.join(effects.CHOICES)})</p><details><summary>What happens"
            f"</summary><p>{escape(told.sentence)}</p>{told.why}{''.join(told.pictures)}</details></details>",
        }

    def _work(self, fault: str, mended: bool, look: int, **settings) -> PitfallAnswer:
        self.simulation = None  # until there is a new one, nothing is said about the old one
        self.simulation = self._simulate(fault, **settings)
        self.prediction.refresh()
        revealed = self.prediction.choices.value is not None
        self.controls["mended"].disabled = not revealed
        return self._answer_of(self.simulation, revealed, mended, look)

    def _answer_of(self, simulation: Simulation, revealed: bool, mended: bool, look: int = 0) -> PitfallAnswer:
        wrong = revealed and not mended
        trace = simulation.trace if wrong else simulation.right_trace
        chosen = self._within(look, len(trace.micro_batches)) if look else None
        loop = simulation.name if wrong else "the right loop"
        one = UNITS.get(trace.unit, "example")
        self._weights.name, self._timeline.name = f"What each {one} weighs in {loop}", f"What {loop} did"
        pictures = [self._weights.html(trace, chosen=chosen)]
        if revealed:
            if trace is not self._lined[0]:  # a bar that is chosen moves no event
                self._lined = trace, self._timeline.html(trace)
            pictures.append(self._lined[1])
        looked = examples_html(simulation, trace, chosen) if chosen is not None else ""
        return PitfallAnswer(
            words.sentence_of(simulation, wrong, revealed),
            tuple(pictures),
            words.note_of(simulation, wrong, revealed),
            words.code_of(simulation, wrong, revealed and mended),
            words.why_of(simulation.pitfalls[0]) if revealed else "",
            looked,
        )

    def _within(self, look: int, micro_batches: int) -> int:
        """Return the index of the micro-batch to look into, and let its slider end at the last one."""
        if self.controls["look"].max != micro_batches:
            with self._at_once():
                self.controls["look"].max = micro_batches
        return min(look, micro_batches) - 1

    def _reply(self, guess: str) -> str:
        return effects.reply(guess, self.simulation) if self.simulation else ""

    def _show(self, answer: Answer, settings: dict[str, object]) -> None:
        super()._show(replace(answer, pictures=answer.pictures[:1]), settings)
        self.answered = answer
        self.code.value, self.why.value, self.looked.value = answer.code, answer.why, answer.looked
        self.timeline.value = "".join(answer.pictures[1:])

    def _failed(self, error: Exception) -> None:
        super()._failed(error)
        self.prediction.said = ""  # its reply is about another setting: it is greyed, and said anew when there is one
        for part in (self.code, self.why, self.looked, self.timeline, self.prediction.reply):
            if part.value and not part.value.startswith(GREY):
                part.value = f"{GREY}{part.value}</div>"

    @contextmanager
    def _at_once(self) -> Iterator[None]:
        """Set several controls as one move: what they would start is left to whoever sets them."""
        before, self._busy, again = getattr(self, "_busy", False), True, getattr(self, "_again", False)
        try:
            yield
        finally:
            self._busy, self._again = before, again

    def _family_chosen(self, _change: dict) -> None:
        slugs = self._families[self.family.value]
        self.controls["fault"].options = slugs  # chooses the first one, and so runs it

    def _fault_chosen(self, _change: dict) -> None:
        if self.controls["fault"].value is None:
            return
        pitfall = CATALOG[self.controls["fault"].value]
        with self._at_once():
            self.controls["epochs"].value = pitfall.epochs
            self.controls["unequal"].value = pitfall.unequal
            self.controls["mended"].value = False
            self.prediction.reset()
            fit(self.controls, pitfall)


def pitfalls(
    *slugs: str, lesson: str | None = None, strict: bool | None = None, **settings: int | bool
) -> PitfallPanel:
    """Return a panel of pitfalls: choose one, predict, see what it does when it runs, and mend it.

    Parameters
    ----------
    *slugs : str
        Pitfalls of the catalog to choose from; all of them where neither slugs nor a lesson are given.
    lesson : str, optional
        Choose from those that a lesson teaches, by the beginning of its name, such as "02".
    strict : bool, optional
        See :class:`accumkit.panels.Panel`.
    **settings
        Where the sliders begin: accumulation_steps, micro_batch_size, examples, epochs, unequal.

    Returns
    -------
    PitfallPanel

    Raises
    ------
    AccumkitError
        An unknown slug, lesson or setting, or one out of its slider's range.

    Examples
    --------
    >>> from accumkit import panels
    >>> panel = panels.pitfalls("missing-division")
    >>> panel.prediction.choices.value = "too large"
    >>> panel.prediction.said
    'As you predicted: too large (an update gets more than it should).'
    """
    if lesson is not None:
        slugs += tuple(slug for slug, p in CATALOG.items() if p.lesson and p.lesson.startswith(lesson))
        if not slugs:
            lessons = sorted({p.lesson for p in CATALOG.values() if p.lesson})
            raise AccumkitError(
                f"lesson={lesson!r} teaches no pitfall; give the beginning of one: {', '.join(lessons)}"
            )
    for name, value in settings.items():
        check(name, value)
    return PitfallPanel(tuple(p.slug for p in named(slugs or tuple(CATALOG))), settings, strict)
