"""A check never raises over what a learner made, and is not taken in by it; a fault of the kit's own comes through."""

from __future__ import annotations

import time

import numpy as np
import pytest

import accumkit as ak
from accumkit.checks import exact_or_not, guarded, problem, problems, trace_reading, update_sizes
from accumkit.checks.outcome import NOT_YET, RIGHT, Outcome
from accumkit.checks.problem import Problem
from accumkit.checks.questions import Question, Slip, judged
from accumkit.checks.stubs import is_blank
from accumkit.checks.values import exact, plain, shown

READ = dict(lost=[13, 14], mixed=3, examples=10, weight=0.5, first="shorter", third="shorter and turned",
            condition="i % 4 == 0")  # fmt: skip
SIZES = dict(micro_batches=13, updates=3, examples=[30, 30, 14], divisor=14, share=1 / 7)


class Anything(int):
    """Says of everything that it is the same."""

    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


class Raising(int):
    def __eq__(self, other):
        raise RuntimeError("no")

    __hash__ = int.__hash__


class Text(str):
    def __str__(self):
        raise RuntimeError("no")


class Reads(dict):
    def get(self, *arguments):
        raise RuntimeError("no")

    items = __getitem__ = get


class Classless:
    @property
    def __class__(self):
        raise RuntimeError("no")


class Everything:
    def __getattr__(self, name):
        return self

    def __call__(self, *arguments, **named):
        return self


class Exits:
    def __getattr__(self, name):
        raise SystemExit(1)


@pytest.fixture
def in_a_notebook(monkeypatch):
    """Let a check answer as it does for learners."""
    monkeypatch.setattr(problem, "STRICT", False)


def test_numbers_that_say_they_are_right_are_taken_as_they_are():
    outcome = update_sizes.check(dict(micro_batches=Anything(1), updates=Anything(1), examples=[Anything(1)] * 3,
                                      divisor=Anything(1), share=1 / 7))  # fmt: skip
    assert "1 of 5 is right" in repr(outcome)
    assert [type(one) for one in plain([Anything(2), np.float64(0.5), Text("a")])] == [int, float, str]
    assert exact(Anything(2)) == 2 and exact(Anything(2)) != 3


def test_numbers_and_texts_of_ones_own_classes_are_read():
    raising = {name: Raising(value) if type(value) is int else value for name, value in SIZES.items()}
    assert update_sizes.check(raising).status == RIGHT
    right = {name: Text(found.right) for name, found in exact_or_not.measured().items()}
    assert exact_or_not.check(right).status == RIGHT


@pytest.mark.parametrize("name", ["fitting_settings", "momentum_for_n", "exact_or_not", "update_sizes"])
def test_dicts_of_ones_own_class_are_read(name):
    names = {}
    exec(problems()[name].solution_source, names)
    assert problems()[name].check(Reads(names["answer"])).status == RIGHT


def test_a_key_that_raises_over_a_comparison():
    assert update_sizes.check({**SIZES, Raising(3): 1}).status == RIGHT


@pytest.mark.parametrize("lost", [{np.int64(13), np.int64(14)}, {14, 13}, [np.int64(14), 13], np.array([13, 14])])
def test_which_ones_may_be_numbers_of_numpy(lost):
    assert trace_reading.check({**READ, "lost": lost}).status == RIGHT


@pytest.mark.parametrize("said", ["'i % 4 == 0'", '"i % 4 == 0"', "I % 4 == 0", " i%4==0 ", "`i % 4 == 0`"])
def test_a_choice_may_be_copied_with_its_quotes(said):
    assert trace_reading.check({**READ, "condition": said}).status == RIGHT


@pytest.mark.parametrize("kind", [Everything, Exits, Classless, type("Coded", (), {"__code__": 5})])
@pytest.mark.parametrize("name", ["update_sizes", "exact_or_not", "window_loop", "boundary_mend", "replace_norms"])
def test_any_object_gets_an_answer(kind, name, in_a_notebook):
    odd = kind()
    assert not is_blank(odd)
    assert problems()[name].examine(odd).status == NOT_YET


def test_what_a_judge_raises_is_told_calmly_and_comes_through_in_tests(monkeypatch):
    def judge(answer):
        raise LookupError("of the judge's own")

    own = Problem("00a", "t", "predict", 1, "easy", "answer", "", (), judge)
    with pytest.raises(LookupError):
        own.check({"a": 1})
    monkeypatch.setattr(problem, "STRICT", False)
    said = " ".join(repr(own.check({"a": 1})).split())
    assert said.startswith("Not yet: this answer cannot be judged: it raised LookupError: of the judge's own.")
    exits = Problem("00a", "t", "predict", 1, "easy", "answer", "", (), lambda answer: Exits().name)
    assert "it raised SystemExit: 1." in repr(exits.check({"a": 1}))
    interrupted = Problem("00a", "t", "predict", 1, "easy", "answer", "", (), interrupt)
    with pytest.raises(KeyboardInterrupt):
        interrupted.check({"a": 1})


def interrupt(answer):
    raise KeyboardInterrupt


def exceptions() -> dict[str, type]:
    """Exceptions that raise over one question about themselves."""

    class Kind(type):
        def __getattribute__(cls, name):
            if name == "__name__":
                raise RuntimeError("no name")
            return super().__getattribute__(name)

    class Nameless(Exception, metaclass=Kind):
        pass

    class Unreadable(Exception):
        def __str__(self):
            raise KeyboardInterrupt

    class Untraced(Exception):
        @property
        def __traceback__(self):
            raise RuntimeError("no")

    return {"Nameless: a": Nameless, "Unreadable: (its text cannot be read)": Unreadable, "Untraced: a": Untraced}


@pytest.mark.parametrize("text", exceptions())
def test_an_exception_that_cannot_be_described_is_told_all_the_same(text):
    kind = exceptions()[text]

    def raises(model, loader, optimizer, n):
        raise kind("a")

    assert f"raised {text}" in ak.check_loop(raises).reason
    if not text.startswith("Unreadable"):  # in the main thread an interrupt is one
        assert guarded.told(kind("a")) == text


def twice(deep: int) -> list:
    value = [1]
    for _ in range(deep):
        value = [value, value]
    return value


def itself() -> list:
    value = []
    value += [value, value]
    return value


ENDLESS = {
    "holds itself": itself(),
    "doubles": twice(60),
    "a huge range": range(10**12),
    "a huge array": np.broadcast_to(1.0, (10**9,)),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_values_without_end_are_read_in_no_time(name):
    value = ENDLESS[name]
    asked = Question("share", [0.5, 1.0], "Think.", [Slip([1.0], "one", "One.")])
    outcome = judged({"share": value}, [asked], "yes.")
    assert outcome.status == NOT_YET and len(repr(outcome)) < 500
    assert len(shown(value)) <= 60


def test_lists_in_lists_are_shown_as_before():
    assert shown([[1, 2.5], (3,), {"a": [0.25]}]) == "[[1, 2.5], (3,), {'a': [0.25]}]"
    assert shown([1 / 3] * 40).endswith("...")
    assert isinstance(judged({"a": time}, [Question("a", 1, "")], ""), Outcome)
