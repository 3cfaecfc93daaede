"""What TEACHING.md says is so: every setting that it names is run, and its minutes add up."""

from __future__ import annotations

import re
import tomllib
from math import isfinite
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import accumkit as ak
from accumkit import checks, course, doctor, panels, pitfalls
from accumkit.figures.numbers import number
from accumkit.grading import marks
from accumkit.grading.collecting import collect
from accumkit.grading.submissions import NAMELESS
from accumkit.panels.effects import NOTHING, effects
from accumkit.panels.one_update import compare
from accumkit.studies import precision

TEXT = (course.home() / "TEACHING.md").read_text(encoding="utf-8")
WORDS = " ".join(TEXT.split())


def says(*phrases: str) -> None:
    for phrase in phrases:
        assert phrase in WORDS, f"TEACHING.md does not say: {phrase}"


def section(title: str) -> str:
    return TEXT.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def weights(slug: str, **settings) -> list[list[str]]:
    trace = pitfalls.simulate(slug, **settings).trace
    return [[number(m.weight) for m in u.micro_batches if isfinite(m.weight)] for u in trace.updates]


def nothing_changes(slug: str, **settings) -> bool:
    return effects(pitfalls.simulate(slug, **settings)) == (NOTHING,)


@pytest.mark.parametrize(("path", "minutes"), [("Ninety minutes", 90), ("Half a day", 210)])
def test_the_minutes_add_up(path, minutes):
    steps = [int(found) for found in re.findall(r"^\| (\d+) \|", section(path), re.MULTILINE)]
    assert len(steps) >= 6 and sum(steps) == minutes


def test_exercises_are_called_what_they_are_and_take_what_they_take():
    by_id = {problem.id: problem for problem in problems()}
    named = re.findall(r"(?:exercises?|and|For home:) (\d\d[a-e]) \((\d+) minutes\)", WORDS)
    assert len(named) >= 4 and all(by_id[id].minutes == int(minutes) for id, minutes in named)
    assert set(re.findall(r"\b0[0-9][a-e]\b", TEXT)) == set(by_id)
    for problem in by_id.values():
        says(f"| {problem.id} {problem.title} | {problem.kind} | {problem.minutes} | {problem.difficulty} |")


def problems() -> list:
    found = checks.problems()
    return list(found.values()) if isinstance(found, dict) else list(found)


def test_start():
    panel = panels.start_here(strict=True)
    for n, said in ((3, "3 updates, of 12, 12 and 6 examples"), (8, "1 update of 30 examples")):
        panel.controls["accumulation_steps"].value = n
        assert said in panel.answered.sentence
        says(said)


def test_the_same_gradient():
    usual = {"micro_batch_size": 4, "accumulation_steps": 3, "examples": 19}
    for changed, bound in (
        ({"accumulation_steps": 8}, "1e-12"),
        ({"examples": 17}, "1e-12"),
        ({"dtype": "float32"}, "1e-5"),
    ):
        assert max(compare(**usual | changed).differences) < float(bound)
    assert max(compare(**usual, dtype="float32").differences) > 1000e-12
    says("N to 8: below 1e-12", "examples to 17: below 1e-12", "precision to float32: below 1e-5", "0.875 to 1.17")
    shares = {size: (1 / 2) / (size / 7) for size in (4, 3)}  # the last window has micro-batches of 4 and of 3
    assert [number(shares[size]) for size in (4, 3)] == ["0.875", "1.17"]


