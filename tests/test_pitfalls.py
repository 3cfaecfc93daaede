"""The catalog and its simulator: the code shown is the code that ran, and the numbers are those it gives."""

from __future__ import annotations

import inspect
import itertools
import random
import re
import traceback

import pytest
import torch

import accumkit as ak
from accumkit.audit.findings import LESSONS, TITLES
from accumkit.pitfalls.bases import BASES, LOOPS
from accumkit.pitfalls.compiled import compiled
from accumkit.pitfalls.composing import compositions
from accumkit.pitfalls.patching import apply
from accumkit.pitfalls.simulation import Simulation

simulate, CATALOG = ak.pitfalls.simulate, ak.pitfalls.CATALOG

SLUGS = """
missing-division double-division tail-divisor nested-accumulation tail-dropped tail-leaked off-by-one
step-every-micro-batch zero-every-micro-batch stale-gradients validation-erases mean-of-means token-weighting
class-weighting repeated-auxiliary-loss skipped-micro-batch empty-micro-batch clip-every-micro-batch
clip-before-unscale scale-changed-in-window missing-scaler-update skipped-update scheduler-every-micro-batch
ema-every-micro-batch horizon-in-micro-batches batchnorm-statistics batchnorm-momentum coupled-examples dropout-masks
low-precision-sum data-reused graph-kept
""".split()


def weights(simulation: Simulation) -> list[list[float]]:
    return [[m.weight for m in u.micro_batches] for u in simulation.trace.updates]


def flat(lists: list[list[float]]) -> list[float]:
    return list(itertools.chain.from_iterable(lists))


def text(simulation: Simulation, lines: tuple[int, ...]) -> list[str]:
    return [simulation.source.splitlines()[i - 1].strip() for i in lines]


def test_the_catalog_is_complete():
    assert list(CATALOG) == SLUGS
    assert {p.family for p in CATALOG.values()} == set(ak.pitfalls.FAMILIES)


@pytest.mark.parametrize("slug", SLUGS)
def test_an_entry_says_everything(slug):
    pitfall = CATALOG[slug]
    assert pitfall.slug == slug
    for said in (pitfall.symptom, pitfall.why, pitfall.fix):
        assert len(said) > 30
        assert said.rstrip(")").endswith(".")
    assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", pitfall.report)
    assert pitfall.affects in ("gradient", "update", "cost", "record")
    assert pitfall.title == TITLES.get(slug, pitfall.title)
    assert pitfall.lesson == LESSONS.get(slug, pitfall.lesson)
    assert set(pitfall.implies) <= set(SLUGS)
    assert slug in repr(pitfall)


@pytest.mark.parametrize(("slug", "base"), [(slug, base) for slug in SLUGS for base in CATALOG[slug].patches])
def test_a_patch_changes_its_own_lines_and_no_others(slug, base):
    patch, right = CATALOG[slug].patches[base], BASES[base].source
    wrong = apply(right, patch)
    assert wrong != right
    compile(wrong, slug, "exec")
    gone = {old.strip() for old, _ in patch}
    kept = [line for line in right.splitlines() if line.strip() not in gone]
    rest = iter(wrong.splitlines())
    assert all(line in rest for line in kept)  # in their order
    assert len(patch) <= 3


def test_every_loop_is_used_and_has_a_file():
    used = {base for pitfall in CATALOG.values() for base in pitfall.patches}
    assert used == set(BASES)
    assert {name.replace("-", "_") for name in BASES} == {p.stem for p in LOOPS.glob("*.py")} - {"__init__"}


@pytest.mark.parametrize(
    ("patch", "problem"),
    [
        ([("optimizer.stop()", "")], r"'optimizer.stop\(\)' stands 0 times .* nearest to it: 'optimizer.step\(\)'"),
        ([("a = 1", "")], "'a = 1' stands 2 times"),
        ([("optimizer.step()", ""), ("optimizer.step()", "b")], "two changes .* 'optimizer.step"),
    ],
)
def test_a_patch_that_does_not_fit_is_refused(patch, problem):
    with pytest.raises(ak.AccumkitError, match=problem):
        apply("a = 1\noptimizer.step()\na = 1\n", patch)


def test_indentation_of_new_lines():
    source = "def f():\n    if a:\n        b()\n"
    assert apply(source, [("b()", "<b()\n    c()\n<<d()")]) == "def f():\n    if a:\n    b()\n            c()\nd()\n"


