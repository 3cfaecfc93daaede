"""Exercises 02a to 02d: other right answers pass, wrong ones are told what they are, and stubs to mend stay stubs."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest
import torch
from write_notebooks import notebooks, read

import accumkit as ak
from accumkit.checks.attempts import attempted
from accumkit.checks.exercises import mended_means, mystery_weights, token_loop, weights_of_examples
from accumkit.checks.mystery import Loop, Pictures, named, told
from accumkit.checks.problem import but
from accumkit.checks.stubs import BEGIN, END, INSTEAD, cut_solution, is_as_given, solved


def said(module, source: str) -> str:
    return " ".join(repr(attempted(module.PROBLEM, source)).split())


# What is to be mended: marks, and when a function is still as it was given.

MARKED = f"""\
def f(x):
    {BEGIN}
    y = x / 2
    {INSTEAD}
    # y = x
    # if y:
    #     y = 1  # one
    {END}
    return y
    {BEGIN}
    {INSTEAD}
    # print(y)
    {END}
"""


def test_marks_of_something_to_mend():
    assert cut_solution(MARKED) == (
        "def f(x):\n    y = x\n    if y:\n        y = 1  # one\n    return y\n    print(y)\n"
    )
    assert solved(MARKED) == "def f(x):\n    y = x / 2\n    return y\n"
    assert solved(f"{BEGIN}\na\n{END}\nb\n") == "a\nb\n"
    assert cut_solution(f"{BEGIN}\na\n{INSTEAD}\n{END}\nb\n") == "b\n", "a line that is missing is not marked as such"


@pytest.mark.parametrize(
    "source",
    [
        f"{INSTEAD}\n",
        f"{BEGIN}\n{INSTEAD}\n",
        f"{BEGIN}\n{INSTEAD}\n{INSTEAD}\n{END}\n",
        f"{BEGIN}\n{INSTEAD}\nno comment\n{END}\n",
        f"{BEGIN}\na  {INSTEAD}\n{END}\n",
    ],
)
def test_marks_in_disorder_are_refused(source):
    with pytest.raises(ak.AccumkitError, match=r"line|without"):
        cut_solution(source)


@pytest.mark.parametrize(
    ("change", "as_given"),
    [
        (lambda source: source, True),
        (lambda source: "import torch\n\n" + source.replace("\n", "\n\n") + "\n# mine\n", True),
        (lambda source: source.replace("    loss =", "    # here?\n        loss ="), True),
        (lambda source: source.replace("labels)", "labels )"), True),
        (lambda source: source.replace("enumerate(loader, 1)", "enumerate(loader, 2)"), False),
        (lambda source: source.replace("            optimizer.zero", "        optimizer.zero"), False),
        (lambda source: source.replace("images", "pictures"), False),
        (lambda source: source + "    return 1\n", False),
        (lambda source: "def other(): ...\n\n\ntrain = other\n" + source.replace("train", "mine"), False),
    ],
)
def test_02a_as_given_until_its_code_is_changed(change, as_given):
    source = change(mended_means.PROBLEM.stub)
    for above in ("", mended_means.PROBLEM.imports):  # Python compiles F.cross_entropy otherwise in the two cases
        names: dict = {}
        exec(compile(f"{above}\n{source}", "learner.py", "exec"), names)
        stub, imports = mended_means.PROBLEM.stub, mended_means.PROBLEM.imports
        assert is_as_given(names["train"], stub, imports) is as_given
    assert not is_as_given(5, mended_means.PROBLEM.stub)
    assert not is_as_given(print, mended_means.PROBLEM.stub)


def test_02a_as_given_is_not_attempted_and_says_what_to_do():
    text = said(mended_means, f"{mended_means.PROBLEM.stub}\n# where is it?\n")
    assert text.startswith("Not attempted: `train` is still as it is given. Change what is wrong")


# 02a: mend the mean of means.

COLLECTED = """\
def train(model, loader, optimizer, accumulation_steps):
    batches = list(loader)
    for start in range(0, len(batches), accumulation_steps):
        window = batches[start : start + accumulation_steps]
        {before}
        for images, labels in window:
            {loss}
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
COUNT = "count = sum(len(labels) for _, labels in window)"
TOTAL = 'loss = F.cross_entropy(model(images), labels, reduction="sum") / count'
WITH_LOOKAHEAD = """\
def train(model, loader, optimizer, accumulation_steps):
    sizes = [len(labels) for _, labels in loader]
    for i, (images, labels) in enumerate(loader, 1):
        first = (i - 1) // accumulation_steps * accumulation_steps
        count = sum(sizes[first : first + accumulation_steps])
        loss = F.cross_entropy(model(images), labels, reduction="sum") / count
        loss.backward()
        if i % accumulation_steps == 0 or i == len(loader):
            optimizer.step()
            optimizer.zero_grad()
"""
KIT = """\
def train(model, loader, optimizer, accumulation_steps):
    import accumkit as ak

    ak.train_epoch(model, loader, optimizer, ak.classification(), accumulation_steps=accumulation_steps)
"""
MENDED = mended_means.MENDED
RIGHT_MENDED = {
    "collected": COLLECTED.format(before=COUNT, loss=TOTAL),
    "means weighted by their size": COLLECTED.format(
        before=COUNT, loss="loss = F.cross_entropy(model(images), labels) * len(labels) / count"
    ),
    "sizes known before": WITH_LOOKAHEAD,
    "one by one": but(MENDED, 'reduction="sum")', 'reduction="none").sum()'),
    "scaled in place": but(MENDED, "p.grad /= count", "p.grad.mul_(1 / count)"),
    "counted as a tensor": but(MENDED, "count += len(labels)", "count += torch.tensor(labels.numel())"),
    "by the optimizer's groups": but(
        MENDED, "for p in model.parameters():\n", "for p in optimizer.param_groups[0]['params']:\n"
    ),
    "example by example": COLLECTED.format(
        before=COUNT,
        loss="*halves, last = images.split(1)\n            for image, label in zip(halves, labels):\n"
        "                (F.cross_entropy(model(image), label[None]) / count).backward()\n"
        "            loss = F.cross_entropy(model(last), labels[-1:]) / count",
    ),
    "the kit's own": KIT,
}