def test_what_an_example_weighs():
    assert weights("missing-division") == [["4"] * 4, ["1"]]
    assert weights("missing-division", accumulation_steps=2)[0] == ["2"] * 2
    assert nothing_changes("missing-division", accumulation_steps=1)
    assert weights("missing-division", accumulation_steps=5) == [["4.75"] * 4 + ["6.33"]]
    says("4, and in the tail 1. **Set** N to 2: 2. **Set** N to 1: nothing changes.")
    says("N = 5 gives 4.75 in micro-batches of 4 and 6.33 in the one of 3")

    assert weights("tail-divisor")[-1] == ["0.25"] and nothing_changes("tail-divisor", examples=32)
    says("the tail weighs 0.25. **Set** the examples to 32: nothing changes.")
    simulation = pitfalls.simulate("mean-of-means")
    assert [m.examples for m in simulation.trace.updates[0].micro_batches] == [4, 2, 6, 3]
    assert weights("mean-of-means")[0] == ["0.938", "1.88", "0.625", "1.25"]
    assert nothing_changes("mean-of-means", unequal=False)
    says("micro-batches of 4, 2, 6 and 3: 0.938, 1.88, 0.625 and 1.25. **Switch** unequal sizes off: nothing changes.")
    tokens = [m.weight for m in pitfalls.simulate("token-weighting").trace.updates[0].micro_batches]
    says(f"one token weighs {number(min(tokens))} to {number(max(tokens))}")


def test_optimizers_are_those_of_the_lesson():
    lesson = (course.home() / "notebooks" / "02_what_each_example_weighs.ipynb").read_text(encoding="utf-8")
    for line, said in (
        (r"SGD +(290 %)", "SGD, by 290 %"),
        (r"Adam +(0\.0036 %)", "Adam by 0.0036 %"),
        (r"Adam, gradients clipped to 1 +(6\.4 %)", "clipped to 1 by 6.4 %"),
    ):
        assert re.search(line, lesson), "the lesson's stored output, which its own test compares"
        says(said)


def test_where_an_update_ends():
    assert [i + 1 for i in range(10) if i % 4 == 0] == [1, 5, 9]
    dropped = pitfalls.simulate("tail-dropped", accumulation_steps=3).trace
    assert sum(m.examples for m in dropped.lost) == 7
    leaked = pitfalls.simulate("tail-leaked", accumulation_steps=3).trace
    assert [m.fate for m in leaked.updates[1].micro_batches] == ["leaked"] * 2 + ["kept"] * 3
    assert (
        sum(m.examples for m in leaked.lost) == 7 and sum(map(sum, [[m.examples for m in leaked.micro_batches]])) == 38
    )
    alone = pitfalls.simulate("tail-dropped", accumulation_steps=8).trace
    assert not alone.updates and sum(m.examples for m in alone.lost) == 19
    says("1, 5 and 9; the tenth is in no update", "7 of 19 examples are lost", "7 of 38 examples are lost")
    says("update 2 has five micro-batches, two of them from the epoch before", "all 19 are lost, no update is made")
    erased = pitfalls.simulate("zero-every-micro-batch").trace.updates[0].micro_batches
    assert [sum(m.examples for m in erased if m.fate == "erased"), sum(m.examples for m in erased)] == [12, 16]
    says("12 of 16 examples of a window are erased")
    assert nothing_changes("step-every-micro-batch")
    assert nothing_changes("scheduler-every-micro-batch", examples=32)
    events = [e.kind for e in pitfalls.simulate("scheduler-every-micro-batch", examples=32).trace.events]
    assert events.count("scheduler step") == 8 and events.count("step") == 2
    says("there are 8 scheduler steps instead of 2")


def test_a_norm_that_mixes():
    panel = panels.norms(strict=True)
    for size, said, told in (
        (16, "by 26 degrees", "by 26 degrees"),
        (2, "by 89 degrees (cosine 0.02", "by 89 degrees (cosine 0.02)"),
        (1, "BatchNorm is refused by torch", "**Set** 1: torch refuses."),
    ):
        panel.controls["size"].value = size
        assert said in panel.answered.sentence and "with GroupNorm" in panel.answered.sentence
        says(told)


def test_four_calls():
    panel = panels.call_order(strict=True)
    panel.controls["clip"].value = 0
    assert panel.answered.sentence.endswith(": accepted in silence, and wrong.")
    assert "47,035" in panel.pictures.value and "1/65,536 times the right length" in panel.pictures.value
    assert "where the true one is 0.718" in panel.pictures.value
    panel.controls["scale"].value = 1.0
    assert panel.answered.sentence.endswith(": right.")
    says("accepted in silence, and wrong; the update is 1/65,536 of the right one", "scale to 1: right")
    says("47,035 instead of 0.718")
    kinds = [order.kind for order in precision.orders().rows]
    counts = {kind: kinds.count(kind) for kind in set(kinds)}
    assert (counts["refused"], counts["refused later"], counts["right"], len(kinds)) == (12, 4, 1, 24)
    says("Twelve at once, four more in the second window; seven pass in silence, one is right")