def test_the_text_shown_is_the_code_that_ran():
    simulation = simulate("step-every-micro-batch")
    module = compiled(simulation.name, simulation.source)
    assert inspect.getsource(module.train) == simulation.source[simulation.source.index("def train") :]
    (finding,) = simulation.verdict.findings
    file, line = finding.location.split(":")
    assert file == "step-every-micro-batch.py"
    assert simulation.source.splitlines()[int(line) - 1].strip() == "optimizer.step()"
    assert text(simulation, simulation.changed) == ["if accumulation_steps or i == len(loader):"]
    assert len(simulation.removed) == 1


def test_a_traceback_shows_the_text():
    module = compiled("broken", "def train():\n    raise ValueError('of the loop')\n")
    other = compiled("broken", "def train():\n    return 1 / 0\n")
    for function, line in ((module.train, "raise ValueError('of the loop')"), (other.train, "return 1 / 0")):
        try:
            function()
        except (ValueError, ZeroDivisionError):
            said = traceback.format_exc()
        assert "/broken.py" in said
        assert line in said


def test_what_is_no_python_is_refused():
    with pytest.raises(ak.AccumkitError, match=r"wrong.py is no valid Python .* line 1: def \("):
        compiled("wrong", "def (\n")


FOUR = [1.0] * 4
NUMBERS = [  # of 19 examples in micro-batches of 4, N = 4: what one example weighs in each update
    ("missing-division", [[4, 4, 4, 4], [1]]),
    ("double-division", [[0.25] * 4, [0.25]]),
    ("tail-divisor", [FOUR, [0.25]]),
    ("nested-accumulation", [[19 / 28] * 5]),
    ("tail-dropped", [FOUR]),
    ("tail-leaked", [FOUR, [1.0] * 5]),
    ("off-by-one", [[1], FOUR]),
    ("step-every-micro-batch", [[1], [1], [1], [1], [1]]),
    ("zero-every-micro-batch", [[0, 0, 0, 1], [1]]),
    ("validation-erases", [[0, 0, 0, 1], [1]]),
    ("mean-of-means", [[15 / 16, 15 / 8, 15 / 24, 15 / 12], [1]]),
    ("skipped-micro-batch", [[0.75] * 3, [1]]),
    ("scale-changed-in-window", [[2, 2, 2, 1], [1]]),
]


@pytest.mark.parametrize(("slug", "expected"), NUMBERS, ids=[slug for slug, _ in NUMBERS])
def test_what_one_example_weighs(slug, expected):
    simulation = simulate(slug)
    assert simulation.shows
    found = weights(simulation)
    assert [len(update) for update in found] == [len(update) for update in expected]
    tolerance = 1e-6 if simulation.settings.dtype == "float64" else 2e-3
    for got, meant in zip(flat(found), flat(expected), strict=True):
        assert got == pytest.approx(meant, abs=tolerance)
    assert all(m.weight == pytest.approx(1, abs=tolerance) for m in simulation.right_trace.micro_batches)


@pytest.mark.parametrize(
    ("slug", "expected"),
    [("missing-division", [[3, 3, 3], [7 / 4, 7 / 3]]), ("tail-divisor", [[1, 1, 1], [7 / 12, 7 / 9]])],
)
def test_a_short_micro_batch_in_the_tail(slug, expected):
    simulation = simulate(slug, accumulation_steps=3)
    assert simulation.base == "plain"  # the loop of means would not be right here
    assert flat(weights(simulation)) == pytest.approx(flat(expected), abs=1e-9)


def test_what_other_faults_do():
    def updates(slug):
        return simulate(slug).trace.updates

    assert [u.auxiliary for u in updates("repeated-auxiliary-loss")] == pytest.approx([4, 1], abs=1e-6)
    clipped = weights(simulate("clip-every-micro-batch"))[0]
    assert clipped == sorted(clipped)
    assert clipped[0] < 0.2 * clipped[-1]
    before = updates("clip-before-unscale")[0]
    assert before.clip_factor == pytest.approx(before.expected_clip_factor / 2**10, rel=1e-2)
    assert updates("stale-gradients")[1].carried > 0.3
    assert [u.skipped for u in updates("missing-scaler-update")] == [True] * 4
    empty = simulate("empty-micro-batch")
    assert not empty.runs[1].end.isfinite().all()
    assert empty.runs[0].end.isfinite().all()
    for slug in ("batchnorm-statistics", "coupled-examples"):
        assert updates(slug)[0].cosine < 0.9995
        assert updates(slug)[0].relative_error > 0.02
    events = {
        slug: (simulate(slug).trace.count_of(kind), simulate(slug).right_trace.count_of(kind))
        for slug, kind in (
            ("scheduler-every-micro-batch", "scheduler step"),
            ("ema-every-micro-batch", "ema update"),
            ("skipped-update", "scheduler step"),
        )
    }
    assert events == {
        "scheduler-every-micro-batch": (5, 2),
        "ema-every-micro-batch": (5, 2),
        "skipped-update": (2, 1),
    }
    schedule = simulate("horizon-in-micro-batches")
    assert [run.learning_rate for run in schedule.runs] == pytest.approx([0, 0.1 * 3 / 5])
    assert simulate("low-precision-sum").trace.precision == "bfloat16"
    reused = simulate("data-reused")
    assert [m.epoch for m in reused.trace.micro_batches] == [0] * 4 + [1] * 4
    kept = simulate("graph-kept")
    assert kept.runs[1].kept > 5 * 4 * 64 * 8  # the hidden units of 19 examples, in float64, at least
    assert kept.runs[0].kept == 0
    masks = simulate("dropout-masks")
    assert masks.distance > 0.1


