"""In a real JupyterLab and a real browser: the quiz at the end of lesson 00, answered by keyboard alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import browser_path
from open_lab import browser, errors_in, open_notebook, run_all, running_lab

from accumkit import course
from accumkit.checks.progress import FILE, read
from accumkit.checks.quiz import QUESTIONS, UNSURE

pytestmark = pytest.mark.browser
QUIZ = ".accumkit-quiz"
PLACES = (1, 2, 0, 3, 1, 0, 2, None)  # which choice is taken; None: the last one, "I do not know yet"


@pytest.fixture(scope="module")
def page():
    with browser(browser_path()) as page:
        yield page


def chosen() -> dict[str, str]:
    return {
        question.slug: UNSURE if place is None else question.choices[place].key
        for question, place in zip(QUESTIONS, PLACES, strict=True)
    }


def quiz_and_progress(path: Path) -> None:
    """Leave only the quiz in a notebook, and a cell after it that shows the progress."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    [quiz] = [cell for cell in notebook["cells"] if cell["id"] == "quiz"]
    quiz["source"] = ["from accumkit import panels\n", *quiz["source"]]
    source = 'import accumkit as ak\n\nak.progress(name="Ada")'
    notebook["cells"] = [quiz, quiz | {"id": "tell", "source": source}]
    path.write_text(json.dumps(notebook), encoding="utf-8")


def said(page, words: str) -> None:
    """Wait until the panel says so."""
    page.locator(f'.widget-vbox:has(> {QUIZ}) [role="status"]').filter(has_text=words).wait_for()


def test_a_learner_answers_by_keyboard_and_finds_it_in_the_progress(page, tmp_path):
    with running_lab(tmp_path) as lab:
        lab.set_theme("light")
        open_notebook(page, lab, course.START)
        assert errors_in(run_all(page, tmp_path / course.START)) == []
        page.wait_for_selector(QUIZ)
        file = tmp_path / course.OWN / FILE
        assert not file.exists(), "to look at a quiz is no answer"

        groups = page.locator(f"{QUIZ} .widget-radio-box")
        assert groups.count() == len(QUESTIONS)
        groups.first.locator("input").first.focus()
        for number, place in enumerate(PLACES):
            inputs = groups.nth(number).locator("input")
            wanted = inputs.count() - 1 if place is None else place
            for position in range(inputs.count()):
                focused = inputs.nth(position).evaluate("radio => radio === document.activeElement")
                assert focused, f"Tab does not come to choice {position} of question {number + 1}"
                if position == wanted:
                    page.keyboard.press("Space")
                page.keyboard.press("Tab")
            assert inputs.nth(wanted).is_checked()
        said(page, "8 of 8 answered.")
        assert read(file).quiz["before"].answers == chosen(), "kept before it is handed in"
        cut = "labels => labels.filter(l => l.scrollWidth > l.clientWidth + 1).map(l => l.textContent)"
        assert page.locator(f"{QUIZ} .widget-radio-box label").evaluate_all(cut) == [], "choices are cut off"

        assert page.evaluate("document.activeElement.textContent") == "Hand in"
        page.keyboard.press("Enter")
        said(page, "Handed in: your answers are kept.")
        assert page.locator(QUIZ).is_hidden()
        record = read(file).quiz["before"]
        assert record.finished and record.answers == chosen()

        # Another day, in the other theme: the quiz stays handed in, and the progress has it.
        lab.set_theme("dark")
        quiz_and_progress(tmp_path / course.START)
        open_notebook(page, lab, course.START)
        assert errors_in(run_all(page, tmp_path / course.START)) == []
        said(page, "Handed in: your answers are kept.")
        assert page.locator(QUIZ).is_hidden()
        table = page.get_by_role("table").filter(has_text="Progress of Ada")
        table.wait_for()
        assert table.locator("th[scope=col]").count() == 6
        assert f"{record.score} of 8 right; after the lessons: not taken." in page.locator(".jp-Notebook").inner_text()