def test_sums():
    panel = panels.low_sums(strict=True)
    for n, error in ((64, "0.008"), (1024, "0.2")):
        panel.controls["n"].value = n
        assert f"off by {error}; in float32: below 1e-6" in panel.answered.sentence
    says("the sum of 64 gradients is off by 0.008, that of 1,024 by 0.2, and in float32 by less than 1e-6")


def test_what_it_says_of_machines():
    says(f"{doctor.MEMORY_GIB} GiB of free memory")
    assert panels.projector.__name__ in TEXT and "ACCUMKIT_PROJECTOR=1" in TEXT


def test_which_batches_a_watch_sees():
    says(
        "the batches that a DataLoader or `ak.windows` gives",
        "else the audit cannot tell",
        "hands the function a DataLoader",
    )
    pairs = [(torch.randn(size, 4), torch.randint(0, 3, (size,))) for size in (4, 4, 4, 2)]
    slices = ((pairs[0][0][i : i + 2], pairs[0][1][i : i + 2]) for i in (0, 2))
    given = []

    def loop(model, loader, optimizer, accumulation_steps):
        given.append(loader)
        for i, (x, y) in enumerate(loader, 1):
            (F.cross_entropy(model(x), y) / 2).backward()
            if i % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()

    def watched(batches):
        model = torch.nn.Linear(4, 3)
        with ak.watch(model, ak.classification(), accumulation_steps=2) as trace:
            loop(model, batches(trace), torch.optim.SGD(model.parameters(), 0.1), 2)
        return ak.audit(trace)

    blind = watched(lambda trace: pairs)
    assert blind.status == "cannot tell"
    assert blind.reason.index("trace.batches") < blind.reason.index("RuntimeError"), "what to do comes first"
    assert watched(lambda trace: trace.batches(pairs)).status == "not equivalent"  # the last one has 2 examples
    assert watched(lambda trace: trace.batches(slices)).status == "equivalent"
    assert not ak.check_loop(loop).ok and isinstance(given[-1], torch.utils.data.DataLoader)


def test_what_learners_hand_in_is_collected(tmp_path, monkeypatch):
    (tmp_path / course.OWN).mkdir()
    monkeypatch.chdir(tmp_path)
    (call,) = re.findall(r"`(ak\.progress\(\)\.save\([^`]*)`", WORDS)
    written = eval(call, {"ak": ak})
    assert not written.name.startswith(".") and written.parent == Path()
    handed_in = tmp_path / "handed-in"
    handed_in.mkdir()
    written.rename(handed_in / written.name)
    assert [row[0] for row in collect(handed_in, checks.problems()).learners] == ["Ada"]
    says(f'called "{NAMELESS}"', f"`my-work/{course.OWN}/progress.json`")


def test_marks_are_what_grade_gives():
    for status in marks.STATUSES:
        assert re.search(rf"^\|[^|]*\b{status}\b[^|]*\|", section("Afterwards"), re.MULTILINE), status


def test_what_it_lays_into_the_projects_folder_is_passed_over():
    says(
        "`my-class`, `handed-in`, `grades` and the tables of `collect`",
        "--out progress.csv",
        "`progress-exercises.csv`",
    )
    ignored = (course.home() / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {"my-class/", "handed-in/", "grades/", "progress.csv", "progress-exercises.csv"} <= {*ignored}
    ruff = tomllib.loads((course.home() / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]
    assert {"my-class", "handed-in"} <= {*ruff["extend-exclude"]}


def test_what_it_points_to_is_there():
    for target in re.findall(r"\]\(([^)#:]*)(?:#[^)]*)?\)", TEXT):
        assert not target or (course.home() / target).exists(), target
    anchors = {re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-") for line in TEXT.splitlines()
               if line.startswith("#")}  # fmt: skip
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= anchors
    assert not re.findall(r"@@", TEXT)
    assert max(len(line) for line in TEXT.splitlines() if not line.startswith("|")) <= 120