def test_sgd_feels_a_missing_division_and_adam_hides_it():
    far = {name: simulate("missing-division", optimizer=name, examples=64) for name in ("sgd", "adam")}
    assert far["sgd"].distance > 1
    assert far["adam"].distance < 1e-2
    outcome = far["sgd"].after(3)
    assert outcome.epochs == 3
    assert outcome.distance > 1
    assert outcome.loss != outcome.right_loss
    assert far["sgd"].after(3) is outcome


def fingerprint(simulation: Simulation) -> str:
    return repr((simulation, simulation.diff, [run.end.tolist() for run in simulation.runs]))


@pytest.mark.parametrize("slug", ["missing-division", "token-weighting", "skipped-update", "dropout-masks"])
def test_the_same_seed_gives_the_same_numbers(slug):
    first = fingerprint(simulate(slug, seed=3))
    torch.rand(5)
    assert fingerprint(simulate(slug, seed=3)) == first
    assert fingerprint(simulate(slug, seed=4)) != first


def test_nothing_outside_is_changed():
    torch.set_num_threads(2)
    random.seed(1)
    before = (torch.get_rng_state(), random.getstate(), torch.get_num_threads(), torch.is_grad_enabled())
    simulate("dropout-masks")
    after = (torch.get_rng_state(), random.getstate(), torch.get_num_threads(), torch.is_grad_enabled())
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_torchs_own_warning_is_kept_and_not_given():
    assert "lr_scheduler.step()" in simulate("scheduler-every-micro-batch").warnings[0]
    assert simulate("missing-division").warnings == ()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"accumulation_steps": 0}, "accumulation_steps=0: give a whole number from 1 to 1,024"),
        ({"accumulation_steps": True}, "accumulation_steps=True"),
        ({"micro_batch_size": 2.5}, "micro_batch_size=2.5: give a whole number from 1 to 256"),
        ({"examples": 5000}, "examples=5000: give a whole number from 1 to 1,797"),
        ({"epochs": "2"}, "epochs='2': give a whole number"),
        ({"seed": -1}, "seed=-1"),
        ({"optimizer": "rmsprop"}, "optimizer='rmsprop': give one of 'sgd', 'momentum', 'adam', 'adamw'"),
        ({"model": "resnet"}, "model='resnet': give one of 'mlp', 'cnn'"),
        ({"dtype": torch.float16}, "dtype='float16': give one of 'float64', 'float32'"),
        ({"device": "abacus"}, "device='abacus' cannot be used here"),
        ({"unequal": "yes"}, "unequal='yes': give True or False"),
    ],
)
def test_settings_that_cannot_work(setting, said):
    with pytest.raises(ak.AccumkitError, match=re.escape(said)):
        simulate("missing-division", **setting)


@pytest.mark.parametrize(
    ("what", "settings", "said"),
    [
        ("mising-division", {}, "no pitfall 'mising-division'; did you mean 'missing-division'"),
        ("xyzzy", {}, "no pitfall 'xyzzy'; there are missing-division"),
        ([], {}, "no pitfall was named"),
        (["tail-dropped", "tail-leaked"], {}, "cannot be put into one loop: two changes"),
        (["empty-micro-batch", "token-weighting"], {}, "leaves nothing of token-weighting to see"),
        (["clip-before-unscale", "graph-kept"], {}, "cannot be put into one loop"),
        ("clip-before-unscale", {"dtype": "float64"}, "is about mixed precision, and runs with parameters in float32"),
        ("batchnorm-statistics", {"model": "cnn"}, "has a model of its own; leave model out"),
    ],
)
def test_what_cannot_be_simulated(what, settings, said):
    with pytest.raises(ak.AccumkitError, match=re.escape(said)):
        simulate(what, **settings)


