"""An exercise's check can be trusted: the stub is not attempted, the solution is right, each wrong answer is told."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace

import pytest
from write_notebooks import notebooks, read

import accumkit as ak
from accumkit.checks import window_loop
from accumkit.checks.outcome import Outcome, of_verdict
from accumkit.checks.problem import Problem
from accumkit.checks.stubs import BEGIN, END, cut_solution, is_blank

PROBLEMS = ak.checks.problems()
WRONG = [(name, wrong) for name, problem in PROBLEMS.items() for wrong in problem.wrong_answers]


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Return a function from source to the function it defines, in a file of its own as a learner's would be."""

    def load(name: str, source: str):
        path = tmp_path / "learner.py"
        path.write_text(f"{PROBLEMS[name].imports}\n\n{source}", encoding="utf-8")
        spec = importlib.util.spec_from_file_location("learner", path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "learner", module)
        spec.loader.exec_module(module)
        return getattr(module, PROBLEMS[name].asks)

    return load


@pytest.mark.parametrize("name", PROBLEMS)
def test_stub_is_not_attempted(name, written):
    outcome = PROBLEMS[name].check(written(name, PROBLEMS[name].stub))
    assert outcome.status == "not attempted"
    lead = "`{asks}` is still as it is given" if PROBLEMS[name].kind == "mend" else "put your answer"
    assert repr(outcome).startswith(f"Not attempted: {lead.format(asks=PROBLEMS[name].asks)}")


@pytest.mark.parametrize("name", PROBLEMS)
def test_solution_is_right(name, written):
    outcome = PROBLEMS[name].check(written(name, PROBLEMS[name].solution_source))
    assert outcome.status == "right", outcome


@pytest.mark.parametrize(("name", "wrong"), WRONG, ids=[f"{name}-{wrong.fault}" for name, wrong in WRONG])
def test_wrong_answer_is_told_by_its_name(name, wrong, written):
    outcome = PROBLEMS[name].check(written(name, wrong.source))
    assert outcome.status == "not yet", outcome
    assert f"({wrong.fault})" in repr(outcome)
    assert PROBLEMS[name].asks != "train" or "learner.py:" in repr(outcome), "a line of the learner's own"
    assert repr(PROBLEMS[name].check(written(name, wrong.source))) == repr(outcome), "the same words each time"


@pytest.mark.parametrize("name", PROBLEMS)
def test_wrong_answers_are_many_and_different(name):
    faults = [wrong.fault for wrong in PROBLEMS[name].wrong_answers]
    assert len(set(faults)) == len(faults) >= 5
    assert len({wrong.source for wrong in PROBLEMS[name].wrong_answers}) == len(faults)


@pytest.mark.parametrize(
    "body",
    ["for images, labels in loader: model(imagse)", "while True: pass", "return 1", "1 / 0", "optimizer.step()"],
)
def test_any_other_answer_is_not_yet_and_never_raises(body, written, monkeypatch):
    monkeypatch.setattr(window_loop, "SECONDS", 2)
    outcome = window_loop.check(
        written("window_loop", f"def train(m, loader, optimizer, accumulation_steps):\n    {body}\n")
    )
    assert outcome.status == "not yet"
    assert len(outcome.lead) > 20


def test_what_is_no_function_is_not_yet():
    assert "needs a function" in repr(window_loop.check(5))


@pytest.mark.parametrize("name", PROBLEMS)
def test_hints_go_up_and_end(name):
    problem = PROBLEMS[name]
    said = [repr(problem.hint(n)) for n in range(1, len(problem.hints) + 1)]
    assert len(set(said)) == len(said) >= 3
    assert all(text.startswith("Hint: ") for text in said)
    for n in (0, len(said) + 1, "1", True):
        assert repr(problem.hint(n)) == (
            f"Hint: there are {len(said)} hints, `q.hint(1)` to `q.hint({len(said)})`; `q.solution()` shows one right "
            "answer."
        )
    assert problem.solution_source.rstrip() in repr(problem.solution())
    assert "SOLUTION" not in repr(problem.solution())


@pytest.mark.parametrize("name", PROBLEMS)
def test_solution_is_written_as_a_learner_would_write_it(name):
    source = PROBLEMS[name].solution_source
    assert "..." not in source, "the dots are filled in, and not overwritten further on"
    assert "answer.update(" not in source and "answer[" not in source


def test_none_is_told_from_an_answer_that_is_still_open():
    assert repr(window_loop.check(None)).startswith("Not attempted: `None` was given: put your answer in the cell")
    assert repr(window_loop.check(...)).startswith("Not attempted: put your answer in the cell")