@pytest.mark.parametrize("name", RIGHT_MENDED)
def test_02a_other_right_loops_pass(name):
    text = said(mended_means, f"import torch\n{RIGHT_MENDED[name]}")
    assert text.startswith("Right:"), text


SUM = 'F.cross_entropy(model(images), labels, reduction="sum")'
SAID_OF_MENDED = {
    "divided after the step": (
        but(
            MENDED,
            "            for p in model.parameters():\n                p.grad /= count\n            count = 0\n"
            "            optimizer.step()\n",
            "            optimizer.step()\n            for p in model.parameters():\n                p.grad /= count\n"
            "            count = 0\n",
        ),
        ["(never-divided)", "one example weighs 15 in a window of 15, 16 in", "once, just before the step"],
    ),
    "the last size for all": (
        but(MENDED, "p.grad /= count", "p.grad /= len(labels) * accumulation_steps"),
        ["(last-size-for-all)", "as if all its micro-batches were as large as the last"],
    ),
    "divided at each micro-batch": (
        but(
            but(MENDED, "            for p in model.parameters():\n                p.grad /= count\n", ""),
            "        loss.backward()\n",
            "        loss.backward()\n        for p in model.parameters():\n            p.grad /= count\n",
        ),
        ["(uneven-divisor)", "Either count the whole window before its first backward, or divide every `p.grad` once"],
    ),
    "counted to the end of the pass": (
        but(MENDED, "            count = 0\n", ""),
        ["(count-not-reset)", "0.516 in a window of 16", "set the count back to 0"],
    ),
    "all the data": (
        but(MENDED, "p.grad /= count", "p.grad /= 41"),
        ["(fixed-divisor)", "divided by 41, whatever it holds"],
    ),
    "anything": (
        but(MENDED, "p.grad /= count", "p.grad /= count + i"),
        ["(wrong-divisor)", "divided by something else than its count"],
    ),
    "no tail": (but(MENDED, " or i == len(loader)", ""), ["(tail-leaked)", "with `enumerate(loader, 1)`"]),
    "raises": (but(MENDED, "count += len(labels)", "count += len(label)"), ["NameError", "learner.py:"]),
    "4 written down": (
        but(MENDED, "i % accumulation_steps == 0", "i % 4 == 0"),
        ["With accumulation_steps=3, and 9 micro-batches", "(n-written-down)", "windows of 4, 4 and 1"],
    ),
    "step outside the loop": (
        COLLECTED.format(before=COUNT, loss=TOTAL).replace("        optimizer.", "    optimizer."),
        ["(one-update-a-pass)", "each pass of 11 micro-batches had one update", "inside the loop"],
    ),
    "no brackets": (
        but(MENDED, "i % accumulation_steps == 0", "i + 1 % accumulation_steps == 0"),
        ["(one-update-a-pass)", "put brackets"],
    ),
    "counted from 1, and 1 more": (
        but(MENDED, "i % accumulation_steps == 0", "(i + 1) % accumulation_steps == 0"),
        ["(first-window-short)", "windows of 3, 4 and 4"],
    ),
    "softmax": (
        but(MENDED, "model(images), labels", "model(images).softmax(-1), labels"),
        ["(softmax-before-cross-entropy)"],
    ),
    "another rate": (
        but(MENDED, "    count = 0\n    for", "    optimizer.param_groups[0]['lr'] *= 4\n    count = 0\n    for"),
        ["(changed-settings)", "lr=0.2"],
    ),
}


