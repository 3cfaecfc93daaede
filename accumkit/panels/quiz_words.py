"""What the quiz says: before it is answered, when it is handed in, and of each answer at the very end."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from accumkit.checks.quiz import DO_NOT_KNOW, QUESTIONS, changed, score, told
from accumkit.panels.base import TEXT

INTRO = {
    "before": "Eight questions, about eight minutes. You need not know the answers: the lessons are there for them, "
    "and “I do not know yet” is a good answer. Nothing is said now of what is right. The same questions come again at "
    "the end of lesson 05, and only a fresh second answer can show what you have learned. Each answer is kept as you "
    "give it. By keyboard: Tab to an answer, Space to choose it.",
    "after": "The eight questions from the beginning. Answer them once more, without looking anything up. When you "
    "hand them in, every answer is explained and compared with your first ones. Each answer is kept as you give it. "
    "By keyboard: Tab to an answer, Space to choose it.",
}
TOO_LATE = (
    "The quiz after the lessons is handed in, and it said what is right. Answers to the quiz before them would show "
    "nothing now, so it stays as it is: not handed in. Nothing is missing for the course."
)
VERDICTS = {"right": "Right", "not right": "Not right", "not known": "Not known"}


def outcome(when: str, before: Mapping[str, str] | None, answers: Mapping[str, str]) -> str:
    """Return what is said of a quiz that was handed in."""
    if when == "before":
        return (
            "Handed in: your answers are kept. What is right you will hear at the end of lesson 05, after the same "
            "questions. Now go on with the lessons."
        )
    if before is not None:
        return f"Handed in. {changed(before, answers)}"
    return (
        f"Handed in. Right: {score(answers)} of {len(QUESTIONS)}. There is nothing to compare it with, since the quiz "
        "before the lessons was not handed in."
    )


def explained(answers: Mapping[str, str]) -> str:
    """Return as HTML, for every question, the answer that was given, whether it is right, and why."""
    entries = []
    for question in QUESTIONS:
        chosen = question.choice(answers.get(question.slug))
        verdict, against, why = told(question, answers.get(question.slug))
        yours = chosen.text if chosen else DO_NOT_KNOW
        said = [f"Your answer: {escape(yours)}", f"<strong>{VERDICTS[verdict]}.</strong> {escape(against or why)}"]
        said += [escape(why)] if against else []
        lines = "".join(f'<div style="margin-top:4px">{one}</div>' for one in said)
        entries.append(f'<li style="margin:0 0 16px">{escape(question.text)}{lines}</li>')
    return f'<ol style="{TEXT};padding-left:2em;margin:10px 0">{"".join(entries)}</ol>'


def questions_html(when: str) -> str:
    """Return the questions and their choices as HTML; after the lessons with what is right, folded away."""
    entries = []
    for question in QUESTIONS:
        choices = "".join(f"<li>{escape(choice.text)}</li>" for choice in question.choices)
        answer = ""
        if when == "after":
            wrong = "".join(
                f"<li>{escape(choice.text)} {escape(choice.why)}</li>"
                for choice in question.choices
                if not choice.right
            )
            right = question.right
            answer = (
                f"<details><summary>What is right, and why</summary><p><strong>{escape(right.text)}</strong> "
                f"{escape(right.why)} Lesson {question.lesson} shows it.</p><p>And the others:</p>"
                f"<ul>{wrong}</ul></details>"
            )
        entries.append(f'<li style="margin:0 0 10px">{escape(question.text)}<ul>{choices}</ul>{answer}</li>')
    return f'<p>{escape(INTRO[when])}</p><ol style="{TEXT};padding-left:2em">{"".join(entries)}</ol>'
