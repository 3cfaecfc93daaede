"""Lessons 00 and 05: the same eight questions before and after, and what changed in between."""

from __future__ import annotations

from html import escape

import ipywidgets as widgets

from accumkit.checks import recording
from accumkit.checks.quiz import DO_NOT_KNOW, QUESTIONS, UNSURE, check_when
from accumkit.checks.quiz_questions import QuizQuestion
from accumkit.checks.records import QuizRecord
from accumkit.figures.numbers import listed
from accumkit.panels.base import TEXT, Answer, Panel
from accumkit.panels.quiz_words import INTRO, TOO_LATE, explained, outcome, questions_html

# Choices are sentences: they get the whole width, and wrap. "Answer 1" is for screen readers; others see the question.
STYLE = """<style>
.accumkit-quiz .widget-radio-box{width:100%;min-width:0;margin:4px 0 0;gap:2px}
.accumkit-quiz .widget-radio-box label{display:flex;align-items:flex-start;width:auto;max-width:none;height:auto;
  min-height:24px;margin:0;padding:2px 0 2px 26px;position:relative;line-height:1.45;white-space:normal;
  overflow:visible;text-align:left;font-size:inherit;color:var(--jp-content-font-color1,inherit)}
.accumkit-quiz .widget-radio-box input{position:absolute;left:2px;top:4px;width:15px;height:15px;margin:0;flex:none}
.accumkit-quiz .widget-radio>.widget-label{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.accumkit-quiz input:focus-visible{outline:2px solid currentColor;outline-offset:2px}
.accumkit-quiz .widget-button{margin-top:14px}
</style>"""


class QuizPanel(Panel):
    """Eight questions in a list; answers are kept as they are given, and stay as they are once handed in.

    Attributes
    ----------
    when : {"before", "after"}
    choices : list of ipywidgets.RadioButtons
        One a question, in order; the value is the key of the choice.
    hand_in : ipywidgets.Button
    record : QuizRecord or None
        What is kept.
    """

    def __init__(self, when: str, strict: bool | None = None) -> None:
        self.when = check_when(when)
        self._kept = recording.kept()
        given = self.record.answers if self.record else {}
        self.choices = [_choices(number, one, given.get(one.slug)) for number, one in enumerate(QUESTIONS, 1)]
        self.hand_in = widgets.Button(
            description="Hand in", tooltip="Keep these answers as they are", layout=widgets.Layout(width="max-content")
        )
        intro = widgets.HTML(f'{STYLE}<div style="{TEXT}">{escape(INTRO[when])}</div>')
        asked = [_question(number, one) for number, one in enumerate(QUESTIONS, 1)]
        together = [widget for pair in zip(asked, self.choices, strict=True) for widget in pair]
        self._asked = widgets.VBox([intro, *together, self.hand_in], layout=widgets.Layout(max_width="900px"))
        self._asked.add_class("accumkit-quiz")
        self._asked_for_all = False
        super().__init__(f"quiz-{when}", {}, self._answer_now, before=(self._asked,), strict=strict)
        for question, radios in zip(QUESTIONS, self.choices, strict=True):
            radios.observe(lambda change, slug=question.slug: self._chosen(slug, change["new"]), names="value")
        self.hand_in.on_click(lambda _: self._handed_in())

    @property
    def record(self) -> QuizRecord | None:
        """What is kept of this quiz."""
        return self._kept.progress.quiz.get(self.when)

    @property
    def unanswered(self) -> list[int]:
        """The numbers of the questions that have no answer yet."""
        return [number for number, radios in enumerate(self.choices, 1) if radios.value is None]

    def still(self) -> dict[str, str]:
        """Return the questions as a static output; it never shows what a learner answered."""
        inside = f"<summary>The quiz, for reading without running</summary>{questions_html(self.when)}"
        return {
            "text/plain": f"{len(QUESTIONS)} questions {self.when} the lessons",
            "text/html": f'<details open class="accumkit-still-{self.slug}">{inside}</details>',
        }

    def _chosen(self, slug: str, key: str | None) -> None:
        if key is not None:
            recording.quiz_answers(self.when, {slug: key})
            self._refreshed()

    def _handed_in(self) -> None:
        self._asked_for_all = bool(self.unanswered)
        if not self.unanswered:
            answers = {question.slug: radios.value for question, radios in zip(QUESTIONS, self.choices, strict=True)}
            recording.quiz_answers(self.when, answers, finished=True)
        self._refreshed()

    def _refreshed(self) -> None:
        self._kept = recording.kept()
        self.refresh()

    def _answer_now(self) -> Answer:
        record = self.record
        if self.when == "before" and self._kept.progress.late_for_before:
            self._asked.layout.display = "none"
            return Answer(TOO_LATE, (), self._place())
        if record is None or record.finished is None:
            return Answer(self._so_far(), (), self._place() if record else "")
        self._asked.layout.display = "none"
        other = self._kept.progress.quiz.get("before")
        before = other.answers if other and other.finished else None
        pictures = (explained(record.answers),) if self.when == "after" else ()
        return Answer(outcome(self.when, before, record.answers), pictures, self._place())

    def _so_far(self) -> str:
        done = len(QUESTIONS) - len(self.unanswered)
        said = f"{done} of {len(QUESTIONS)} answered."
        if self._asked_for_all and self.unanswered:
            which = "question" if len(self.unanswered) == 1 else "questions"
            said += f" Still open: {which} {listed(self.unanswered, most=len(QUESTIONS))}. "
            said += f"Where you do not know, choose “{DO_NOT_KNOW}”"
        return said

    def _place(self) -> str:
        if self._kept.folder is not None and not self._kept.trouble:
            return ""
        return "Your answers are kept for this session only; ak.progress() says why, and how to keep them."


def _question(number: int, question: QuizQuestion) -> widgets.HTML:
    top = "margin-top:14px;padding-top:12px;border-top:1px solid var(--jp-border-color1,#8888)"
    return widgets.HTML(f'<div style="{TEXT};{top}"><b>{number}.</b> {escape(question.text)}</div>')


def _choices(number: int, question: QuizQuestion, given: str | None) -> widgets.RadioButtons:
    options = [(choice.text, choice.key) for choice in question.choices] + [(DO_NOT_KNOW, UNSURE)]
    known = given if given in [key for _, key in options] else None
    return widgets.RadioButtons(
        options=options, value=known, description=f"Answer {number}", tooltip=question.text,
        style={"description_width": "initial"}, layout=widgets.Layout(width="100%", height="auto"),
    )  # fmt: skip


def quiz(when: str, strict: bool | None = None) -> QuizPanel:
    """Return the quiz before the lessons, or the same one after them.

    Before, nothing is said of what is right; after, every answer is explained, and compared with those before.

    Parameters
    ----------
    when : {"before", "after"}
    strict : bool, optional
        See :class:`accumkit.panels.Panel`.

    Returns
    -------
    QuizPanel

    Raises
    ------
    AccumkitError
        Another ``when``.

    Examples
    --------
    >>> from accumkit import panels
    >>> panel = panels.quiz("before")
    >>> panel.choices[1].value = "four"
    >>> panel.answered.sentence
    '1 of 8 answered.'
    """
    return QuizPanel(when, strict)