@pytest.mark.parametrize("name", PROBLEMS)
def test_notebook_holds_this_answer(name):
    problem = PROBLEMS[name]
    path = next(path for path in notebooks("solutions") if path.name.startswith(f"{problem.id}_"))
    cells = read(path).cells
    assert problem.answer.rstrip("\n") in [cell.source for cell in cells]
    assert problem.title.lower() in cells[0].source.lower()
    assert f"**{problem.minutes} minutes · {problem.difficulty}**" in cells[0].source


def test_html_says_what_the_text_says():
    outcome = Outcome("not yet", "a < b", items=(("Head", "one.", "two."),), code="x < 1")
    html = outcome._repr_html_()
    assert "<strong>Not yet:</strong> a &lt; b" in html
    assert "<strong>1. Head</strong><br>one.<br>two.</p><pre>x &lt; 1</pre>" in html
    assert repr(outcome) == "Not yet: a < b\n\n1. Head\n   one.\n   two.\n\nx < 1"


def test_code_is_set_as_code_and_never_torn_apart():
    outcome = Outcome("not yet", "write " * 15 + "`if a < b or c == d:`", items=(("A `b`", "see `q.hint(1)`"),))
    code = '<code style="white-space:nowrap">'
    assert f"{code}if a &lt; b or c == d:</code>" in outcome._repr_html_() and "`" not in outcome._repr_html_()
    assert f"<strong>1. A {code}b</code></strong><br>see {code}q.hint(1)</code>" in outcome._repr_html_()
    assert "`if a < b or c == d:`" in repr(outcome).splitlines()


def test_long_text_is_wrapped():
    outcome = Outcome("not yet", "word " * 60, items=(("heading " * 30, "sentence " * 30),))
    assert max(map(len, repr(outcome).splitlines())) <= 100


def test_a_notebook_shows_what_each_example_weighed(written):
    outcome = window_loop.check(written("window_loop", window_loop.PROBLEM.wrong_answers[0].source))
    assert "<figure" in outcome._repr_html_()
    assert "alt=" in outcome._repr_html_()


OWN_WINDOWS = """\
def train(model, loader, optimizer, accumulation_steps):
    micro_batches = iter(loader)
    while window := list(islice(micro_batches, accumulation_steps)):
        optimizer.zero_grad()
        {before}
        for images, labels in window:
            {inside}
            loss = F.cross_entropy(model(images), labels{how})
            {backward}
        {after}
        optimizer.step()
"""
SUMS = ', reduction="sum"'
COUNT = "sum(len(labels) for _, labels in window)"


def windowed(how=SUMS, before="pass", inside="pass", backward="loss.backward()", after="pass"):
    return OWN_WINDOWS.format(how=how, before=before, inside=inside, backward=backward, after=after)


