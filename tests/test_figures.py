"""What the pictures draw: read back from the artists, not from pixels."""

from __future__ import annotations

import io
import itertools
import re
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_rgb

from accumkit import figures
from accumkit.figures import palette
from accumkit.figures.gallery import gallery
from accumkit.figures.weights import draw_weights
from tests import hand_traces as hand
from tests.hand_traces import trace_of

ALL = {name: value for name, value in vars(hand).items() if name.isupper()}


def bars(figure, kind=""):
    found = [p for p in figure.axes[0].patches if (p.get_gid() or "").startswith(f"bar {kind}")]
    return sorted(found, key=lambda bar: bar.get_x())


def texts(figure, gid):
    found = [t for t in figure.axes[0].texts if t.get_gid() == gid]
    return [t.get_text() for t in sorted(found, key=lambda text: text.get_position()[0])]


@pytest.fixture(autouse=True)
def pyplot_knows_nothing():
    yield
    assert plt.get_fignums() == []


def test_height_is_weight_width_is_count_area_is_share():
    figure = figures.weights(hand.TAIL)
    found = bars(figure)
    assert [bar.get_height() for bar in found] == pytest.approx([1, 1, 1, 7 / 12, 7 / 9], rel=1e-4)
    widths = [bar.get_width() for bar in found]
    assert [width / widths[0] for width in widths] == pytest.approx([1, 1, 1, 1, 3 / 4])
    shares = [m.share for u in hand.TAIL.updates for m in u.micro_batches]
    areas = [bar.get_width() * bar.get_height() / (widths[0] / 4) for bar in found]
    window = [12, 12, 12, 7, 7]
    assert [area / count for area, count in zip(areas, window, strict=True)] == pytest.approx(shares, rel=1e-4)
    assert texts(figure, "number") == ["1", "1", "1", "0.583", "0.778"]
    assert texts(figure, "count") == ["4", "4", "4", "4", "3"]
    assert texts(figure, "title") == ["update 1", "update 2"]


def test_right_bars_are_plain_blue_and_wrong_ones_dotted_vermillion():
    fair, unfair = bars(figures.weights(hand.TAIL), "fair"), bars(figures.weights(hand.TAIL), "unfair")
    assert (len(fair), len(unfair)) == (3, 2)
    assert {(bar.get_facecolor()[:3], bar.get_hatch()) for bar in fair} == {(to_rgb(palette.BLUE), None)}
    assert {(bar.get_facecolor()[:3], bar.get_hatch()) for bar in unfair} == {(to_rgb(palette.VERMILLION), "..")}


def test_fair_is_a_dashed_line_at_1_with_its_word():
    axes = figures.weights(hand.MISSING).axes[0]
    (line,) = [line for line in axes.lines if line.get_gid() == "fair"]
    assert list(line.get_ydata()) == [1, 1] and line.is_dashed()
    assert "fair" in [text.get_text() for text in axes.texts if text.get_gid() == "word"]


@pytest.mark.parametrize(("trace", "kind", "n"), [(hand.DROPPED, "lost", 2), (hand.ERASED, "erased", 3)])
def test_lost_and_erased_are_hatched_outlines_that_pull_nothing(trace, kind, n):
    figure = figures.weights(trace)
    found = bars(figure, kind)
    assert len(found) == n
    assert {bar.get_facecolor()[:3] for bar in found} == {to_rgb(palette.PAPER)}
    assert all(bar.get_hatch() and bar.get_height() == 1 for bar in found)
    assert texts(figure, "word").count(kind) == n and texts(figure, "number").count("0") == n
    assert any("pulls nothing (outline: what it should have been)" in text for text in texts(figure, "legend"))


def test_lost_ones_stand_in_no_update():
    assert texts(figures.weights(hand.DROPPED), "title") == ["update 1", "no update"]


def test_leaked_ones_are_purple_in_the_window_they_leaked_into():
    figure = figures.weights(hand.LEAKED)
    leaked = bars(figure, "leaked")
    assert [bar.get_height() for bar in leaked] == [1.5, 1.5]
    assert {bar.get_facecolor()[:3] for bar in leaked} == {to_rgb(palette.PURPLE)} and leaked[0].get_hatch() == "xx"
    windows = sorted((p for p in figure.axes[0].patches if p.get_gid() == "window"), key=lambda p: p.get_x())
    second = windows[1]
    assert all(second.get_x() < bar.get_x() < second.get_x() + second.get_width() for bar in leaked)
    assert texts(figure, "title")[1] == "epoch 2 · update 2"


