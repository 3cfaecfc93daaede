"""The exercises of lesson 05: what is measured is so, right loops of any form pass, and others are told well."""

from __future__ import annotations

import inspect
import math
import re

import numpy
import pytest
import torch

from accumkit.checks import amp_loop, amp_runs, overflowed_window, scaler_mystery, stalled_sum
from accumkit.checks.amp_words import REFUSALS
from accumkit.checks.attempts import attempted
from accumkit.checks.autocast_seen import forwards_of, not_under
from accumkit.checks.problem import but
from accumkit.checks.scaler_runs import logged

HEAD = """\
from itertools import islice
import accumkit as ak


def train(model, loader, optimizer, scaler, accumulation_steps, max_norm):
"""
END = """\
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
PLAIN = (
    """\
    for i, (x, y) in enumerate(loader, 1):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss / accumulation_steps).backward()
        if i % accumulation_steps == 0:
"""
    + END
)
WINDOWS = """\
    batches = iter(loader)
    while window := list(islice(batches, accumulation_steps)):
        optimizer.zero_grad(set_to_none=False)
        for x, y in window:
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(model(x), y) / len(window)
                scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], max_norm)
        scaler.step(optimizer)
        scaler.update()
"""
SUMMED = (
    """\
    count = 0
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cpu", dtype=torch.half):
            output = model(x)
        scaler.scale(F.cross_entropy(output, y, reduction="sum")).backward()
        count += len(y)
        if (i + 1) % accumulation_steps == 0:
            for p in model.parameters():
                p.grad /= count
            count = 0
"""
    + END
)
KIT = (
    """\
    objective = ak.classification()
    for window in ak.windows(loader, accumulation_steps, objective):
        for batch in window:
            with torch.autocast("cpu", dtype=torch.float16):
                loss = objective.total(model, batch) / window.count
            scaler.scale(loss).backward()
        if True:
"""
    + END
)
EPOCH = """\
    ak.train_epoch(model, loader, optimizer, ak.classification(), accumulation_steps=accumulation_steps,
                   scaler=scaler, autocast_dtype=torch.float16, max_grad_norm=max_norm)
"""
CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)"
BY_HAND = PLAIN.replace(
    CLIP,
    """\
norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            if norm > max_norm:
                for p in model.parameters():
                    p.grad *= max_norm / norm""",
)
SCALED_LIMIT = PLAIN.replace("            scaler.unscale_(optimizer)\n", "").replace(
    "max_norm)", "max_norm * scaler.get_scale())"
)
IF_FINITE = PLAIN.replace(
    "            scaler.step", "            if norm.isfinite():\n                scaler.step"
).replace("            torch", "            norm = torch")
MEASURED = PLAIN.replace(
    "        if i", "        torch.nn.utils.clip_grad_norm_(model.parameters(), float('inf'))\n        if i"
)
SCALED_FIRST = PLAIN.replace("scaler.scale(loss / accumulation_steps)", "(scaler.scale(loss) / accumulation_steps)")
AROUND = '    with torch.autocast("cpu", dtype=torch.float16):\n' + "".join(
    f"    {line}\n" for line in PLAIN.replace("        with torch", "        if True or (torch").replace(
        "float16):", "float16)):").splitlines()
)  # fmt: skip
VALIDATED = (
    PLAIN
    + """\
    with torch.no_grad():
        for x, y in [(x, y)]:
            F.cross_entropy(model(x), y)
