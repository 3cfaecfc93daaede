"""Answers that are values: whatever a learner puts there is read, or told apart, and never raises."""

from __future__ import annotations

import math
import sys
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

import accumkit as ak
from accumkit.checks.attempts import MODULE, attempted, line, rows
from accumkit.checks.outcome import Outcome
from accumkit.checks.problem import Problem, WrongAnswer
from accumkit.checks.questions import Question, Slip, judged
from accumkit.checks.values import is_number, plain, shown

WHOLE = Question("updates", 6, "Count the windows.", [Slip(5.25, "not-rounded", "There is no quarter of an update.")])
BROKEN = Question("weight", 2 / 3, "Divide.", [Slip(1.5, "upside-down", "The other way round.")])
FLAG = Question("fair", True, "Look again.")
LIST = Question("examples", [12, 7], "Add them up.", [Slip([4, 3], "last-only", "Those are the last ones.")])
WHICH = Question("lost", [9, 10], "Follow the backwards.", which=True)
WORD = Question("fault", "tail-dropped", "Look at the end.", choices=("tail-dropped", "tail-leaked", "off-by-one"))


class Hostile:
    """Raises over everything that it is asked."""

    def __repr__(self):
        raise RuntimeError("no repr")

    def __getattr__(self, name):
        raise RuntimeError(f"no {name}")

    def __eq__(self, other):
        raise RuntimeError("no comparison")

    __hash__ = None


class Quiet:
    """Has the repr that Python gives, with an address."""


def kind_of(value) -> str:
    """Return the name of a value's class, which is all that may be asked of some."""
    return type(value).__name__


def said(question: Question, value) -> str:
    """Return what is said of one value, on one line; "right" where it is."""
    outcome = judged({question.name: value}, [question], "fine.")
    return "right" if outcome.status == "right" else " ".join(repr(outcome).split())


@pytest.mark.parametrize(
    ("question", "value"),
    [
        *[(WHOLE, v) for v in (6, 6.0, np.int64(6), np.float32(6), torch.tensor(6), torch.tensor(6.0), Fraction(6))],
        *[(WHOLE, v) for v in (np.array(6), Decimal(6))],
        *[(BROKEN, v) for v in (2 / 3, 0.6667, Fraction(2, 3), np.float64(2 / 3), torch.tensor(2 / 3))],
        (BROKEN, Decimal("0.6667")),
        (BROKEN, torch.tensor(2 / 3, requires_grad=True)),
        (BROKEN, torch.nn.Parameter(torch.tensor(2 / 3))),
        *[(FLAG, v) for v in (True, np.bool_(True), torch.tensor(True))],
        *[(LIST, v) for v in ([12, 7], (12, 7), [12.0, 7.0], np.array([12, 7]), torch.tensor([12.0, 7.0]))],
        *[(LIST, v) for v in ([torch.tensor(12), np.int32(7)], torch.Size([12, 7]))],
        *[(WHICH, v) for v in ([9, 10], [10, 9], (9, 10), {9, 10}, range(9, 11), torch.tensor([10, 9]))],
        *[(WORD, v) for v in ("tail-dropped", " Tail-Dropped ", "tail_dropped", "tail dropped", "`tail-dropped`")],
        (WORD, np.str_("tail-dropped")),
    ],
)  # fmt: skip
def test_the_right_value_is_right_however_it_is_written(question, value):
    assert said(question, value) == "right"


@pytest.mark.parametrize("value", [None, ...])
def test_dots_and_none_are_still_open(value):
    assert "1. `updates`: still open Put a whole number in its place." in said(WHOLE, value)
    assert "Put a list of 2 numbers in its place." in said(LIST, value)


ODD = [True, False, math.nan, math.inf, -math.inf, 10**400, 10**5000, 1j, "6", "", b"6", [], [[]], {}, {1}, object,
       print, Hostile(), Hostile, Quiet(), torch.tensor([]), torch.tensor([[1, 2]]), torch.tensor(math.nan), np.nan,
       np.array([1, None], dtype=object), [..., 3], [None], ["a"], [True, 3], [math.nan, 1], torch.nn.Linear(1, 1),
       torch.zeros(2, 2).to_sparse(), "x" * 10**6, "\n`<b>`\n", range(0), iter([1]), {1, "a"},
       Decimal("nan"), lambda: 1]  # fmt: skip
LOOP: list = []
LOOP.append(LOOP)