def test_unmeasured_ones_are_dashed_outlines_that_say_so():
    figure = figures.weights(hand.UNMEASURED)
    assert len(bars(figure, "unmeasured")) == 5
    assert texts(figure, "word").count("not measured") == 5 and set(texts(figure, "number")) == {"?"}


def test_a_constant_scale_is_not_called_unfair():
    figure = figures.weights(trace_of([[(4, 12), (4, 12)]]), up_to_scale=True)
    assert len(bars(figure, "scaled")) == 2 and not bars(figure, "unfair")
    assert texts(figure, "legend") == ["the same for all, not 1"]


def test_weights_far_below_1_are_slivers_with_their_number():
    figure = figures.weights(hand.TINY)
    assert texts(figure, "number") == ["0.00002"] * 5
    assert all(0 < bar.get_height() < 0.05 for bar in bars(figure))


def test_weights_far_above_1_are_broken_bars_and_fair_stays_visible():
    figure = figures.weights(hand.HUGE)
    assert texts(figure, "number") == ["65,536"] * 3 + ["3", "0.00002"]
    assert sum(p.get_gid() == "break" for p in figure.axes[0].patches) == 3
    assert any("broken bar" in text for text in texts(figure, "legend"))
    low, high = figure.axes[0].get_ylim()
    assert 1 / (high - low) > 0.1, "the fair line stands a tenth of the picture above 0"
    tallest = max(bar.get_height() for bar in bars(figure))
    assert max(float(text) for text in texts(figure, "scale")) < 0.8 * tallest, "no mark beside a break"


def test_an_almost_fair_weight_never_reads_1():
    trace = trace_of([[(4, 1.0004), (4, 1 - 4e-7)]])
    assert texts(figures.weights(trace), "number") == ["1.0004", "1"]


def test_fair_follows_the_precision():
    for precision, kind in (("float64", "unfair"), ("float32", "fair"), ("bfloat16", "fair")):
        assert len(bars(figures.weights(trace_of([[(4, 1.0005)]], precision=precision)), kind)) == 1


def test_beyond_24_micro_batches_numbers_go_by_window():
    figure = figures.weights(hand.NARROW)
    assert len(bars(figure)) == 37
    assert texts(figure, "number") == ["1 to 1.25", "1", "1"]
    assert texts(figure, "count") == ["16 × 8", "16 × 8", "5 × 8"]  # noqa: RUF001


def test_beyond_60_micro_batches_a_window_is_one_bar():
    figure = figures.weights(hand.SUMMED)
    found = bars(figure)
    weights = [m.weight for m in hand.SUMMED.updates[0].micro_batches]
    assert [bar.get_height() for bar in found] == pytest.approx([sum(weights) / 32, 1, 1], rel=1e-4)
    assert [bar.get_gid() for bar in found] == ["bar unfair", "bar fair", "bar fair"]
    assert texts(figure, "number") == ["0.9 to 1.09", "1", "1"]
    assert texts(figure, "count") == ["256", "256", "128"]
    assert "one bar is one window, its line the range in it" in texts(figure, "legend")


def test_of_300_updates_the_first_and_last_are_shown_with_the_number_left_out():
    figure = figures.weights(hand.MANY)
    assert texts(figure, "title") == [str(i) for i in [*range(1, 15), *range(295, 301)]]
    assert "280 windows" in texts(figure, "gap") and "all fair" in texts(figure, "gap")
    assert texts(figure, "number")[-1] == "0.5"


def test_a_fault_among_the_windows_left_out_is_told():
    windows = [[(4, 1)] * 4 for _ in range(300)]
    windows[99] = [(4, 4)] * 4
    assert "1 not fair" in texts(figures.weights(trace_of(windows, steps=4)), "gap")


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("draw", [figures.weights, figures.timeline])
def test_labels_stay_inside_and_do_not_overlap(name, draw):
    figure = draw(ALL[name])
    renderer = figure.canvas.get_renderer()
    page = figure.bbox
    boxes = [
        (text.get_text(), text.get_window_extent(renderer))
        for text in [*figure.axes[0].texts, *figure.texts]
        if text.get_text()
    ]
    for text, box in boxes:
        assert page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1, f"{text!r} clipped"
    for (first, a), (second, b) in combinations(boxes, 2):
        across, up = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        assert across <= 0.5 or up <= 2, f"{first!r} and {second!r} overlap"


@pytest.mark.parametrize("name", ["RIGHT", "LEAKED", "MANY"])
def test_a_kept_picture_draws_the_same_as_a_fresh_one(name):
    for make in (figures.weights_picture, figures.timeline_picture):
        kept = make()
        kept.html(hand.HUGE)
        assert kept.html(ALL[name]) == make().html(ALL[name])