@pytest.mark.parametrize("name", SAID_OF_MENDED)
def test_02a_what_is_said(name):
    source, parts = SAID_OF_MENDED[name]
    text = said(mended_means, source)
    assert text.startswith("Not yet:")
    assert [part for part in parts if part not in text] == [], text


# 02b: what each example weighs.

RIGHT_WEIGHTS = {"a": [8, 2, 8, 4, 2, 2], "b": [2, 0.5, 2, 1, 0.5, 0.5], "c": [0.25] * 6}


def test_02b_the_notebook_shows_the_loops_that_are_run():
    path = next(path for path in notebooks("solutions") if path.name.startswith("02b_"))
    cells = [cell.source for cell in read(path).cells if cell.id.startswith("loop-")]
    own = [getattr(weights_of_examples, f"loop_{name}") for name in "abc"]
    assert cells == [inspect.getsource(loop).replace("  # noqa: D103", "").rstrip("\n") for loop in own]


def test_02b_right_values_are_measured():
    for name, right in RIGHT_WEIGHTS.items():
        loop = getattr(weights_of_examples, f"loop_{name}")
        assert [m.examples for m in weights_of_examples._ran(loop).micro_batches] == [2, 8, 2, 4, 4, 4]
        assert weights_of_examples._weights(loop) == pytest.approx(right)


@pytest.mark.parametrize(
    "other",
    [
        {"a": (8, 2, 8, 4, 2, 2)},
        {"b": np.array([2, 1 / 2, 2, 1, 1 / 2, 1 / 2])},
        {"c": torch.full((6,), 0.25)},
        {"c": [1 / 4] * 6},
    ],
)
def test_02b_other_ways_to_say_the_same_pass(other):
    assert weights_of_examples.PROBLEM.examine(RIGHT_WEIGHTS | other).status == "right"


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (
            {"b": [1, 1, 1, 1, 1, 1]},
            ["(sizes-ignored) With weights of 1 the loop would be right", "The tail is divided by 4 too"],
        ),
        ({"a": [1, 1, 1, 1, 1, 1]}, ["(share-for-weight) With weights of 1 the loop would be right"]),
        ({"b": [8, 2, 8, 4, 2, 2]}, ["(division-overlooked)"]),
        ({"a": [4] * 6}, ["(sizes-ignored)"]),
        ({"c": [2, 0.5, 2, 1, 0.5, 0.5]}, ["(mean-of-means)", "This loop sums them"]),
        ({"c": 0.25}, ["`c`: cannot be read", "a list of 6 numbers"]),
        ({"c": [0.25]}, ["It has 1 number; 6 are asked for."]),
        ({"a": [8, 2, 8, 4, 2, ...]}, ["a part of it is still open"]),
        ({"a": ...}, ["`a`: still open"]),
        ({"b": [2, 0.5, 2, 1, 0.5, 0.7]}, ["What would be its fair share?"]),
    ],
)
def test_02b_says_how_a_wrong_list_comes_about(given, parts):
    text = " ".join(repr(weights_of_examples.PROBLEM.examine(RIGHT_WEIGHTS | given)).split())
    assert text.startswith("Not yet: 2 of 3")
    assert [part for part in parts if part not in text] == [], text