@pytest.mark.parametrize("question", [WHOLE, BROKEN, FLAG, LIST, WHICH, WORD], ids=lambda question: question.name)
@pytest.mark.parametrize("value", [*ODD, LOOP], ids=kind_of)
def test_odd_values_get_a_clear_text_and_never_raise(question, value):
    if question is FLAG and value is True:
        return
    outcome = judged({question.name: value}, [question], "fine.")
    text = repr(outcome)
    assert outcome.status == "not yet"
    assert len(text) < 700 and "0x" not in text, text
    assert outcome._repr_html_().count("<code") == outcome._repr_html_().count("</code>")
    assert text == repr(judged({question.name: value}, [question], "fine.")), "the same words each time"


@pytest.mark.parametrize(
    ("question", "value", "text"),
    [
        (WHOLE, True, "True is given, and a whole number is asked for."),
        (WHOLE, "6", "'6' is given, and a whole number is asked for, without quotes around it."),
        (WHOLE, 6.5, "6.5 is given, and a whole number is asked for."),
        (WHOLE, math.nan, "nan is given, and a whole number is asked for."),
        (WHOLE, [6], "[6] is given, and a whole number is asked for."),
        (FLAG, 1, "1 is given, and True or False is asked for; write True if that is meant."),
        (FLAG, torch.tensor(0.0), "is given, and True or False is asked for; write False if that is meant."),
        (FLAG, 2, "2 is given, and True or False is asked for."),
        (WORD, True, "True is given, and one of 'tail-dropped', 'tail-leaked', 'off-by-one' is asked for."),
        (FLAG, "True", "'True' is given, and True or False is asked for, without quotes around it."),
        (LIST, 12, "12 is given, and a list of 2 numbers is asked for."),
        (LIST, {12, 7}, "is given, and a list of 2 numbers is asked for."),
        (LIST, [12, ...], "[12, Ellipsis] is given, and a part of it is still open."),
        (WHICH, 9, "9 is given, and a list of numbers is asked for."),
        (WORD, 3, "3 is given, and one of 'tail-dropped', 'tail-leaked', 'off-by-one' is asked for."),
        (WORD, "tail-droped", "'tail-droped' is not among the answers; the nearest is 'tail-dropped'"),
        (
            WORD,
            "batchnorm",
            "'batchnorm' is not among the answers; they are 'tail-dropped', 'tail-leaked', 'off-by-one'",
        ),
        (WHOLE, Hostile(), "a Hostile is given"),
        (WHOLE, Quiet(), "test_questions.Quiet object> is given"),
    ],
    ids=kind_of,
)
def test_what_cannot_be_read_is_told(question, value, text):
    text_said = said(question, value)
    assert "cannot be read" in text_said
    assert text in text_said


@pytest.mark.parametrize(
    ("question", "value", "text"),
    [
        (WHOLE, 7, "`updates`: 7 Count the windows."),
        (WHOLE, 21 / 4, "`updates`: 5.25 (not-rounded) There is no quarter of an update."),
        (BROKEN, 1.5, "`weight`: 1.5 (upside-down) The other way round."),
        (BROKEN, 0.67, "`weight`: 0.67, nearly Give more digits, or let Python work it out"),
        (BROKEN, 0.7, "`weight`: 0.7 Divide."),
        (FLAG, False, "`fair`: False Look again."),
        (LIST, [4.0, 3], "`examples`: [4, 3] (last-only) Those are the last ones."),
        (LIST, [7, 12], "`examples`: [7, 12] Add them up."),
        (LIST, [12], "`examples`: [12] It has 1 number; 2 are asked for. Add them up."),
        (WHICH, [], "`lost`: [] Follow the backwards."),
        (WHICH, [9, 9, 10], "`lost`: [9, 9, 10] Follow the backwards."),
        (WORD, "OFF BY ONE", "`fault`: 'off-by-one' Look at the end."),
        (LIST, [1 / 3, 7], "`examples`: [0.333333, 7] Add them up."),
    ],
)
def test_a_wrong_value_gets_its_slip_or_a_nudge(question, value, text):
    assert text in said(question, value)


def test_a_slip_is_told_before_nearly():
    near = Question("ratio", 1.0, "Measure.", [Slip(1.01, "one-more", "One too many.")])
    assert "(one-more)" in said(near, 1.01)
    assert "nearly" in said(near, 1.015)
    assert "Measure." in said(near, 1.5)


EXACT = Question("held", 512.0, "Add up.", [Slip(512.25, "one-too-many", "One more than there are.")], near=0)