STEP_EVERY = """\
def train(model, loader, optimizer, accumulation_steps):
    for images, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
"""
TOGETHER = """\
def train(model, loader, optimizer, accumulation_steps):
    micro_batches = iter(loader)
    while window := list(islice(micro_batches, accumulation_steps)):
        images, labels = (torch.cat(parts) for parts in zip(*window))
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
"""
SAID = {
    "one backward on the sum": (
        windowed(
            before="total = 0",
            backward="total = total + loss",
            after="(total / sum(len(t) for _, t in window)).backward()",
        ),
        [
            "the gradient is right, but all forwards of the window stay in memory",
            "call `backward()` on each",
            "is fair",
        ],
        ["left out"],
    ),
    "one backward on the mean of means": (
        windowed("", "total = 0", backward="total = total + loss", after="(total / len(window)).backward()"),
        ["call `backward()` on each"],
        ["left out", "the gradient is right", "is fair"],
    ),
    "the window put together": (TOGETHER, ["put the window back together", "does not fit"], ["left out", "steps for"]),
    "divided by its own count": (
        windowed(backward="(loss / (len(labels) * accumulation_steps)).backward()"),
        ["you divide each sum by its own micro-batch's count; divide by the count of the whole window"],
        ["let it sum", "counts alike"],
    ),
    "means": (
        windowed("", backward="(loss / accumulation_steps).backward()"),
        ['let it sum, `reduction="sum"`', "2. A mean of means"],
        ["you divide each sum"],
    ),
    "a running count": (
        windowed(before="count = 0", inside="count += len(labels)", backward="(loss / count).backward()"),
        ["one example weighs 1 to 5, and", "divisor grows", "the same for all micro-batches", "see `q.hint(1)`"],
        ["no rule"],
    ),
    "an islice of the loader, for ever": (
        windowed(backward=f"(loss / {COUNT}).backward()").replace("islice(micro_batches", "islice(loader"),
        ["more than 20 times", "only the first 4 of 11", "each `islice(loader, ...)`", "once, before the loop"],
        ["does its loop end", "asked for at"],
    ),
    "a step each": (STEP_EVERY, ["it should share the update with the others of its window"], ["% 4"]),
    "summed and never divided": (
        windowed(),
        ["never divided: one example weighs 15 in a window of 15, 16 in a window of 16 and 10 in a window of 10 exa"],
        ["learning rate"],
    ),
    "sums divided by N": (
        windowed(backward="(loss / accumulation_steps).backward()"),
        ["divided by 4, whatever it holds: one example weighs 3.75 in a window of 15, 4 in a"],
        ["learning rate", "never"],
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_what_is_said_of_answers_that_learners_gave(name, written):
    source, said, unsaid = SAID[name]
    text = " ".join(repr(window_loop.check(written("window_loop", source))).split())
    assert text.startswith("Not yet:")
    assert [part for part in said if part not in text] == [], text
    assert [part for part in unsaid if part in text] == [], text


def test_every_advice_fits_the_exercise(written):
    from accumkit.audit import Finding
    from accumkit.audit.findings import TITLES
    from accumkit.checks.window_words import advise

    fix = 'count it: `(loss / window.count).backward()`, with ak.windows; where it is meant, declare `tail="drop"`'
    for slug in TITLES:
        for train in (written("window_loop", windowed()), written("window_loop", windowed(""))):
            said = advise(train)(Finding(slug, "", None, fix, "gradient"))
            assert not [word for word in ("ak.", "tail=", "window.count", "% 4") if word in said], said
    for wrong in window_loop.PROBLEM.wrong_answers:
        said = repr(window_loop.check(written("window_loop", wrong.source)))
        assert not [word for word in ("ak.", "tail=", "window.count", "% 4") if word in said], said
        assert said.count("Measured:") == said.count("To change") == 1, "the first finding in full, the rest by name"


@pytest.mark.parametrize("name", ["the window put together", "an islice of the loader, for ever"])
def test_a_picture_that_was_not_measured_or_contradicts_the_words_is_not_shown(name, written):
    assert "<figure" not in window_loop.check(written("window_loop", SAID[name][0]))._repr_html_()


def test_a_dropped_tail_is_told_at_the_step(written):
    wrong = next(w for w in window_loop.PROBLEM.wrong_answers if w.fault == "tail-dropped")
    line = f"{PROBLEMS['window_loop'].imports}\n\n{wrong.source}".splitlines().index("            optimizer.step()") + 1
    assert f"learner.py:{line}: make an update" in " ".join(
        repr(window_loop.check(written("window_loop", wrong.source))).split()
    )


def test_verdict_without_a_finding_gives_its_reasons():
    verdict = SimpleNamespace(ok=False, findings=(), reasons=("No step was seen.", "So what?"), trace=None)
    assert repr(of_verdict(verdict, "fine")) == "Not yet: No step was seen. So what?"


@pytest.mark.parametrize(
    ("blank", "expected"),
    [(None, True), (..., True), (lambda: None, True), (lambda: 1, False), (5, False), (print, False)],
)
def test_is_blank(blank, expected):
    assert is_blank(blank) is expected


def test_is_blank_by_its_body():
    def documented(model):
        """Say what it would do."""

    def dots(model): ...

    def returns(model):
        return

    def works(model):
        model.train()

    assert is_blank(documented)
    assert is_blank(dots)
    assert is_blank(returns)
    assert not is_blank(works)


def test_cut_leaves_a_body_that_does_nothing():
    source = f"def f():\n    a = 1\n    {BEGIN}\n    return a\n    {END}\nf()\n"
    assert cut_solution(source) == "def f():\n    a = 1\n    ...  # your answer here\nf()\n"
    assert cut_solution("no marks\n") == "no marks\n"


@pytest.mark.parametrize(
    "source",
    [BEGIN, END, f"{BEGIN}\n{BEGIN}\n{END}", f"{BEGIN}\n{END}\n{END}", f"x = 1  {BEGIN}\n{END}", "# begin solution\n"],
)
def test_cut_refuses_marks_without_a_partner(source):
    with pytest.raises(ak.AccumkitError):
        cut_solution(source)


def test_problem_refuses_an_unknown_difficulty():
    with pytest.raises(ak.AccumkitError, match="difficulty='tricky'"):
        Problem("00a", "t", "write", 1, "tricky", "x", "", (), lambda attempt: Outcome("right", "yes."))
