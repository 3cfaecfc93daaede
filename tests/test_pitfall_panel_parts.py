"""The parts that the pitfall panel shows: the marked difference, digits and lines, and the mark under a bar."""

from __future__ import annotations

import io
import re
from html import unescape

import pytest
import torch
from matplotlib.image import imread

from accumkit import figures, pitfalls, tasks
from accumkit.figures import large_type, palette
from accumkit.figures.diff import describe_diff, diff_html, lines_of
from accumkit.figures.digits import digits_html, lines_html, to_png
from accumkit.panels.examples import describe, examples_html, place_of
from accumkit.panels.pitfall_words import code_of, sentence_of
from accumkit.pitfalls import CATALOG
from accumkit.pitfalls.bases import BASES
from accumkit.pitfalls.data import loader_of


def rows(html: str, tag: str) -> list[str]:
    found = re.findall(rf"<{tag} style.*?</{tag}>", html)
    return [unescape(re.sub(r"<[^>]+>", "", row)).strip() for row in found]


@pytest.mark.parametrize("slug", CATALOG)
def test_marked_are_the_lines_that_differ_and_no_others(slug):
    simulation = pitfalls.simulate(slug)
    right, wrong = simulation.right_source.splitlines(), simulation.source.splitlines()
    html = code_of(simulation, wrong=False, mended=False)
    assert rows(html, "del") == [f"− {right[i - 1]}".strip() for i in simulation.removed]  # noqa: RUF001
    assert rows(html, "ins") == [f"{i} + {wrong[i - 1]}".strip() for i in simulation.changed]
    back = code_of(simulation, wrong=False, mended=True)
    assert [row.split("+ ", 1)[-1] for row in rows(back, "ins")] == [right[i - 1] for i in simulation.removed]
    every = [line.text for line in lines_of(simulation.right_source, simulation.source) if line.sign != "-"]
    assert every == wrong


def test_more_than_colour_marks_a_line_and_the_theme_colours_the_text():
    html = diff_html("a = 1\n", "a = 2\n", "x < y")
    assert "dashed" in html.split("<del")[1].split(">")[0]
    assert "solid" in html.split("<ins")[1].split(">")[0]
    assert not re.search(r"[;\"]color:", html), "a colour for text that one of the themes would not carry"
    assert "x &lt; y" in html


def test_in_large_type_a_broken_line_goes_on_under_its_own_text(monkeypatch):
    before, after = "if a:\n    b()\n", "if a:\n    c()\n"
    assert "text-indent:calc" not in diff_html(before, after, "usual"), "its lines are never broken"
    monkeypatch.setattr(large_type, "is_large", lambda: True)
    html = diff_html(before, after, "large")
    assert "padding-left:calc(2.6em + 7ch);text-indent:calc(-1 * (2.6em + 7ch))" in html.split("if a:")[0]
    assert "padding-left:calc(2.6em + 11ch);text-indent:calc(-1 * (2.6em + 11ch))" in html.split("<ins")[1]


def test_what_is_far_is_folded_and_what_a_line_stands_under_is_not():
    body = "".join(f"    step_{i}()\n" for i in range(20))
    before = f"import a\n\n\ndef f():\n{body}    last()\n"
    html = diff_html(before, before.replace("last()", "first()"), "far")
    shown = re.sub(r"<details>.*?</details>", "", html, flags=re.DOTALL)
    assert [text in shown for text in ("import a", "def f():", "step_3()", "step_17()", "first()")] == [
        False, True, False, True, True,
    ]  # fmt: skip
    assert "<summary" in html
    assert "lines alike" in html


def test_a_remark_stands_behind_its_line():
    html = diff_html("a\nb\n", "a\nc\n", "remarked", {1: "look <here>"})
    assert "a<span" in html
    assert "◂ look &lt;here&gt;" in html


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("a\n", "a\n", "Nothing is changed."),
        ("if b:\n    a()\n", "if b:\na()\n", "`a()` is moved one level out."),
        ("a\nb\nc\n", "a\nc\n", "`b` is gone."),
        ("a\n", "a\nb\nc\n", "Lines 2 to 3 are new: `b`, `c`."),
    ],
)
def test_changes_in_words(before, after, said):
    assert describe_diff(before, after) == said


def test_a_digit_s_picture_is_the_digit():
    images, _ = tasks.digits(5, dtype=torch.float64).tensors
    for image in images:
        seen = torch.from_numpy(imread(io.BytesIO(to_png(image[0])), format="png").copy()).double()
        assert seen.shape == (8, 8)
        assert (seen - (1 - image[0])).abs().max() <= 0.5 / 255 + 1e-6
    assert to_png(torch.full((8, 8), torch.nan))