@pytest.mark.parametrize("value", [512, 512.0, 2048 / 4, Fraction(512), np.float32(512), torch.tensor(512.0)])
def test_an_exact_number_is_right_however_it_is_written(value):
    assert said(EXACT, value) == "right"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (512.25, "`held`: 512.25 (one-too-many) One more than there are."),
        (511.75, "`held`: 511.75 Add up."),
        (512.2500001, "`held`: 512.25 Add up."),
        (515, "`held`: 515 Add up."),
        (512 + 1e-10, "Add up."),
    ],
)
def test_nothing_is_nearly_an_exact_number(value, text):
    assert text in said(EXACT, value)
    assert "digits" not in said(EXACT, value) and "nearly" not in said(EXACT, value)


def test_exact_numbers_in_a_list_are_compared_exactly():
    exact = Question("held", [64.0, 512.0], "Add up.", near=0)
    assert said(exact, [64, 512]) == "right"
    assert "Add up." in said(exact, [64, 512.25])


@pytest.mark.parametrize("number", range(4))
def test_how_many_are_right_is_said_in_plain_english(number):
    questions = [Question(name, 1, "no") for name in "abcd"]
    answer = {name: int(i < number) for i, name in enumerate("abcd")}
    verb = "is" if number == 1 else "are"
    assert repr(judged(answer, questions, "fine.")).startswith(f"Not yet: {number} of 4 {verb} right.")


def test_nothing_lost_is_an_answer_too():
    none = Question("lost", [], "Follow the backwards.", which=True)
    assert said(none, []) == said(none, torch.tensor([])) == "right"
    assert "Follow" in said(none, [1])


def test_measured_values_may_be_tensors():
    assert said(Question("weight", torch.tensor(0.25), "no"), 0.25) == "right"
    assert said(Question("examples", torch.tensor([12, 7]), "no"), [12, 7]) == "right"
    assert Question("updates", np.int64(3), "no").kind == "a whole number"
    assert "(a)" in said(Question("n", 3, "no", [Slip(torch.tensor(4), "a", "b.")]), 4)


@pytest.mark.parametrize("right", [None, ..., math.nan, [], ["a"], [True], {}, object(), Hostile()], ids=kind_of)
def test_a_question_without_a_right_value_is_refused(right):
    with pytest.raises(ak.AccumkitError, match=r"^q: right="):
        Question("q", right, "no")


def test_a_question_whose_right_choice_is_missing_is_refused():
    with pytest.raises(ak.AccumkitError, match="'tail' is not among the choices"):
        Question("q", "tail", "no", choices=("a", "b"))


LINE = Question("line", "i % 4 == 0", "Say it aloud.", choices=("i % 4 == 0", "i % 4 != 0", "(i + 1) % 4 == 0"))


@pytest.mark.parametrize("value", ["i % 4 == 0", " i%4==0", "I % 4 == 0"])
def test_choices_that_differ_by_a_sign_are_told_apart(value):
    assert said(LINE, value) == "right"
    assert said(LINE, value.replace("==", "!=")) != "right"
    assert "is not among the answers; they are 'i % 4 == 0', 'i % 4 != 0'" in said(LINE, value.replace("==", "<"))


def test_several_values_are_judged_one_by_one():
    outcome = judged({"updates": 6, "weight": ..., "fair": False}, [WHOLE, BROKEN, FLAG], "fine.")
    assert repr(outcome).startswith("Not yet: 1 of 3 is right.\n\n1. `weight`: still open\n")
    assert [heading for heading, *_ in outcome.items] == ["`weight`: still open", "`fair`: False"]
    assert repr(judged({"fair": True, "updates": 6}, [WHOLE, FLAG], "fine.")) == "Right: fine."


def test_a_missing_key_and_one_too_many_are_told():
    with pytest.raises(ak.AccumkitError, match=r"the answer has no 'updates' \(but 'update', which nobody asked for\)"):
        judged({"update": 6}, [WHOLE], "fine.")
    with pytest.raises(ak.AccumkitError, match=r"^the answer has no 'fair'$"):
        judged({"updates": 6}, [WHOLE, FLAG], "fine.")
    left_open = repr(judged({"updates": ..., "update": 6}, [WHOLE], "fine."))
    assert "(There is also 'update', which nobody asked for.)" in left_open
    assert judged({"updates": 6, "more": 1, 3: 4, Quiet(): 1}, [WHOLE], "fine.").status == "right"
    with pytest.raises(ak.AccumkitError) as refused:
        judged({Quiet(): 1, 3: 4}, [WHOLE], "fine.")
    assert "0x" not in str(refused.value)


@pytest.mark.parametrize(
    "attempt", [5, [6], "updates=6", {"updates"}, object(), Hostile(), print, lambda: 1], ids=kind_of
)
def test_what_is_no_dict_is_told(attempt):
    with pytest.raises(ak.AccumkitError, match="the answer is a dict with 'updates', 'fair'; given: ") as refused:
        judged(attempt, [WHOLE, FLAG], "fine.")
    assert "0x" not in str(refused.value)


