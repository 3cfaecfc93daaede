"""Lesson 04: the micro-batch size shrinks, the window stays, and BatchNorm's gradient turns away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import ipywidgets as widgets

from accumkit.figures.norm_words import describe_dials
from accumkit.figures.norms import NormsPicture
from accumkit.figures.numbers import listed
from accumkit.panels.background import Background
from accumkit.panels.base import Answer, Panel, choice
from accumkit.panels.prediction import Prediction
from accumkit.studies.nets import KINDS, NETWORKS
from accumkit.studies.norms import NORMS, SIZES, Row, measure

SEEDS = {"mlp": 5, "cnn": 3}  # as many as a few seconds allow
GROUPS = (1, 2, 4, 8, 16)
TURNS, STAYS, BOTH = "BatchNorm's turns away, GroupNorm's stays", "both stay", "both turn away"


@dataclass
class Study:
    """What has been measured for one network and number of groups, and the work that is left."""

    work: Iterator[Row | None]
    norms: tuple[str, ...]
    rows: list[Row] = field(default_factory=list)
    failed: Exception | None = None

    @property
    def complete(self) -> bool:
        """Whether every norm is measured."""
        return len(self.rows) == len(self.norms)

    def go_on(self) -> Iterator[None]:
        """Measure on, a piece at a time."""
        for row in self.work:
            if row is not None:
                self.rows.append(row)
            yield


class NormsPanel(Panel):
    """The panel of the study: norms are measured one by one, and drawn as each is ready.

    What has been measured is kept, so a move of the micro-batch size only draws.
    """

    def __init__(self, strict: bool | None = None) -> None:
        self._studies: dict[tuple[str, int], Study] = {}
        self._picture = NormsPicture()
        self._at_hand: Study | None = None
        self._drawn = 0  # norms of it in the picture
        self._tried: set[int] = set()
        self._background = Background(self._measured, self._ended)
        self._prediction = Prediction(
            "A window of 64 digits is cut into smaller and smaller micro-batches; the loop is right, and divides by "
            "the window's count. What becomes of the accumulated gradient with BatchNorm, and with GroupNorm?",
            (TURNS, STAYS, BOTH),
            self._reply,
        )
        controls = {
            "size": widgets.SelectionSlider(
                options=SIZES, value=16, description="Micro-batch size", tooltip="Examples in one forward and backward",
                style={"description_width": "initial"}, layout=widgets.Layout(width="400px"),
            ),
            "network": choice("Network", [(name, slug) for slug, name in NETWORKS.items()], "mlp"),
            "groups": choice("Groups of GroupNorm", GROUPS, 4, "1 is LayerNorm over all channels"),
        }  # fmt: skip
        super().__init__("norms", controls, self._answer_for, before=(self._prediction,), strict=strict)

    def still(self) -> dict[str, str]:
        """Return the static form of the panel, with every norm in it."""
        self._background.finish()
        return super().still()

    def _answer_for(self, size: int, network: str, groups: int) -> Answer:
        study = self._study(network, groups)
        if study is not self._at_hand or not study.rows:
            self._at_hand = study
            for _ in study.go_on():  # the first picture at once: BatchNorm is the first to be measured
                if study.rows:
                    break
            if not study.complete:
                self._background.start(study.go_on())
        if study.failed is not None:
            raise study.failed
        self._tried.add(size)
        self._drawn = len(study.rows)
        self._prediction.refresh()
        waiting = [KINDS[norm].title for norm in study.norms[len(study.rows) :]]
        note = f"Still being measured: {listed(waiting)}." if waiting else ""
        sentence = f"{NETWORKS[network].capitalize()} network, window of 64. {describe_dials(study.rows, size)}"
        return Answer(sentence, self._picture.html(study.rows, size), note)

    def _study(self, network: str, groups: int) -> Study:
        if (network, groups) not in self._studies:
            norms = NORMS if network == "mlp" else (*NORMS, "instance")
            work = measure(norms, seeds=SEEDS[network], network=network, groups=groups)
            self._studies[network, groups] = Study(work, norms)
        return self._studies[network, groups]

    def _measured(self, _: object) -> None:
        if self._at_hand is not None and len(self._at_hand.rows) > self._drawn:
            self.refresh()

    def _ended(self, how: str | Exception) -> None:
        if isinstance(how, Exception):
            self._at_hand.failed = how
        self.refresh()

    def _reply(self, guess: str) -> str:
        if len(self._tried) < 3:
            return f"You predict: {guess}. Now drag the micro-batch size towards 1."
        exact = {row.norm: row.exact for row in self._at_hand.rows}
        if "group" not in exact:
            return f"You predict: {guess}. GroupNorm is still being measured."
        found = BOTH if not exact["group"] else STAYS if exact["batch"] else TURNS
        right = "as you predicted" if guess == found else f"not what you predicted ({guess})"
        return f"What was measured, over all sizes: {found}, {right}."


def norms(strict: bool | None = None) -> Panel:
    """Return the first panel of lesson 04: micro-batch size, network and groups, and where each norm's gradient points.

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
    >>> panel = panels.norms()
    >>> panel.controls["size"].value = 2
    >>> "with BatchNorm the accumulated gradient is turned" in panel.answered.sentence
    True
    """
    return NormsPanel(strict)