def test_a_loop_that_raises_is_told_with_its_settings(monkeypatch):
    from accumkit.pitfalls import running

    def broken(*args, **kwargs):
        raise RuntimeError("no memory")

    monkeypatch.setitem(running.OPTIMIZERS, "sgd", broken)
    with pytest.raises(RuntimeError, match="no memory"):
        simulate("missing-division")
    module = compiled("late", "def train(*args):\n    raise RuntimeError('no memory')\n")
    monkeypatch.undo()
    with pytest.raises(ak.AccumkitError, match=r"late.py raised RuntimeError: no memory \(N = 4, 19 examples"):
        running.run(module, BASES["plain"], simulate("double-division").settings)


@pytest.mark.parametrize(
    ("slug", "settings", "said"),
    [
        ("missing-division", {"accumulation_steps": 1}, "With N = 1 every window is one micro-batch"),
        ("zero-every-micro-batch", {"examples": 3}, "A pass has only one micro-batch"),
        ("tail-divisor", {"examples": 32}, "8 micro-batches, a multiple of N = 4: there is no short last window"),
        ("tail-leaked", {"epochs": 1}, "one pass only, .* The audit names tail-dropped here"),
        ("tail-leaked", {"examples": 9}, "fewer than N = 4 micro-batches, so there is no step at all"),
        ("mean-of-means", {"unequal": False}, "all micro-batches count the same"),
        ("stale-gradients", {"examples": 12}, "There is one update only"),
        ("validation-erases", {"accumulation_steps": 3}, "After every third micro-batch a window has just ended"),
        ("horizon-in-micro-batches", {"examples": 8}, "one update only, so no schedule is followed"),
        ("nested-accumulation", {"examples": 16}, "A pass is one window, so the tool inside is called once"),
        ("data-reused", {"examples": 12}, "A pass is one window"),
        ("double-division", {"accumulation_steps": 1}, "a division by N changes nothing"),
    ],
)
def test_where_a_fault_cannot_show_it_is_said(slug, settings, said):
    simulation = simulate(slug, **settings)
    assert not simulation.shows
    assert not simulation.ok
    assert re.search(said, simulation.sentence)
    assert simulation.missed == ()


def test_a_simulation_as_text():
    assert repr(simulate("tail-divisor")) == GOLDEN
    assert simulate("tail-divisor")._repr_html_() == f"<pre>{GOLDEN}</pre>".replace("'", "&#x27;")


GOLDEN = """\
tail-divisor: the short last window is divided by the full number
  run     N = 4, 19 examples in micro-batches of 4, 1 epoch, sgd, mlp, float64
  changed - loss = F.cross_entropy(model(images), labels) / k
          + loss = F.cross_entropy(model(images), labels) / accumulation_steps
  seen    One example weighs 0.25 instead of 1 in 1 of 5 micro-batches, and a gradient is 0.25 times
          that of the big batch; the parameters end apart from the right loop's by 78.1 % of the way
          that those have gone.
  audit   not equivalent; names tail-divisor
  right   the right loop: equivalent

update  micro-batches  examples  ratio     cosine    weights
     1              4        16  1         1         1 1 1 1
     2              1         3  0.25      1         0.25"""


def test_every_sentence_has_its_numbers():
    for slug in SLUGS:
        said = simulate(slug).sentence
        assert said.endswith(".")
        assert re.search(r"\d|NaN", said), f"{slug}: {said}"


def test_compatible_pitfalls_make_a_loop_with_both():
    pairs = [pair for pair in itertools.combinations(SLUGS, 2) if ak.pitfalls.compatible(*pair)]
    assert len(pairs) >= 100
    assert all(ak.pitfalls.compatible(b, a) for a, b in pairs)
    for a, b in pairs:
        base, source = next(compositions((CATALOG[a], CATALOG[b])))
        alone = {s for slug in (a, b) for _, s in compositions((CATALOG[slug],))}
        assert source not in {*alone, base.source}
        compile(source, "both", "exec")
    assert not ak.pitfalls.compatible("tail-dropped", "tail-dropped")
    both = simulate(["missing-division", "scheduler-every-micro-batch"])
    assert both.name == "missing-division+scheduler-every-micro-batch"
    assert both.slugs == ("missing-division", "scheduler-every-micro-batch")
    assert both.base == "scheduled"
    assert weights(both)[0] == pytest.approx([4] * 4)
    assert both.trace.count_of("scheduler step") == 5


@pytest.mark.cuda
def test_on_cuda():
    for slug in SLUGS:
        simulation, on_cpu = simulate(slug, device="cuda"), simulate(slug)
        assert simulation.named == on_cpu.named
        assert simulation.right_verdict.status == on_cpu.right_verdict.status
        assert [len(w) for w in weights(simulation)] == [len(w) for w in weights(on_cpu)]