def test_more_is_passed_on():
    assert judged({"fair": True}, [FLAG], "fine.", code="x").code == "x"
    assert judged({"fair": False}, [FLAG], "fine.", code="x").code == "x"


def test_plain_leaves_alone_what_it_cannot_read():
    hostile = Hostile()
    assert plain(hostile) is hostile
    assert plain("6") == "6"
    assert plain([torch.tensor([1, 2]), (3,)]) == [[1, 2], [3]]


def test_a_number_is_one_to_reckon_with():
    assert all(map(is_number, (0, -1.5, 10**300)))
    assert not any(map(is_number, (True, math.nan, math.inf, 10**400, "1", None, 1j, torch.tensor(1))))


def test_values_of_different_kinds_are_never_the_same():
    assert FLAG.same(True, True) and not FLAG.same(1, True) and not FLAG.same(True, 1)
    assert not LIST.same(12, [12, 7]) and not LIST.same([12, 7], 12)


def test_one_slip_of_several_may_be_a_broken_number():
    slips = [Slip(5, "rounded-down", "The tail is a window too."), *WHOLE.slips]
    question = Question("updates", 6, "Count.", slips)
    assert "5.25 (not-rounded)" in said(question, 5.25) and "(rounded-down)" in said(question, 5.0)
    assert "5.5 is given, and a whole number is asked for." in said(question, 5.5)


def test_shown_is_short_and_on_one_line():
    assert shown(torch.zeros(3, 3)).count("\n") == 0
    assert len(shown("x" * 10**6)) == 60
    assert shown(Hostile()) == "a Hostile"
    assert shown(-0.5) == "-0.5" and shown([0.1 + 0.2]) == "[0.3]"


PROBLEM = Problem(
    "00a", "Say six", "predict", 1, "easy", "answer",
    "answer = dict(updates=...)\n### BEGIN SOLUTION\nanswer.update(updates=6)\n### END SOLUTION\n",
    ("a", "b", "c"), lambda attempt: judged(attempt, [WHOLE], "fine."),
    (WrongAnswer("not-rounded", "answer = dict(updates=21 / 4)\n"),),
)  # fmt: skip


def test_an_answer_in_source_is_judged_as_in_a_notebook():
    assert attempted(PROBLEM, PROBLEM.stub).status == "not attempted"
    assert attempted(PROBLEM, PROBLEM.solution_source).status == "right"
    assert attempted(PROBLEM, "answer = {}").status == "not attempted"
    assert attempted(PROBLEM, "answer = dict(updates=7)").status == "not yet"
    assert attempted(PROBLEM, "other = 1").status == "not attempted", "nothing has the name that is asked for"


@pytest.mark.parametrize("source", ["1 / 0", "answer = dict(updates=", "raise SystemExit"])
def test_source_that_raises_leaves_no_module_behind(source):
    before, written = sys.modules.get(MODULE), sys.dont_write_bytecode
    with pytest.raises((ZeroDivisionError, SyntaxError, SystemExit)):
        attempted(PROBLEM, source)
    assert sys.modules.get(MODULE) is before
    assert sys.dont_write_bytecode == written


def test_source_that_takes_its_own_module_away_is_judged_all_the_same():
    source = "import sys; del sys.modules['learner']; answer = dict(updates=6)"
    assert attempted(PROBLEM, source).status == "right"


def test_the_table_says_what_is_not_as_it_should_be():
    [(cells, failed)] = rows({"six": PROBLEM})
    assert failed == []
    assert line(cells).split() == ["00a", "six", "predict", "not", "attempted", "passes", "1", "of", "1"]
    answers = (WrongAnswer("missed", "answer = dict(updates=7)\n"), WrongAnswer("passes", "answer = dict(updates=6)\n"))
    lax = Problem("00b", "t", "predict", 1, "easy", "answer", "answer = dict(updates=7)\n", ("a",),
                  lambda attempt: judged(attempt, [WHOLE], "fine."), answers)  # fmt: skip
    [(cells, failed)] = rows({"lax": lax})
    assert cells[-1] == "0 of 2"
    assert failed == [
        "lax: the wrong answer missed is not named",
        "lax: the wrong answer passes is 'right'",
        "lax: the stub is 'not yet'",
        "lax: the solution is 'not yet'",
    ]


def test_a_judge_that_refuses_is_not_yet():
    outcome = PROBLEM.check([6])
    assert isinstance(outcome, Outcome)
    assert repr(outcome).startswith("Not yet: the answer is a dict with 'updates'; given: [6].")