"""
)
RIGHT = {
    "windows": WINDOWS,
    "summed": SUMMED,
    "the kit's windows": KIT,
    "the kit's epoch": EPOCH,
    "clipped by hand": BY_HAND,
    "a scaled limit": SCALED_LIMIT,
    "stepped if finite": IF_FINITE,
    "also measured": MEASURED,
    "scaled first": SCALED_FIRST,
    "one autocast for all": AROUND,
    "validated in float64": VALIDATED,
}


def said(outcome) -> str:
    return " ".join(repr(outcome).split())


def loop(body):
    return attempted(amp_loop.PROBLEM, HEAD + body)


# 05a
@pytest.mark.parametrize("name", RIGHT)
def test_other_right_loops_with_a_scaler(name):
    outcome = loop(RIGHT[name])
    assert outcome.status == "right", outcome


WRONG = {
    "a scaler a window": (
        PLAIN + "            scaler = torch.amp.GradScaler('cpu', init_scale=65536.0)\n",
        ["(missing-scaler-update)", "use the scaler that is given"],
    ),
    "its own scaler": ("    scaler = torch.amp.GradScaler('cpu')\n" + PLAIN, ["(other-scaler)", "none of your own"]),
    "values clipped": (PLAIN.replace("grad_norm_", "grad_value_"), ["(other-update)", "norm of all parameters"]),
    "each parameter clipped": (
        PLAIN.replace(CLIP, "[torch.nn.utils.clip_grad_norm_(p, max_norm) for p in model.parameters()]"),
        ["(other-update)"],
    ),
    "another limit": (
        PLAIN.replace("(), max_norm", "(), 1.0"),
        ["(other-limit)", "Clipped to 1; given was `max_norm`, 0.25"],
    ),
    "raises at an overflow": (
        PLAIN.replace("max_norm)\n", "max_norm, error_if_nonfinite=True)\n"),
        ["(overflow)", "is non-finite", "learner.py:"],
    ),
    "not cleared after a skip": (
        IF_FINITE.replace("            scaler.update()\n            optimizer.zero_grad()\n",
                          "                optimizer.zero_grad()\n            scaler.update()\n"),
        ["(overflow)", "cleared all the same"],
    ),
    "no scaler": (
        PLAIN.replace("scaler.scale(", "(").replace("            scaler.unscale_(optimizer)\n", "")
        .replace("            scaler.update()\n", "").replace("scaler.step(optimizer)", "optimizer.step()"),
        ["(loss-not-scaled)", "No loss was scaled"],
    ),
    "scaled twice": (PLAIN.replace("scale(loss", "scale(scaler.get_scale() * loss"), ["by one factor", "once"]),
    "unscaled by hand": (
        PLAIN.replace("scaler.unscale_(optimizer)", "[p.grad.div_(scaler.get_scale()) for p in model.parameters()]"),
        ["(clip-before-unscale)", "call `scaler.unscale_(optimizer)` first"],
    ),
    "updated twice": (PLAIN.replace(".update()", ".update(); scaler.update()"), ["(update-every-micro-batch)"]),
    "unscaled late": (
        PLAIN.replace("            scaler.unscale_(optimizer)\n", "") + "            scaler.unscale_(optimizer)\n",
        ["(nothing-to-unscale)", "before `zero_grad`"],
    ),
    "a step each": (PLAIN.replace("i % accumulation_steps == 0", "True"), ["(step-every-micro-batch)"]),
    "off by one": (PLAIN.replace("i % acc", "(i - 1) % acc"), ["(off-by-one)", "`enumerate(loader, 1)`"]),
    "the first window too short": (PLAIN.replace("i % acc", "(i + 1) % acc"), ["(first-window-short)", "3, 4 and"]),
    "the first window too long": (
        PLAIN.replace("loader, 1", "loader").replace("if i %", "if i > 0 and i %"), ["(first-window-long)", "5 and 4"],
    ),
    "one step a pass": (PLAIN.replace("            ", "    ").replace("    loss =", "            loss =").replace(
        "        if i % accumulation_steps == 0:\n", ""), ["(one-update-a-pass)", "12 micro-batches"]),
    "no brackets": (PLAIN.replace("loader, 1", "loader").replace("if i %", "if i + 1 %"), ["brackets"]),
    "updated before the step": (
        PLAIN.replace("            scaler.step(optimizer)\n            scaler.update()\n",
                      "            scaler.update()\n            scaler.step(optimizer)\n"),
        ["(update-before-step)", "let `scaler.update()` follow `scaler.step(optimizer)`"],
    ),
    "updated before the step, not unscaled": (
        SCALED_LIMIT.replace("            scaler.step(optimizer)\n            scaler.update()\n",
                             "            scaler.update()\n            scaler.step(optimizer)\n"),
        ["(update-before-step)"],
    ),
    "no autocast": (
        PLAIN.replace('with torch.autocast("cpu", dtype=torch.float16)', "if True"),
        ["(no-autocast)", "To change, at learner.py:", "`with torch.autocast("],
    ),
    "autocast for the loss alone": (
        PLAIN.replace("        with torch", "        output = model(x)\n        with torch").replace(
            "entropy(model(x)", "entropy(output"),
        ["(no-autocast)"],
    ),
    "autocast in the first window": (
        PLAIN.replace("dtype=torch.float16", "dtype=torch.float16, enabled=i <= accumulation_steps"), ["(no-autocast)"],
    ),
    "bfloat16": (PLAIN.replace("float16", "bfloat16"), ["(other-autocast-dtype)", "on in bfloat16, which"]),
    "the CPU's own autocast": (PLAIN.replace(", dtype=torch.float16", ""), ["(other-autocast-dtype)"]),
    "autocast, and a line that fails elsewhere": (
        "    assert accumulation_steps == 4\n" + PLAIN, ["(other-numbers)", "AssertionError", "learner.py:"],
    ),
    "4 written down": (PLAIN.replace("% accumulation_steps", "% 4"), ["(other-numbers)", "`accumulation_steps=3`"]),
    "divided twice": (PLAIN.replace("/ accumulation_steps", "/ accumulation_steps / accumulation_steps"),
                      ["(double-division)", "divide once"]),
    "half": ("    model.half()\n" + PLAIN.replace("model(x)", "model(x.half())"), ["float16"]),
    "returns early": (PLAIN + "            return\n", ["Only 8 micro-batches of 24", "inside its loop"]),
    "raises": (PLAIN.replace("accumulation_steps == 0", "acumulation_steps == 0"), ["NameError", "learner.py:"]),
    "detached": (PLAIN.replace("model(x)", "model(x).detach()"), ["does not require grad"]),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_other_wrong_loops_with_a_scaler(name):
    body, parts = WRONG[name]
    outcome = loop(body)
    assert outcome.status == "not yet"
    assert [part for part in parts if part not in said(outcome)] == [], outcome
    assert " at None" not in repr(outcome)
    assert "Windows of" not in said(outcome) and "declare the one" not in said(outcome)


WHOLE_ORDER = re.compile(r"unscale.*clip.*step.*update", re.IGNORECASE)


@pytest.mark.parametrize("body", [answer.source for answer in amp_loop.WRONG_ANSWERS] + [w for w, _ in WRONG.values()])
def test_no_feedback_states_the_whole_order(body):
    outcome = attempted(amp_loop.PROBLEM, body) if "def train" in body else loop(body)
    assert not WHOLE_ORDER.search(said(outcome)), outcome


def test_autocast_inside_of_the_model_is_seen():
    model = amp_runs.setting().model
    model.forward = torch.autocast("cpu", dtype=torch.float16)(model.forward)
    with forwards_of(model) as seen:
        model(torch.ones(1, 64, dtype=torch.float64))
    assert seen and not_under(torch.float16, seen) is None


def test_05a_a_backward_under_autocast_is_right_and_is_told():
    body = amp_loop.PROBLEM.solution_source
    under = but(body, "        scaler.scale(", "            scaler.scale(")
    outcome = attempted(amp_loop.PROBLEM, under)
    assert outcome.status == "right" and "your `backward()` runs under `torch.autocast` too" in said(outcome)
    outcome = attempted(amp_loop.PROBLEM, body)
    assert outcome.status == "right" and "backward()` runs" not in said(outcome)


def test_nothing_stays_on_the_model_that_was_looked_at():
    model = amp_runs.setting().model
    with pytest.raises(ValueError, match="in the loop"), forwards_of(model) as seen:
        model(torch.ones(1, 64, dtype=torch.float64))
        raise ValueError("in the loop")
    layers = [layer for layer in model.modules() if list(layer.parameters(recurse=False))]
    assert [forward.dtype for forward in seen] == [None] * len(layers)
    assert not any(layer._forward_pre_hooks for layer in model.modules())
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    assert "(no-autocast)" in not_under(torch.float16, seen)[0] and not_under(torch.float16, []) is None


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("train = 5\n", "train(model, loader, optimizer, scaler, accumulation_steps, max_norm) is needed"),
        ("def train(model, loader, optimizer, scaler, n):\n    pass\n    return 1\n", "give it these six arguments"),
        ("def train(*args):\n    yield 1\n", "is a generator"),
    ],
)
def test_what_is_no_loop(source, part):
    assert part in said(attempted(amp_loop.PROBLEM, source))


def test_the_loop_that_others_are_held_against_is_the_solution():
    own = inspect.getsource(amp_runs.train).splitlines()
    shown = amp_loop.PROBLEM.solution_source.splitlines()
    assert own[2:] == shown[2:]


def test_a_loop_that_does_not_end(monkeypatch):
    monkeypatch.setattr(amp_loop, "SECONDS", 1)
    assert "was still running after 1 second" in said(loop("    while True: pass\n"))


def test_a_clip_in_the_inner_loop_is_told_before_what_follows_from_it():
    text = said(
        loop(PLAIN.replace(f"            {CLIP}\n", "").replace("        if i", f"        {CLIP}\n        if i"))
    )
    assert text.index("(clip-every-micro-batch)") < text.index("(clip-before-unscale)")
    assert re.search(r"To change, at learner.py:\d+: clip once a window", text)


def test_each_refusal_is_one_that_torch_has():
    """The words that a refusal is known by are those of this torch."""
    source = inspect.getsource(torch.amp.GradScaler)
    for refusal in REFUSALS:
        words = refusal.words.replace("unscale_ but", "{funcname} but").replace("step but", "{funcname} but")
        assert words in source, refusal.words


def test_the_overflow_of_the_check_is_one():
    setting = amp_runs.setting(amp_runs.SPOILED)
    scaler, optimizer = setting.arguments["scaler"], setting.arguments["optimizer"]
    x, y = list(setting.loader)[amp_runs.SPOILED]
    scaler.scale(torch.nn.functional.cross_entropy(setting.model(x), y)).backward()
    assert not all(p.grad.isfinite().all() for p in setting.model.parameters())
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == amp_runs.SCALE / 2


# 05b
OVERFLOW = {"not_finite": 3, "updates": 2, "examples": 32, "scale": 8192, "schedule": 3, "schedule_with_if": 2}


def test_the_overflowed_pass_is_measured_and_not_near_a_limit(monkeypatch):
    found = overflowed_window.measured()
    assert (found.not_finite, found.updates, found.scale, found.schedule, found.schedule_with_if) == (3, 2, 8192, 3, 2)
    monkeypatch.setattr(overflowed_window, "SCALE", 8192)
    overflowed_window.measured.cache_clear()
    assert overflowed_window.measured().not_finite == 3
    monkeypatch.setattr(overflowed_window, "SCALE", 65536)
    overflowed_window.measured.cache_clear()
    assert overflowed_window.measured().not_finite == 3
    monkeypatch.setattr(overflowed_window, "SPOILED", ())
    overflowed_window.measured.cache_clear()
    assert overflowed_window.measured() == overflowed_window.Pass(0, 3, 65536, 3, 3)
    overflowed_window.measured.cache_clear()


def test_what_is_said_of_the_pass_has_its_numbers():
    says, n = overflowed_window.SAYS, overflowed_window.ACCUMULATION_STEPS
    assert overflowed_window.SPOILED == (6, 8) and "Micro-batches 6 and 8 overflow" in says["not_finite"]
    assert f"after micro-batches {n}, {2 * n} and {3 * n}" in says["not_finite"]
    assert (
        f"{overflowed_window.SCALE:,}" in says["scale"] and "4 examples, a window 4 micro-batches" in says["examples"]
    )


@pytest.mark.parametrize("kind", [float, torch.tensor, numpy.int64])
def test_an_overflow_in_numbers_of_any_kind(kind):
    assert overflowed_window.check({name: kind(value) for name, value in OVERFLOW.items()}).status == "right"


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"scale": "8192"}, ["without quotes"]),
        ({"scale": 8192.5}, ["a whole number is asked for"]),
        ({"scale": 2048}, ["(halved-for-each-backward)"]),
        ({"scale": 32768}, ["(raised)"]),
        ({"updates": 10}, ["(micro-batches-counted)"]),
        ({"updates": -1}, ["In which of them"]),
        ({"updates": [1, 3]}, ["cannot be read"]),
        ({"examples": 36}, ["(good-start-kept)"]),
        ({"not_finite": 4}, ["(the-whole-window)"]),
        ({"schedule_with_if": 3}, ["(if-without-effect)"]),
        ({"schedule_with_if": 1}, ["(if-inverted)"]),
        ({"schedule": 12}, ["(scheduler-every-micro-batch)"]),
        ({"schedule": float("nan")}, ["cannot be read"]),
    ],
)
def test_an_overflow_that_is_not_right(given, parts):
    text = said(overflowed_window.check(OVERFLOW | given))
    assert text.startswith("Not yet: 5 of 6 are right.")
    assert [part for part in parts if part not in text] == [], text
    right = OVERFLOW[next(iter(given))]
    assert not any(
        word.strip(".,:") in (str(right), f"{right:,}") for word in text.split("right.", 1)[1].split()[1:]
    ), text


# 05c
SUMS = {
    "stands_still": 256, "bfloat16": 64, "float16": 512, "float32": 1024,
    "divide_first": False, "scaler": False, "autocast": True, "beside": True,
}  # fmt: skip


def test_the_sums_are_measured():
    found = stalled_sum.measured()
    assert found.stands_still == 256
    assert found.holds == {"bfloat16": 64.0, "float16": 512.0, "float32": 1024.0}
    assert found.mends == {"divide_first": False, "scaler": False, "autocast": True, "beside": True}


@pytest.mark.parametrize("factor", [1 / stalled_sum.STEPS, 65536.0])
def test_a_factor_changes_nothing_as_is_said(factor):
    values = stalled_sum._sums(torch.bfloat16, factor)
    assert values.index(values[-1]) + 1 == 256
    assert values[-1] == 64 * factor


def test_sums_in_values_of_any_kind():
    given = {"bfloat16": torch.tensor(64, dtype=torch.bfloat16), "float16": 512, "beside": torch.tensor(True)}
    assert stalled_sum.check(SUMS | given | {"scaler": numpy.bool_(False), "stands_still": 256.0}).status == "right"


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"stands_still": 257}, "(first-without-effect)"),
        ({"stands_still": 2048}, "(float16-limit)"),
        ({"stands_still": 4096}, "(never)"),
        ({"stands_still": 100}, "At how many times the gradient"),
        ({"float32": 512}, "(too-early)"),
        ({"float32": 1000}, "24 binary digits"),
        ({"bfloat16": 32}, "Take the number of gradients"),
        ({"bfloat16": 64.25}, "(one-too-many)"),
        ({"bfloat16": 63.75}, "(one-too-few)"),
        ({"bfloat16": 64.02}, "Take the number of gradients"),
        ({"float16": 512.25}, "(one-too-many)"),
        ({"float16": 512.1}, "At how many times the gradient"),
        ({"float16": 515}, "At how many times the gradient"),
        ({"float32": 1024.25}, "(one-too-many)"),
        ({"float32": 1023.75}, "(one-too-few)"),
        ({"float32": 1024.0001}, "24 binary digits"),
        ({"bfloat16": float("inf")}, "cannot be read"),
        ({"beside": "yes"}, "without quotes"),
        ({"beside": 1}, "True or False is asked for"),
        ({"scaler": ...}, "still open"),
    ],
)
def test_sums_that_are_not_right(given, part):
    text = said(stalled_sum.check(SUMS | given))
    assert text.startswith("Not yet: 7 of 8 are right.") and part in text and "digits, or let" not in text


# 05d
def test_the_logs_tell_the_runs_apart_and_name_none():
    text = repr(scaler_mystery.runs())
    blocks = [block.split("\n", 1)[1] for block in text.split("\n\n")]
    assert len(blocks) == len(set(blocks)) == len(scaler_mystery.RUNS)
    assert not [slug for slug in scaler_mystery.RUNS.values() if slug in text.replace("right", "")]
    html = scaler_mystery.runs()._repr_html_()
    assert html.count("<table") == 6 and 'scope="col"' in html and "<strong>Run F</strong>" in html


def test_the_logs_hold_what_the_hints_say():
    named = {slug: [row[1:] for row in scaler_mystery._cells(slug)] for slug in scaler_mystery.RUNS.values()}
    assert [len(set(row[0].split())) for row in named["scale-changed-in-window"]] == [2] * 4
    assert [row[4:] for row in named["skipped-update"]] == [("skipped", "moved")] + [("made", "moved")] * 3
    assert {row[4:] for row in named["missing-scaler-update"]} == {("skipped", "-")}
    assert len({row[0] for row in named["missing-scaler-update"]}) == 1
    assert all(float(row[1].replace(",", "")) > 2**15 for row in named["clip-before-unscale"][1:])
    for row in named["clip-every-micro-batch"][1:]:
        assert sorted(map(float, row[3].split())) == list(map(float, row[3].split()))
    assert named["right"][0][4:] == ("skipped", "-")
    assert [(row[0], row[3], row[4]) for row in named["right"][1:]] == [("2^16 2^16 2^16 2^16", "1 1 1 1", "made")] * 3


def test_no_log_is_known_by_what_it_lacks():
    """All runs have a scaler, a clip and a schedule, and begin alike; only a fault makes a difference."""
    for slug in scaler_mystery.RUNS.values():
        rows = scaler_mystery._cells(slug)
        assert all(row[1].startswith("2^") and row[2] != "-" and row[3] != "-" for row in rows), slug
        assert rows[0][1].startswith("2^24 2^24 2^24") and rows[0][5] == "skipped", slug
    right, *others = ([row[6] for row in scaler_mystery._cells(slug)] for slug in
                      sorted(scaler_mystery.RUNS.values(), key=lambda slug: slug != "right"))  # fmt: skip
    assert right == ["-", "moved", "moved", "moved"] and others.count(right) == 3


def test_no_number_of_the_logs_is_near_to_where_it_is_rounded_otherwise():
    for slug in scaler_mystery.RUNS.values():
        for row in logged(slug):
            weights = [weight for weight in row.weights if weight is not None]
            for value, digits in [(row.saw, 2), (row.made, 2), *((weight, 1) for weight in weights)]:
                if math.isfinite(value):
                    rounded = {f"{value * factor:.{digits - 1}e}" for factor in (0.998, 1, 1.002)}
                    assert len(rounded) == 1, (slug, value)


def test_running_the_six_warns_of_nothing_and_leaves_random_numbers_alone():
    logged.cache_clear()
    before = torch.get_rng_state()
    scaler_mystery.runs()._repr_html_()
    assert torch.equal(before, torch.get_rng_state())


def test_a_log_named_in_any_spelling():
    given = {name: slug.upper().replace("-", " ") for name, slug in scaler_mystery.RUNS.items()}
    assert scaler_mystery.check(given).status == "right"


def test_every_wrong_name_is_told_by_what_it_would_log():
    for name, right in scaler_mystery.RUNS.items():
        for guess in scaler_mystery.CHOICES:
            text = said(scaler_mystery.check(dict(scaler_mystery.RUNS) | {name: guess}))
            assert guess == right or (f"`{name}`: '{guess}' (" in text and f"Compare that with run {name}" in text)
            assert guess == right or right == "right" or right not in text.split("Not yet", 1)[1]
    assert "not among the answers" in said(scaler_mystery.check(dict(scaler_mystery.RUNS) | {"A": "nothing"}))
    assert "still open" in said(scaler_mystery.check(dict(scaler_mystery.RUNS) | {"A": ...}))


def test_a_scale_that_is_set_by_hand_is_not_right():
    source = amp_loop.PROBLEM.solution_source.replace("scaler.update()", "scaler.update(new_scale=1024.0)")
    assert "new_scale" in source
    assert "(other-scaler)" in repr(attempted(amp_loop.PROBLEM, source))