def test_svg_holds_text_as_text_and_no_date():
    svg = figures.weights_picture().svg(hand.DROPPED)
    assert "fair</text>" in svg and "lost</text>" in svg and "<dc:date>" not in svg
    assert "matplotlib" not in svg.lower() or "Matplotlib v" not in svg


def test_the_sentence_is_the_alternative_text():
    said = figures.describe_weights(hand.TAIL)
    html = figures.weights_picture().html(hand.TAIL)
    assert f'alt="{said}"' in html and f">{said}</figcaption>" in html
    assert 'alt="&quot;a&quot; &lt;b&gt;"' in figures.card("<svg/>", '"a" <b>')


def test_timeline_rows_windows_and_marks():
    figure = figures.timeline(hand.DROPPED)
    assert texts(figure, "title") == ["update 1", "no update"]
    assert [t.get_text() for t in figure.axes[0].texts if t.get_gid() == "row"] == [
        "fetched", "forward", "backward", "step", "zero_grad",
    ]  # fmt: skip
    marks = {line.get_gid(): len(line.get_xdata()) for line in figure.axes[0].lines if line.get_gid() == "step"}
    assert marks == {"step": 1}
    kept, lost = (line for line in figure.axes[0].lines if line.get_gid() == "backward")
    assert (len(kept.get_xdata()), len(lost.get_xdata())) == (3, 2) and kept.get_marker() != lost.get_marker()
    assert texts(figure, "number") == ["1", "2", "3", "4", "5"]


def test_where_it_is_tight_only_the_last_of_a_window_has_its_number():
    def drawn(sizes):
        figure = figures.timeline(trace_of([[(1, 1)] * size for size in sizes], steps=max(sizes)))
        return texts(figure, "number"), texts(figure, "legend")[-1]

    numbers, said = drawn([5] * 9 + [3])
    assert numbers[:3] == ["5", "10", "15"] and numbers[-1] == "48"
    assert said == "time runs to the right; the number is that of a window's last micro-batch"
    assert drawn([3, 2]) == (["1", "2", "3", "4", "5"], "time runs to the right; the numbers count micro-batches")
    assert drawn([1] * 48) == ([], "time runs to the right")


@pytest.mark.parametrize("sizes", [[5] * 9 + [3], [3] * 8, [8] * 6, [26], [40], [2] * 15, [12, 12], [1] * 48])
def test_numbers_of_a_timeline_stand_clear_of_each_other_and_of_steps(sizes):
    figure = figures.timeline(trace_of([[(1, 1)] * size for size in sizes], steps=max(sizes)))
    axes, renderer = figure.axes[0], figure.canvas.get_renderer()
    boxes = [text.get_window_extent(renderer) for text in axes.texts if text.get_gid() == "number"]
    (steps,) = (line for line in axes.lines if line.get_gid() == "step")
    half = (steps.get_markersize() + steps.get_markeredgewidth()) / 2 * figure.dpi / 72
    for (x, y), box in itertools.product(axes.transData.transform(steps.get_xydata()), boxes):
        assert box.x1 <= x - half or box.x0 >= x + half or box.y0 >= y + half, "a number runs into a step"
    for a, b in itertools.pairwise(sorted(boxes, key=lambda box: box.x0)):
        assert b.x0 - a.x1 >= 1, "two numbers run into each other"


def test_a_long_timeline_says_what_it_leaves_out():
    figure = figures.timeline(hand.MANY)
    shown = len(texts(figure, "title"))
    assert f"{300 - shown} windows" in texts(figure, "gap") and texts(figure, "title")[-1] == "300"
    long = trace_of([[(4, 1)] * 256], steps=256)
    assert any("micro-batches" in text for text in texts(figures.timeline(long), "gap"))


def test_events_of_every_kind_get_a_row():
    from accumkit.trace.record import EVENT_KINDS, Event, Trace

    trace = Trace(1, events=[Event(kind, 0, None) for kind in EVENT_KINDS])
    rows = [t.get_text() for t in figures.timeline(trace).axes[0].texts if t.get_gid() == "row"]
    assert len(rows) == len(EVENT_KINDS) - 1, "a skipped step stands in the step's row"


def test_every_kind_differs_by_more_than_colour_and_contrasts_with_paper():
    looks = palette.LOOKS.values()
    assert len({(look.hatch, look.outline, look.dashed) for look in looks}) == len(palette.LOOKS)
    for look in looks:
        assert contrast(look.edge if look.outline else look.face) >= 3


def contrast(colour):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 1.05 / (0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)