def test_02b_no_slip_is_right():
    for question in weights_of_examples._questions():
        assert not [slip for slip in question.slips if question.same(slip.value, question.right)]


# 02c: tokens that weigh alike.

SOLVED = token_loop.SOLVED
VALID = "(labels[:, 1:] != -100)"
PAIRS = "model(tokens)[:, :-1], labels[:, 1:]"
TEXT_SUM = 'F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum")'
TEXT_MEAN = "F.cross_entropy(scores.flatten(0, 1), targets.flatten())"
AT_THE_END = """\
def train(model, loader, optimizer, accumulation_steps):
    count = 0
    optimizer.zero_grad()
    for i, (tokens, labels) in enumerate(loader):
        targets = labels[:, 1:].reshape(-1)
        losses = F.cross_entropy(model(tokens)[:, :-1].reshape(len(targets), -1), targets, reduction="none")
        losses.sum().backward()
        count += int(targets.ge(0).sum())
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            for p in model.parameters():
                p.grad.div_(count)
            optimizer.step()
            optimizer.zero_grad()
            count = 0
"""
WITH_THE_KIT = """\
def train(model, loader, optimizer, accumulation_steps):
    import accumkit as ak

    objective = ak.next_token()
    for window in ak.windows(loader, accumulation_steps, objective):
        optimizer.zero_grad()
        for batch in window:
            (objective.total(model, batch) / window.count).backward()
        optimizer.step()
"""
RIGHT_TOKENS = {
    "divided at the end": AT_THE_END,
    "the kit's own": WITH_THE_KIT,
    "all but one a line": but(SOLVED, f"{VALID}.sum()", "(labels != -100).sum() - len(labels)"),
    "the last of a line left out": but(SOLVED, VALID, "(tokens[:, 1:] != 0)"),
    "means weighted by their tokens": but(SOLVED, TEXT_SUM, f"{TEXT_MEAN} * (targets != -100).sum()"),
    "shifted labels": but(SOLVED, PAIRS, "model(tokens[:, :-1]), labels[:, 1:]"),
    "filled at the end": but(
        SOLVED, PAIRS, "model(tokens), F.pad(labels[:, 1:], (0, 1), value=-100)"
    ),
    "line by line": but(
        SOLVED,
        "            scores",
        "          for tokens, labels in zip(tokens.split(1), labels.split(1)):\n            scores",
    ),
    "a mask": but(
        but(SOLVED, TEXT_SUM, '(F.cross_entropy(scores.mT, targets.clamp(min=0), reduction="none") * mask).sum()'),
        "            loss =",
        "            mask = targets != -100\n            loss =",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT_TOKENS)
def test_02c_other_right_loops_pass(name):
    text = said(token_loop, RIGHT_TOKENS[name])
    assert text.startswith("Right:"), text


PIECES = but(RIGHT_TOKENS["line by line"], "(loss / count)", "(loss / (labels[:, 1:] != -100).sum() / len(window))")

SAID_OF_TOKENS = {
    "line by line, each its mean": (PIECES, ["one token weighs"]),
    "places that are predicted": (
        but(SOLVED, f"{VALID}.sum()", "labels[:, 1:].numel()"),
        ["(padding-counted)", "by 660 where there are 511 and by 386 where there are 325 tokens with a target"],
    ),
    "micro-batches": (
        but(SOLVED, f"sum({VALID}.sum() for tokens, labels in window)", "len(window)"),
        ["(micro-batches-counted)", "by 4 where there are 511 and by 2 where there are 325"],
    ),
    "N": (
        but(SOLVED, "(loss / count)", "(loss / accumulation_steps)"),
        ["(fixed-divisor)", "divided by 4, whatever it holds"],
    ),
    "never": (but(SOLVED, "(loss / count)", "loss"), ["(never-divided)", "one token weighs 511 and 325"]),
    "twice": (but(SOLVED, "(loss / count)", "(loss / count / accumulation_steps)"), ["(double-division)"]),
    "the other way": (
        but(SOLVED, PAIRS, "model(tokens)[:, 1:], labels[:, :-1]"),
        ["(shifted-the-other-way)", "against the token before it"],
    ),
    "padding learned": (
        but(SOLVED, PAIRS, "model(tokens)[:, :-1], tokens[:, 1:]"),
        ["(padding-learned)", "take the targets from `labels`"],
    ),
    "its own divisor, padding in it": (
        but(SOLVED, "(loss / count)", "(loss / targets.numel() / len(window))"),
        ["(token-weighting)", "micro-batch 1 is divided by 99 tokens, of which 95 have a target"],
    ),
    "a step each": (but(SOLVED, "        optimizer.step", "            optimizer.step"), ["(step-every-micro-batch)"]),
    "another loss": (
        but(SOLVED, "(loss / count)", "((loss + 100 * sum(p.square().sum() for p in model.parameters())) / count)"),
        ["(another-loss)", "no multiple of the gradient of the loss that is asked for", "no term beside it"],
    ),
    "classes in the wrong place": (
        but(SOLVED, "scores.flatten(0, 1), targets.flatten()", "scores, targets"),
        ["Expected target size", "learner.py:"],
    ),
    "4 written down": (
        but(SOLVED, "islice(micro_batches, accumulation_steps)", "islice(micro_batches, 4)"),
        ["With accumulation_steps=3, and 6 micro-batches", "(n-written-down)", "windows of 4 and 2"],
    ),
    "one divisor, of the first micro-batch": (
        but(SOLVED, token_loop._COUNT, "(window[0][1][:, 1:] != -100).sum() * len(window)"),
        ["(wrong-divisor)", "divided by one number, by 380 where there are 511 and by 132 where there are 325 tokens"],
    ),
    "one divisor, nearly": (
        but(SOLVED, token_loop._COUNT, f"{token_loop._COUNT} - len(window)"),
        ["(wrong-divisor)", "by 507 where there are 511"],
    ),
    "a mean, divided by the count": (
        but(SOLVED, TEXT_SUM, TEXT_MEAN),
        ["(double-division)", "divided by the tokens of the whole window once more"],
    ),
    "a mean of losses one by one": (
        but(but(SOLVED, TEXT_SUM, TEXT_SUM.replace('"sum")', '"none").mean()')), "/ count", "/ len(window)"),
        ["(token-weighting)", "a mean of the losses divides by all places of its own micro-batch, padding among them"],
    ),
    "both cut at the end": (
        but(SOLVED, PAIRS, "model(tokens)[:, :-1], labels[:, :-1]"),
        ["(unshifted-loss)", "against its own token"],
    ),
    "softmax": (but(SOLVED, "model(tokens)[", "model(tokens).softmax(-1)["), ["(softmax-before-cross-entropy)"]),
    "lines left out": (
        but(SOLVED, "            scores,", "            tokens, labels = tokens[:2], labels[:2]\n            scores,"),
        ["(lines-left-out)", "22 of 40 lines had a part in a backward, micro-batch 1 with 2 of 3"],
    ),
    "step outside the loop": (
        but(SOLVED, "        optimizer.step()", "    optimizer.step()"),
        ["(one-update-a-pass)", "each pass of 6 micro-batches had one update"],
    ),
    "eval mode": (
        but(SOLVED, "    micro_batches =", "    model.eval()\n    micro_batches ="),
        ["(eval-mode)"],
    ),
    "an optimizer of its own": (
        but(SOLVED, "    micro_b", "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n    micro_b"),
        ["(another-optimizer)"],
    ),
    "for ever": (
        "def train(model, loader, optimizer, accumulation_steps):\n    while True: next(iter(loader))\n",
        ["more than 20 times"],
    ),
    "too few arguments": ("def train(model, loader):\n    pass; x = 1\n", ["accumulation_steps"]),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID_OF_TOKENS)
def test_02c_what_is_said(name):
    source, parts = SAID_OF_TOKENS[name]
    text = said(token_loop, source)
    assert text.startswith("Not yet:")
    assert [part for part in parts if part not in text] == [], text
    assert not re.search(r"\bak\.|window\.count", text), "the exercise does without the kit"


def test_02c_weights_of_another_loss_are_not_drawn():
    assert attempted(token_loop.PROBLEM, but(SOLVED, PAIRS, "model(tokens), labels")).trace is None
    assert attempted(token_loop.PROBLEM, but(SOLVED, VALID, "(labels != -100)")).trace is not None


def test_02c_what_is_no_function_is_told():
    assert repr(token_loop.PROBLEM.examine(5)).startswith("Not yet:")


# 02d: five loops by their pictures.

RIGHT_NAMES = {loop.name: loop.slug for loop in mystery_weights.LOOPS}


@pytest.mark.parametrize("loop", mystery_weights.LOOPS, ids=lambda loop: loop.name)
def test_02d_no_picture_fits_two_names(loop):
    own = told(loop.trace)
    for choice in set(mystery_weights.CHOICES) - {loop.slug}:
        assert told(loop.as_if(choice)[0]) != own, choice


def test_02d_nothing_shown_names_a_fault():
    shown = mystery_weights.show()
    for text in (repr(shown), shown._repr_html_()):
        words = re.sub(r'src="[^"]*"', "", text)
        assert not [slug for slug in ak.pitfalls.CATALOG if slug in words]
    assert shown._repr_html_().count("<figure") == len(mystery_weights.LOOPS)
    assert [f"Loop {name}" in repr(shown) for name in RIGHT_NAMES] == [True] * 5


def test_02d_no_loop_is_known_by_its_scale_alone():
    units = {loop.slug: loop.trace.unit for loop in mystery_weights.LOOPS}
    assert units["token-weighting"] == units["right"] == "tokens"
    assert mystery_weights.show()._repr_html_().count("What each token weighs") == 2
    assert not re.search("would count|counts examples", repr(mystery_weights.PROBLEM.hint(3)))


def test_02d_a_loop_without_a_fault_on_the_data_of_another_pitfall():
    words = told(Loop("A", "right", {"examples": 9, "accumulation_steps": 2}, data="token-weighting").trace)
    assert words.startswith("Every token weighs 1")


def test_02d_right_names_however_they_are_spelt():
    answer = RIGHT_NAMES | {"A": " Tail divisor ", "B": "Right", "C": "MISSING-DIVISION"}
    assert mystery_weights.PROBLEM.examine(answer).status == "right"


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"C": "double-division"}, ["(too-much-for-too-little)", "weighs 0.25 instead of 1", "with loop C"]),
        ({"A": "tail-dropped"}, ["(little-for-nothing)", "12 of 28 examples (micro-batches 5 to 7) are lost"]),
        ({"A": "mean-of-means"}, ["(not-mean-of-means)", "would show nothing of it on these data"]),
        ({"D": "mean-of-means"}, ["(tokens-for-examples)", "1 in a micro-batch of 4, 2 in", "scale counts tokens"]),
        ({"E": "double-division"}, ["(not-double-division)", "weighs 0.25 instead of 1"]),
        ({"E": "missing-devision"}, ["is not among the answers; the nearest is 'missing-division'"]),
        ({"E": "stale-gradients"}, ["is not among the answers"]),
        ({"E": 3}, ["`E`: cannot be read"]),
        ({"E": ...}, ["`E`: still open"]),
    ],
)  # fmt: skip
def test_02d_says_what_one_would_have_seen(given, parts):
    text = " ".join(repr(mystery_weights.PROBLEM.examine(RIGHT_NAMES | given)).split())
    assert text.startswith("Not yet: 4 of 5")
    assert [part for part in parts if part not in text] == [], text
    [name] = given
    if given[name] in mystery_weights.CHOICES:
        assert f"'{RIGHT_NAMES[name]}'" not in text and f"({RIGHT_NAMES[name]})" not in text


def test_02d_an_answer_that_is_no_dict_or_lacks_a_name():
    assert "the answer is a dict" in repr(mystery_weights.PROBLEM.examine(["tail-divisor"]))
    assert "the answer has no 'B'" in repr(mystery_weights.PROBLEM.examine({"A": "right"}))


def test_mystery_shows_what_a_loop_did_too():
    loops = [Loop("A", "off-by-one", {"examples": 20})]
    assert "the optimizer steps after micro-batches 1 and 5" in " ".join(repr(Pictures(loops, timeline=True)).split())
    assert Pictures(loops, timeline=True)._repr_html_().count("<figure") == 2
    text = " ".join(repr(named({"A": "right"}, loops, ["right", "off-by-one"], "", timeline=True)).split())
    assert "The right loop, run on the same data, gives this: Backward runs" in text