def test_digits_have_words_and_the_broken_and_the_lost_are_told():
    images, labels = (t.clone() for t in tasks.digits(3).tensors)
    images[1, 0, 2, 2] = torch.nan
    html = digits_html(images, labels, "three <digits>", lost=True)
    alts = re.findall(r'alt="([^"]*)"', html)
    assert alts[0] == f"handwritten digit {int(labels[0])}"
    assert alts[1].endswith("broken: some of it is not a number")
    assert html.count("dashed") == 3
    assert "three &lt;digits&gt;" in html
    assert "dashed" not in digits_html(images, labels, "fair")
    many = tasks.digits(80).tensors
    assert "and 16 more" in digits_html(*many, "many")
    assert "and 1 more" in lines_html(["x"] * 65, "many")
    assert "a &lt; b" in lines_html(["a < b"], "one")


@pytest.mark.parametrize("slug", CATALOG)
def test_the_examples_shown_are_those_that_the_loop_had(slug):
    simulation = pitfalls.simulate(slug)
    batches = list(loader_of(simulation.settings, BASES[simulation.base]))
    for trace in (simulation.trace, simulation.right_trace):
        for micro in trace.micro_batches:
            tokens_or_images, labels = batches[place_of(trace, micro)]
            assert len(labels) == micro.examples
            html = examples_html(simulation, trace, micro.index)
            assert describe(trace, micro).replace("'", "&#x27;") in html
            if BASES[simulation.base].task == "images":
                assert re.findall(r"handwritten digit (\d)", html) == [str(int(label)) for label in labels]
                assert ("broken" in html) == (not tokens_or_images.isfinite().all())
            else:
                zen = tasks.zen()
                lines = [zen.decode(row[row != tasks.PADDING]).strip() for row in tokens_or_images]
                assert all(line.replace("'", "&#x27;") in html for line in lines)


def test_a_micro_batch_after_one_that_was_left_out_keeps_its_place():
    trace = pitfalls.simulate("skipped-micro-batch", epochs=2).trace
    assert [place_of(trace, m) for m in trace.micro_batches] == [0, 2, 3, 4, 0, 2, 3, 4]
    ahead = pitfalls.simulate("stale-gradients", epochs=2).trace
    assert [place_of(ahead, m) for m in ahead.micro_batches] == [0, 1, 2, 3, 4] * 2


def test_what_became_of_a_micro_batch_in_words():
    def said(slug, index, **settings):
        trace = pitfalls.simulate(slug, **settings).trace
        return describe(trace, trace.micro_batches[index])

    assert said("tail-leaked", 4) == (
        "Micro-batch 5 (epoch 1), in update 2: 3 examples, leaked in from the epoch before, where they belong; "
        "here one example weighs 1."
    )
    assert said("zero-every-micro-batch", 0) == (
        "Micro-batch 1, in update 1: 4 examples, erased before the step: they weigh 0."
    )
    assert said("missing-scaler-update", 0).endswith("the scaler skipped this step: they weigh 0.")
    assert "(class weights " in said("class-weighting", 0)
    assert said("empty-micro-batch", 0).endswith("what one weighs was not measured.")


def test_the_chosen_bar_has_its_triangle_and_no_other():
    trace = pitfalls.simulate("tail-dropped").trace
    figure = palette.new_figure(9, 3)
    axes = palette.bare_axes(figure, 0, 0, 648, 216)
    for index in range(5):
        draw(axes, trace, chosen=index)
        bars = sorted((p for p in axes.patches if (p.get_gid() or "").startswith("bar ")), key=lambda bar: bar.get_x())
        [mark] = [line for line in axes.lines if line.get_gid() == "chosen"]
        assert mark.get_xdata()[0] == pytest.approx(bars[index].get_x() + bars[index].get_width() / 2)
    draw(axes, trace)
    assert not [line for line in axes.lines if line.get_gid() == "chosen"]
    many = pitfalls.simulate("missing-division", examples=64, micro_batch_size=1, epochs=2).trace
    for index, marks in ((3, 1), (70, 0), (127, 1)):  # windows are summed up, and those in the middle left out
        draw(axes, many, chosen=index)
        assert len([line for line in axes.lines if line.get_gid() == "chosen"]) == marks


def draw(axes, trace, **how):
    from accumkit.figures.weights import draw_weights

    return draw_weights(axes, trace, **how)


def test_the_dots_of_a_wrong_bar_are_a_few_circles():
    trace = pitfalls.simulate("missing-division").trace
    svg = figures.weights_picture().svg(trace)
    [pattern] = re.findall(r"<pattern .*?</pattern>", svg, re.DOTALL)
    assert pattern.count("<circle") == 5
    assert palette.VERMILLION.lower() in pattern
    assert len(svg) < 20_000


@pytest.mark.parametrize("slug", CATALOG)
def test_sentences_have_numbers_and_what_the_audit_named(slug):
    simulation = pitfalls.simulate(slug)
    wrong = sentence_of(simulation, wrong=True, revealed=True)
    assert re.search(r"\d|NaN", wrong)
    assert all(name in wrong for name in simulation.named)
    right = sentence_of(simulation, wrong=False, revealed=False)
    assert not any(name in right for name in simulation.named), "the answer is told before the prediction"