def test_drawn_into_axes_of_another_size():
    figure = palette.new_figure(5, 4)
    for row in range(2):
        draw_weights(palette.bare_axes(figure, 0, row * 140, 360, 130), hand.TAIL, legend=False)
    assert [len([p for p in a.patches if (p.get_gid() or "").startswith("bar")]) for a in figure.axes] == [5, 5]


def test_gallery_has_a_picture_and_a_sentence_each():
    figure = gallery({"right": hand.RIGHT, "wrong": hand.MISSING, "lost": hand.DROPPED})
    written = " ".join(text.get_text() for text in figure.texts)
    assert len(figure.axes) == 3 and "weighs 3 instead of 1" in written and "are lost" in written
    palette.to_png(figure, io.BytesIO())


def verdict(**changes):
    finding = SimpleNamespace(
        pitfall="missing-division", title="the division is missing", evidence="weighs <3>", location=None,
        fix="divide by 3 & step", lesson="02_what_each_example_weighs", affects="gradient",
    )  # fmt: skip
    given = {"status": "not equivalent", "ok": False, "findings": (finding,), "reasons": (), "trace": hand.MISSING}
    return SimpleNamespace(**(given | changes))


def test_verdict_html_has_status_table_picture_and_sentence():
    html = figures.verdict_html(verdict())
    assert "Not equivalent:" in html and "one finding" in html and "missing-division" in html
    assert "weighs &lt;3&gt;" in html and "divide by 3 &amp; step" in html and "<img alt=" in html
    assert figures.describe_weights(hand.MISSING) in html
    assert re.findall(r"<th [^>]*>([^<]+)", html) == ["What", "Where", "Seen", "What to change"]


def test_verdict_html_without_a_trace_or_findings():
    html = figures.verdict_html(verdict(status="cannot tell", findings=(), reasons=("no <objective>",), trace=None))
    assert "Cannot tell:" in html and "no &lt;objective&gt;" in html and "<img" not in html and "<table" not in html
    assert "<img" not in figures.verdict_html(verdict(trace=hand.NOTHING))


def test_code_in_findings_is_set_as_code():
    finding = SimpleNamespace(**(vars(verdict().findings[0]) | {"fix": "write `a < b`"}))
    assert "write <code>a &lt; b</code>" in figures.verdict_html(verdict(findings=(finding,)))


@pytest.mark.parametrize("trace", [hand.DROPPED, hand.LEAKED, hand.ERASED], ids=["dropped", "leaked", "erased"])
def test_without_names_nothing_is_called_by_its_name(trace):
    named = figures.weights_picture(), figures.timeline_picture()
    shown = figures.weights_picture(names=False), figures.timeline_picture(names=False)
    words = ("lost", "leaked", "erased")
    for picture in shown:
        assert not [word for word in words if word in picture.html(trace) + picture.svg(trace)]
    assert any(word in picture.svg(trace) for picture in named for word in words)
    assert shown[1].sentence(trace) == named[1].sentence(trace), "what happened is told all the same"
    assert [micro.fate for micro in trace.micro_batches] != ["kept"] * len(trace.micro_batches), "and is still known"


def test_without_names_what_was_erased_weighs_0_and_what_was_left_over_is_not_drawn():
    assert figures.weights_picture(names=False).sentence(hand.ERASED) == (
        "In update 1 one example weighs 1 in micro-batch 3, and 0 in micro-batches 1 and 2; in update 2 one example "
        "weighs 1 in micro-batch 5, and 0 in micro-batch 4."
    )
    trace = trace_of([[(4, 1)], [(4, 1)]], steps=1)
    trace.updates[1] = trace.updates[1]._replace(carried=0.6)
    assert figures.weights_picture(names=False).sentence(trace).startswith("Every example weighs 1")
    assert "left over" not in figures.weights_picture(names=False).svg(trace)


def test_a_loop_that_never_clears_is_told_so():
    def cleared(times: int) -> str:
        trace = trace_of([[(4, 1)], [(4, 1)]], steps=1)
        others = [event for event in trace.events if event.kind != "zero_grad"]
        zeros = [event for event in trace.events if event.kind == "zero_grad"][:times]
        return figures.describe_timeline(replace(trace, events=others + zeros))

    assert "; zero_grad never runs" in cleared(0)
    assert "; zero_grad runs once" in cleared(1)


def test_a_gradient_left_over_is_told_in_picture_and_words():

    trace = trace_of([[(4, 1)], [(4, 1)]], steps=1)
    trace.updates[1] = trace.updates[1]._replace(carried=0.6)
    assert texts(figures.weights(trace), "carried") == ["+ left over"]
    assert "a gradient left over from earlier updates is added" in figures.describe_weights(trace)
