"""Progress: kept in one file, read back or refused with a reason, and never in the way of a check."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import test_house

import accumkit as ak
from accumkit import checks, course
from accumkit.checks import progress_text, recording
from accumkit.checks.outcome import NOT_YET, RIGHT, Outcome
from accumkit.checks.problem import Problem
from accumkit.checks.progress import FILE, ExerciseRecord, Progress, QuizRecord, read, text_of, why_impossible
from accumkit.checks.quiz import QUESTIONS
from accumkit.checks.records import moment

NOON = 1_750_000_000  # some moment, in seconds since 1970
Q = checks.problems()["window_loop"]


def at(seconds: float) -> str:
    return moment(NOON + seconds)


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    """A learner's folder with the exercises in it, as the course lays it; and nothing in memory."""
    (tmp_path / "my-work" / course.OWN).mkdir(parents=True)
    (tmp_path / "my-work" / "exercises").mkdir()
    monkeypatch.chdir(tmp_path / "my-work" / "exercises")
    recording.forget()
    yield tmp_path / "my-work" / course.OWN
    recording.forget()


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    now = {"time": NOON}
    monkeypatch.setattr(recording.time, "time", lambda: now["time"])
    return now


def train(model, loader, optimizer, accumulation_steps):
    objective = ak.classification()
    for window in ak.windows(loader, accumulation_steps, objective):
        optimizer.zero_grad()
        for batch in window:
            (objective.total(model, batch) / window.count).backward()
        optimizer.step()


def undivided(model, loader, optimizer, accumulation_steps):
    objective = ak.classification()
    for window in ak.windows(loader, accumulation_steps, objective):
        optimizer.zero_grad()
        for batch in window:
            (objective.total(model, batch) / len(batch[1])).backward()
        optimizer.step()


def one(**more) -> ExerciseRecord:
    return replace(
        ExerciseRecord("01a", 2, "right", at(0), at(100), at(100), {"off-by-one": 1}, (1, 2), None, 100), **more
    )


def quizzed(**more) -> QuizRecord:
    answers = {question.slug: question.right.key for question in QUESTIONS}
    return replace(QuizRecord(answers, 8, 8, at(0), at(60), at(60)), **more)


# ---------------------------------------------------------------- what a check leaves


def test_a_way_through_an_exercise(own, clock):
    assert Q.check(None).status == "not attempted"
    clock["time"] += 60
    assert Q.check(undivided).status == "not yet"
    clock["time"] += 60
    Q.hint(1), Q.hint(3), Q.hint(1), Q.hint(99)
    clock["time"] += 3600  # lunch
    assert Q.check(undivided).status == "not yet"
    clock["time"] += 30
    assert Q.check(train).status == "right"
    clock["time"] += 30
    Q.solution()
    clock["time"] += 30
    Q.check(undivided)
    record = read(own / FILE).exercise("01a")
    assert record == ExerciseRecord(
        "01a",
        4,
        "not yet",
        at(0),
        at(3810),
        at(3750),
        {"mean-of-means": 3, "missing-division": 3},
        (1, 3),
        at(3780),
        60 + 60 + 30,
    )
    assert record.minutes == 3


def test_what_was_right_once_stays_right_when_it_is_broken_to_see_what_happens(own):
    assert Q.check(train).status == "right"
    assert Q.check(undivided).status == "not yet"
    shown = repr(ak.progress())
    assert "1 of 19 exercises right" in shown
    (row,) = [line for line in shown.splitlines() if "01a Write the window loop" in line]
    assert "right" in row and "not yet" not in row
    assert "01a" not in shown[shown.index("Next:") :]


def test_a_learner_whose_answer_is_blank_again_has_not_lost_anything(own, clock):
    Q.check(train)
    Q.check(None)
    record = read(own / FILE).exercise("01a")
    assert (record.status, record.attempts, record.first_right) == ("right", 1, at(0))


def test_checks_say_the_same_with_and_without_a_file(own, monkeypatch, tmp_path):
    inside = [repr(Q.check(loop)) for loop in (None, undivided, train)]
    monkeypatch.chdir(tmp_path)
    assert [repr(Q.check(loop)) for loop in (None, undivided, train)] == inside
    assert [repr(Q.examine(loop)) for loop in (None, undivided, train)] == inside


def test_what_graders_and_tables_do_is_no_learners_progress(own):
    from accumkit.checks.attempts import attempted

    Q.examine(train)
    assert attempted(Q, Q.solution_source).status == "right"
    assert not (own / FILE).exists() and recording.kept().progress == Progress()


def test_problems_that_are_not_the_courses_are_not_noted(own):
    private = Problem("01a", "Mine", "write", 1, "easy", "f", "", ("think",), lambda _: Outcome(RIGHT, "yes."))
    private.check(1), private.hint(1), private.solution()
    assert not (own / FILE).exists()


def test_faults_are_those_that_a_check_names(own, monkeypatch):
    items = (("`updates`: 5 (step-every-micro-batch)", "Not (this-one)."), ("Mixed (0.5)", "And (off-by-one) too."))
    monkeypatch.setattr(Problem, "examine", lambda self, attempt: Outcome(NOT_YET, "see (this)", items))
    Q.check(train)
    assert read(own / FILE).exercise("01a").faults == {"off-by-one": 1, "step-every-micro-batch": 1}


def test_every_wrong_answer_of_an_exercise_is_counted_under_its_name(own):
    from accumkit.checks.attempts import attempted
    from accumkit.checks.problem import _faults

    for answer in Q.wrong_answers:
        assert answer.fault in _faults(attempted(Q, answer.source), Q.wrong_answers)


def test_the_nearest_folder_counts_and_the_kits_own_is_the_end(own, monkeypatch, tmp_path):
    deep = own.parent / "exercises" / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    assert recording.learners_folder() == own.parent
    (deep.parent / course.OWN).mkdir()
    assert recording.learners_folder() == deep.parent
    (tmp_path / course.OWN).mkdir()  # as when somebody lays the course in the folder above the kit
    kit = tmp_path / "kit" / "notebooks"
    kit.mkdir(parents=True)
    monkeypatch.setattr(recording, "KIT_HOME", kit.parent)
    monkeypatch.chdir(kit)
    assert recording.learners_folder() is None


def test_the_kits_own_folder_is_where_its_course_is():
    assert course.home() == recording.KIT_HOME


def test_nothing_is_written_where_there_is_no_learners_folder(own, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    Q.check(undivided)
    report = ak.progress()
    assert report.progress.exercise("01a").attempts == 1
    assert "Progress is kept for this session only" in repr(report) and "make lab" in repr(report)
    assert sorted(tmp_path.rglob("*")) == before
    # The way out that it names: with the folder there, all that was noted goes into it.
    os.mkdir(course.OWN)
    assert "Kept in .accumkit/progress.json" in repr(ak.progress())
    assert read(Path(course.OWN, FILE)).exercise("01a").attempts == 1


def test_a_current_folder_that_is_gone_is_no_error(own, monkeypatch, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert Q.check(undivided).status == "not yet"
    assert ak.progress().progress.exercise("01a").attempts == 1
    monkeypatch.chdir(tmp_path)


def test_the_file_stays_small_and_noting_quick(own, capsys):
    note, times = {f"fault-{i}": 1 for i in range(20)}, []
    for i in range(20):
        recording.note(Progress(exercises=(ExerciseRecord(f"{i:02}a", 3, "not yet", at(0), at(9), faults=note),)))
    for _ in range(20):
        start = time.process_time()
        recording.attempt("01a", "not yet", set(note))
        times.append(1000 * (time.process_time() - start))
    with capsys.disabled():  # a figure to look at; machines differ
        print(f"\nnoting a check: {statistics.median(times):.1f} ms of this process's time")
    assert (own / FILE).stat().st_size < 20_000


# ---------------------------------------------------------------- when the file cannot be written or read


def refused(monkeypatch, name, error):
    monkeypatch.setattr(recording.os, name, lambda *a, **k: (_ for _ in ()).throw(error))


def test_a_full_disk_costs_nothing_but_the_file(own, monkeypatch):
    Q.check(undivided)
    before = (own / FILE).read_bytes()
    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
        assert Q.check(train).status == "right"
        report = ak.progress()
        assert "progress.json cannot be written (OSError: [Errno 28] No space left)" in repr(report)
        assert report.progress.exercise("01a").attempts == 2, "what waits in memory is shown too"
        assert (own / FILE).read_bytes() == before
    assert "wrong with your progress file" not in repr(ak.progress()), "written as soon as there is room"
    assert read(own / FILE).exercise("01a").attempts == 2
    assert not [path for path in own.iterdir() if path.name.endswith(".half")]


def test_a_folder_that_may_not_be_written_costs_nothing_but_the_file(own, monkeypatch):
    refused(monkeypatch, "replace", PermissionError(errno.EACCES, "Permission denied"))
    assert Q.check(train).status == "right"
    assert "cannot be written (PermissionError" in repr(ak.progress())


def test_a_folder_in_the_files_place(own):
    (own / FILE).mkdir()
    assert Q.check(train).status == "right"
    assert "cannot be written (IsADirectoryError" in repr(ak.progress()).replace("PermissionError", "IsADirectoryError")
    assert (own / FILE).is_dir()


def test_an_error_nobody_thought_of_costs_nothing_but_the_file(own, monkeypatch):
    monkeypatch.setattr(recording, "text_of", lambda _: 1 / 0)
    assert Q.check(train).status == "right"
    assert "ZeroDivisionError" in repr(ak.progress())


DAMAGE = {
    "empty": b"",
    "zeros": b"\0" * 400,  # what some file systems leave after a power cut
    "half": text_of(Progress(exercises=(one(),))).encode()[:200],
    "not text": bytes(range(200, 256)),
    "not JSON": b'{"what": accumkit}',
    "foreign": b'{"cells": [], "nbformat": 4}',
    "a list": b"[1, 2]",
    "nested": b"[" * 100_000,
    "a long number": b'{"what": ' + b"9" * 10_000 + b"}",
    "a field missing": json.dumps({"what": "accumkit progress", "format": 1}).encode(),
    "too large": b" " * 1_000_001,
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_set_aside_and_nothing_is_lost(own, kind):
    (own / FILE).write_bytes(DAMAGE[kind])
    assert "progress.json cannot be read: it" in repr(ak.progress()) or kind == "a field missing"
    assert (own / FILE).read_bytes() == DAMAGE[kind], "looking changes nothing"
    assert Q.check(train).status == "right"
    assert (own / "progress.damaged-1.json").read_bytes() == DAMAGE[kind]
    assert read(own / FILE).exercise("01a").attempts == 1
    assert "set aside and is still there, in the folder .accumkit: progress.damaged-1.json" in repr(ak.progress())
    (own / FILE).write_bytes(b"damaged again")
    Q.check(train)
    assert (own / "progress.damaged-1.json").read_bytes() == DAMAGE[kind]
    assert (own / "progress.damaged-2.json").read_bytes() == b"damaged again"


def test_a_newer_file_is_left_alone(own):
    newer = json.dumps({"what": "accumkit progress", "format": 2, "exercises": "another shape"}).encode()
    (own / FILE).write_bytes(newer)
    assert Q.check(train).status == "right"
    said = repr(ak.progress())
    assert "progress.json is left as it is: it was written by a newer accumkit (format 2" in said
    assert ak.progress().progress.exercise("01a").attempts == 1
    assert (own / FILE).read_bytes() == newer and not list(own.glob("*damaged*"))


def test_a_file_that_was_edited_by_hand_is_used_on_and_says_so_for_ever(own):
    Q.check(undivided)
    text = (own / FILE).read_text()
    (own / FILE).write_text(text.replace('"name": ""', '"name": "Ada"').replace('"attempts": 1', '"attempts": 7'))
    with pytest.raises(ak.AccumkitError, match="its checksum does not fit"):
        read(own / FILE)
    Q.check(train)
    progress = read(own / FILE)
    assert progress.edited and progress.name == "Ada" and progress.exercise("01a").attempts == 8
    assert "changed by hand at some time" in repr(ak.progress())


# ---------------------------------------------------------------- two notebooks at once


def notebook(folder: str, faults: list[str], start) -> None:
    os.chdir(folder)
    start.wait()
    for fault in faults:
        recording.attempt("01a", "not yet", {fault})
        recording.hint("01a", 1 + len(fault) % 3)
    assert not recording._session.trouble


def test_notebooks_that_write_at_the_same_time_lose_nothing(own):
    context = multiprocessing.get_context("spawn")
    start, kernels = context.Event(), []
    for kernel in range(3):
        faults = [f"fault-{kernel}-{i}" for i in range(25)]
        kernels.append(context.Process(target=notebook, args=(str(own.parent), faults, start)))
    for kernel in kernels:
        kernel.start()
    start.set()
    for kernel in kernels:
        kernel.join(120)
        assert kernel.exitcode == 0
    record = read(own / FILE).exercise("01a")
    assert record.attempts == 75 and len(record.faults) == 75
    assert {path.name for path in own.iterdir()} == {FILE, recording.LOCK}


def test_a_file_that_is_held_makes_a_check_wait_not_fail(own, monkeypatch):
    monkeypatch.setattr(recording, "WAIT", 0.05)
    with recording._locked(own / recording.LOCK):
        recording.attempt("01a", "not yet", set())
        assert "another notebook is writing it" in recording._session.trouble
        assert not (own / FILE).exists()
    recording.attempt("01a", "not yet", set())
    assert read(own / FILE).exercise("01a").attempts == 2


def test_a_notebook_that_was_killed_leaves_no_lock(own):
    code = f"""
import os
from pathlib import Path
from accumkit.checks import recording
with recording._locked(Path({str(own / recording.LOCK)!r})):
    os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    recording.attempt("01a", "not yet", set())
    assert read(own / FILE).exercise("01a").attempts == 1


def test_a_reader_that_holds_the_file_for_a_moment_is_waited_for(own, monkeypatch):
    replace_really, calls = os.replace, []

    def held(half, file):  # as Windows refuses while somebody reads
        calls.append(file)
        if len(calls) < 4:
            raise PermissionError(errno.EACCES, "being used by another process")
        replace_really(half, file)

    monkeypatch.setattr(recording.os, "replace", held)
    recording.attempt("01a", "not yet", set())
    assert len(calls) == 4 and read(own / FILE).exercise("01a").attempts == 1


WINDOWS = """
import fcntl, os, sys, types

held = types.ModuleType("msvcrt")  # with the calls and the errors of the real one, on this system's locks
held.LK_NBLCK, held.LK_UNLCK, held.taken = 2, 0, set()

def locking(descriptor, mode, count):
    place = os.fstat(descriptor).st_ino
    assert count == 1 and os.lseek(descriptor, 0, os.SEEK_CUR) == 0
    if mode == held.LK_NBLCK:
        if place in held.taken:
            raise PermissionError(13, "Permission denied")
        held.taken.add(place)
    else:
        held.taken.remove(place)

held.locking = locking
import accumkit  # torch and the standard library look at the platform too, and are loaded before it changes
sys.modules["msvcrt"], sys.platform = held, "win32"
from accumkit.checks import recording
from pathlib import Path

assert recording.msvcrt is held and not hasattr(recording, "fcntl")
recording.attempt("01a", "not yet", {"off-by-one"})
assert not held.taken and not recording._session.trouble, recording._session.trouble
recording.WAIT = 0.05
with recording._locked(Path(".accumkit", recording.LOCK)):
    recording.attempt("01a", "not yet", set())
    assert "another notebook is writing it" in recording._session.trouble
recording.attempt("01a", "right", set())
assert not held.taken and not recording._session.trouble, recording._session.trouble
"""


def test_the_lock_as_windows_has_it(own):
    done = subprocess.run([sys.executable, "-c", WINDOWS], cwd=own.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert read(own / FILE).exercise("01a").attempts == 3


# ---------------------------------------------------------------- putting two notes together


def test_attempts_add_up_and_what_was_seen_stays_seen():
    first = one(attempts=3, status="not yet", first_right=None, hints=(2,), seconds=100)
    later = one(
        first=at(160), last=at(160), first_right=at(160), hints=(1,), faults={"x": 1}, solution_seen=at(160), seconds=0
    )
    both = first.then(later)
    assert both == one(
        attempts=5, last=at(160), first_right=at(160), hints=(1, 2), faults={"off-by-one": 1, "x": 1},
        solution_seen=at(160), seconds=160,
    )  # fmt: skip


def test_the_order_of_three_notes_can_be_grouped_in_any_way():
    notes = [
        Progress("Ada", (one(id=id, first=at(t), last=at(t + 5), first_right=right, seconds=5),), {}, kit="1")
        for id, t, right in (("01a", 0, None), ("01a", 300, at(303)), ("02a", 400, None))
    ]
    a, b, c = notes
    assert a.then(b).then(c) == a.then(b.then(c))
    assert [record.id for record in c.then(a).exercises] == ["01a", "02a"]


def test_time_at_work_leaves_out_pauses_and_ends_when_it_is_right():
    def touched(when, right=False):
        return ExerciseRecord(
            "01a", 1, "right" if right else "not yet", at(when), at(when), at(when) if right else None
        )

    record = touched(0)
    for when, seconds in ((300, 300), (1500, 1500), (2701, 1500), (2761, 1560)):
        record = record.then(touched(when))
        assert record.seconds == seconds
    record = record.then(touched(2800, right=True))
    assert record.seconds == 1599 and record.then(touched(3000)).seconds == 1599 and record.minutes == 27


def test_a_clock_that_was_set_back_makes_nothing_impossible():
    record = one(first_right=None, status="not yet", seconds=90)
    record = record.then(one(first=at(-50), last=at(70), first_right=None, status="not yet", seconds=110))
    assert record.seconds == 150, "no more than went by, though two kernels were at it"
    record = record.then(one(first=at(20), last=at(20), first_right=at(20), seconds=0))
    assert (record.first, record.last, record.first_right) == (at(-50), at(100), at(20))
    assert list(why_impossible(Progress(exercises=(record,)))) == []


# ---------------------------------------------------------------- reading for others


def written(path: Path, progress: Progress) -> Path:
    path.write_text(text_of(progress), encoding="utf-8")
    return path


FULL = Progress("Ada Lovelace", (one(), one(id="01b", status="not attempted", attempts=0, first_right=None, faults={})),
                {"before": quizzed(), "after": quizzed(answers={"warm-up": "early"}, score=1, finished=None)}, False,
                ak.__version__)  # fmt: skip


def test_what_is_written_is_read_again(tmp_path):
    assert read(written(tmp_path / "ada.json", FULL)) == FULL
    assert read(str(tmp_path / "ada.json")).name == "Ada Lovelace"
    assert (FULL.first, FULL.last, FULL.right) == (at(0), at(100), 1)
    assert FULL.exercise("09z") is None and Progress().first is None
    edited = (tmp_path / "ada.json").read_text().replace("\n", "\r\n")  # some editors and mail programs do that
    (tmp_path / "ada.json").write_bytes(b"\xef\xbb\xbf" + edited.encode())
    assert read(tmp_path / "ada.json") == FULL


@pytest.mark.parametrize(("kind", "said"), [
    ("empty", "it is empty"), ("zeros", "it is empty"), ("half", "it is half-written: it ends in the middle"),
    ("not text", "it is not JSON"), ("not JSON", "it is not JSON"), ("foreign", "it is no progress file of accumkit"),
    ("a list", "it is no progress file of accumkit"), ("nested", "it is not JSON"), ("a long number", "it is not JSON"),
    ("a field missing", "its checksum does not fit"), ("too large", "no progress file has more"),
])  # fmt: skip
def test_damage_is_refused_by_its_name(tmp_path, kind, said):
    path = tmp_path / "ada.json"
    path.write_bytes(DAMAGE[kind])
    with pytest.raises(ak.AccumkitError, match=rf"ada\.json: .*{re.escape(said)}"):
        read(path)


@pytest.mark.parametrize("path", ["nowhere.json", ".", "a\0b"])
def test_files_that_cannot_be_read_are_refused(path):
    with pytest.raises(ak.AccumkitError, match="cannot be read"):
        read(path)


def test_every_cut_of_a_file_is_refused(tmp_path):
    text = text_of(FULL).encode().rstrip()
    for end in range(0, len(text), 7):
        (tmp_path / "cut.json").write_bytes(text[:end])
        with pytest.raises(ak.AccumkitError):
            read(tmp_path / "cut.json")


def test_every_changed_number_or_letter_is_noticed(tmp_path):
    text = text_of(FULL)
    for place in [found.start() for found in re.finditer(r"\w", text)][::5]:
        changed = text[:place] + ("1" if text[place] != "1" else "2") + text[place + 1 :]
        (tmp_path / "changed.json").write_text(changed)
        with pytest.raises(ak.AccumkitError):
            read(tmp_path / "changed.json")


def test_a_newer_format_is_refused_and_says_what_to_do(tmp_path):
    content = json.loads(text_of(FULL)) | {"format": 2}
    (tmp_path / "newer.json").write_text(json.dumps(content | {"checksum": progress_text.checksum(content)}))
    with pytest.raises(ak.AccumkitError, match=r"newer accumkit .*update accumkit here"):
        read(tmp_path / "newer.json")


SHAPES = [
    (("name",), 7), (("name",), "two\nlines"), (("name",), "\ud800"), (("edited",), 1), (("kit",), None),
    (("format",), 0), (("format",), "1"), (("format",), True),
    (("exercises",), []), (("exercises", "01a"), "right"), (("exercises", "01a", "attempts"), -1),
    (("exercises", "01a", "attempts"), True), (("exercises", "01a", "attempts"), 1.5),
    (("exercises", "01a", "attempts"), 10**400), (("exercises", "01a", "status"), "excellent"),
    (("exercises", "01a", "status"), []), (("exercises", "01a", "first"), "yesterday"),
    (("exercises", "01a", "first"), "2026-02-30T00:00:00Z"),
    (("exercises", "01a", "last"), "2026-11-29T20:41:17+02:00"), (("exercises", "01a", "last"), "0000-01-01T00:00:00Z"),
    (("exercises", "01a", "first_right"), 0), (("exercises", "01a", "faults"), {"x": "many"}),
    (("exercises", "01a", "hints"), "12"), (("exercises", "01a", "hints"), [{}]),
    (("exercises", "01a", "seconds"), None), (("quiz",), None), (("quiz", "between"), {}), (("quiz", "before"), 3),
    (("quiz", "before", "answers"), ["four"]),
    (("quiz", "before", "score"), "8"), (("quiz", "before", "finished"), "now"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "value"), SHAPES, ids=str)
def test_values_of_another_shape_are_refused_even_with_a_checksum_that_fits(tmp_path, own, place, value):
    content = json.loads(text_of(FULL))
    inside = content
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    text = json.dumps(content | {"checksum": progress_text.checksum(content)})
    (tmp_path / "odd.json").write_text(text)
    with pytest.raises(ak.AccumkitError, match=r"odd\.json: "):
        read(tmp_path / "odd.json")
    # And a learner's own file of that kind never breaks a check.
    (own / FILE).write_text(text)
    assert Q.check(None).status == "not attempted"
    assert read(own / FILE).exercise("01a").attempts == 0


IMPOSSIBLE = [
    (one(attempts=0, faults={}), "exercise 01a is right without an attempt"),
    (one(attempts=0, faults={}, status="not yet", first_right=None), "is 'not yet' without an attempt"),
    (one(attempts=0, faults={}, status="not attempted"), "is right without an attempt"),
    (one(status="not attempted"), "is 'not attempted' after 2 attempts"),
    (one(first_right=None), "is right, and has never been right"),
    (one(faults={"off-by-one": 3}), "has the fault off-by-one in 3 of 2 attempts"),
    (one(faults={"off-by-one": 0}), "has the fault off-by-one in 0 of 2 attempts"),
    (one(hints=(0, 1)), "has the hints"),
    (one(hints=(2, 2)), "has the hints"),
    (one(last=at(-1), first_right=None, status="not yet", seconds=0), "the last time .* is before the first"),
    (one(first_right=at(101)), "right for the first time at .* not between"),
    (one(solution_seen=at(-1)), "solution seen at .* not between"),
    (one(seconds=101), "took 101 seconds of 100"),
    (one(id="99z"), "exercise 99z is unknown: this accumkit has 01a, .* older than the file"),
    (quizzed(score=9), "the quiz before has 9 right of 8 answers to 8 questions"),
    (quizzed(asked=7), "has 8 right of 8 answers to 7 questions"),
    (quizzed(answers={"warm-up": "early"}, score=1), "was handed in with 1 answers to 8 questions"),
    (quizzed(score=7), "has a score of 7 for answers that are worth 8"),
    (quizzed(answers={"warm-up": "soon"}, score=0, finished=None), "an answer that nobody can give, to warm-up"),
    (quizzed(answers={"what": "ever"}, score=0, finished=None), "an answer that nobody can give, to what"),
    (quizzed(finished=at(61)), "end at .* not between"),
    (quizzed(last=at(-5), finished=None), "the quiz before: the last time .* is before the first"),
]


@pytest.mark.parametrize(("record", "why"), IMPOSSIBLE, ids=lambda value: value if isinstance(value, str) else "")
def test_what_no_learner_can_have_done_is_refused(tmp_path, record, why):
    exercise = isinstance(record, ExerciseRecord)
    progress = Progress("", (record,) if exercise else (), {} if exercise else {"before": record}, kit=ak.__version__)
    with pytest.raises(ak.AccumkitError, match=f"x.json: it holds what cannot be: .*{why}"):
        read(written(tmp_path / "x.json", progress))


def test_another_version_may_ask_other_questions(tmp_path):
    odd = Progress(
        "", (), {"before": quizzed(answers={"another question": "x"}, score=1, asked=5, finished=None)}, kit="0"
    )
    assert read(written(tmp_path / "x.json", odd)) == odd


def test_a_clock_that_is_some_hours_ahead_is_believed(tmp_path):
    soon = moment(time.time() + 20 * 3600)
    read(written(tmp_path / "x.json", Progress(exercises=(one(last=soon),))))


def test_a_clock_that_was_ahead_is_told_and_the_file_still_counts(own, clock, monkeypatch):
    now = time.time()  # the clock set by hand
    clock["time"] = now + 2 * 24 * 3600
    Q.check(train)
    assert "in the future" not in repr(ak.progress()), "so far the clock says nothing else"
    clock["time"] = now + 60
    Q.check(train)
    ahead = moment(now + 2 * 24 * 3600)
    progress = read(own / FILE)
    assert progress.exercise("01a").attempts == 2 and progress.ahead(now) == ahead
    said = f"Something was noted at {ahead}, which is in the future: the clock of this computer was ahead"
    assert said in " ".join(repr(ak.progress()).split()) and said in ak.progress()._repr_html_()
    clock["time"] = now + 3 * 24 * 3600
    assert "in the future" not in repr(ak.progress()) and read(own / FILE).ahead(clock["time"]) is None
    assert Progress().ahead(now) is None


def test_a_file_that_is_a_link_stays_one(own, tmp_path):
    real = tmp_path / "elsewhere" / "real.json"
    real.parent.mkdir()
    (own / FILE).symlink_to(real)
    for attempts in (1, 2):
        Q.check(train)
        assert (own / FILE).is_symlink() and read(real).exercise("01a").attempts == attempts
    assert [path.name for path in real.parent.iterdir()] == ["real.json"]
    assert recording.kept().trouble == ""


def test_counts_stay_where_the_file_can_be_read(own):
    most = progress_text.MOST
    (own / FILE).write_text(text_of(Progress(exercises=(one(attempts=most, faults={"off-by-one": most}),))))
    for _ in range(2):
        recording.attempt("01a", NOT_YET, {"off-by-one"})
        record = read(own / FILE).exercise("01a")
        assert (record.attempts, record.faults) == (most, {"off-by-one": most})
    assert recording.kept().damaged == ()


def test_the_quiz_before_is_not_taken_when_the_one_after_told_what_is_right(own):
    recording.quiz_answers("before", {"warm-up": "late"})
    recording.quiz_answers("after", {question.slug: question.right.key for question in QUESTIONS}, finished=True)
    recording.quiz_answers("before", {question.slug: question.right.key for question in QUESTIONS}, finished=True)
    kept = recording.kept().progress
    assert (kept.quiz["before"].answers, kept.quiz["before"].finished) == ({"warm-up": "late"}, None)
    assert kept.late_for_before
    both = Progress(quiz={"before": quizzed(), "after": quizzed()})
    assert not both.late_for_before and Progress().then(both) == both


def test_what_checks_and_quiz_write_is_always_possible(own, clock):
    answers = {question.slug: question.choices[0].key for question in QUESTIONS}
    steps = [lambda: Q.check(None), lambda: Q.check(train), lambda: Q.hint(2), Q.solution, lambda: Q.check(undivided),
             lambda: recording.quiz_answers("before", {"warm-up": "late"}),
             lambda: recording.quiz_answers("before", answers, finished=True),
             lambda: recording.quiz_answers("after", {"warm-up": "early"})]  # fmt: skip
    for number in range(40):
        clock["time"] += (17 * number) % 3001 - 700  # forwards and backwards
        steps[(5 * number) % len(steps)]()
        read(own / FILE)


# ---------------------------------------------------------------- ak.progress()


def test_the_table_as_text(own, clock):
    Q.check(undivided)
    Q.hint(1), Q.hint(2)
    clock["time"] += 61
    Q.check(train)
    list(checks.problems().values())[1].solution()
    lines = repr(ak.progress(name="  Ada ")).splitlines()
    total = len(checks.problems())
    assert lines[0] == f"Progress of Ada: 1 of {total} exercises right"
    assert lines[1] == f"[{'#' * (20 // total)}{'.' * (20 - 20 // total)}]"
    assert lines[3].split() == ["Lesson", "Exercise", "Status", "Attempts", "Hints", "Minutes"]
    assert re.split(r"\s{2,}", lines[4]) == ["01", "01a Write the window loop", "right", "2", "2", "2"]
    assert re.split(r"\s{2,}", lines[5])[2:] == ["not attempted", "0", "none and solution", "0"]
    assert len(lines[4 : lines.index("", 4)]) == total
    assert "Quiz before the lessons: not taken; after the lessons: not taken." in lines
    assert lines[-2] == "Kept in ../.accumkit/progress.json, on this computer only."
    assert ak.progress().headline.startswith("Progress of Ada"), "the name is kept"


class Reader(HTMLParser):
    """What a screen reader makes of it: tags with their attributes, and the text in them."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.open, self.text = [], [], []
        self.feed(html)
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_table_in_a_notebook_can_be_heard(own):
    Q.check(train)
    (own.parent / "exercises" / "01a_write_the_window_loop.ipynb").write_text("{}")
    (own.parent / "00_start_here.ipynb").write_text("{}")
    html = ak.progress(name="<Ada & Co>")._repr_html_()
    reader = Reader(html)
    tags = [tag for tag, _ in reader.tags]
    assert tags.count("table") == tags.count("caption") == 1
    assert "Progress of <Ada & Co>: 1 of" in "".join(reader.text), "escaped, and not lost"
    scopes = [attributes.get("scope") for tag, attributes in reader.tags if tag == "th"]
    lessons = {problem.id[:2] for problem in checks.problems().values()}
    assert scopes.count("col") == 6 and scopes.count("row") == len(checks.problems())
    assert scopes.count("rowgroup") == len(lessons) and None not in scopes
    assert next(a["href"] for tag, a in reader.tags if tag == "a") == "01a_write_the_window_loop.ipynb"
    assert not re.search(r"color:\s*#|background:\s*#", html), "colours are those of the theme"
    for words in ("right", "not attempted", "Next:", "Quiz before the lessons"):
        assert words in "".join(reader.text)


def test_what_comes_next(own):
    problems = list(checks.problems().values())
    step = ak.progress
    assert "Next: the quiz at the end of lesson 00." in repr(step())
    Q.check(undivided)
    assert "Next: go on with exercise 01a, Write the window loop." in repr(step())
    Q.check(train)
    assert f"Next: exercise {problems[1].id}, {problems[1].title}." in repr(step())
    for problem in problems:
        recording.attempt(problem.id, "right", set())
    assert "Next: the quiz at the end of lesson 05." in repr(step())
    answers = {question.slug: question.right.key for question in QUESTIONS}
    recording.quiz_answers("after", answers, finished=True)
    assert "Next: everything here is done; now watch a loop of your own" in repr(step())
    assert f"{len(problems)} of {len(problems)} exercises right\n[{'#' * 20}]" in repr(step())


def test_links_lead_to_the_notebooks_from_where_one_is(own, monkeypatch):
    (own.parent / "exercises" / "01a_write the loop.ipynb").write_text("{}")
    Q.check(undivided)
    assert "Write the window loop (01a_write the loop.ipynb)." in repr(ak.progress())
    monkeypatch.chdir(own.parent)
    assert '<a href="exercises/01a_write%20the%20loop.ipynb">' in ak.progress()._repr_html_()


@pytest.mark.parametrize("name", ["", "  ", 7, "two\nlines", "x" * 81, "\ud800"])
def test_names_that_are_none_are_refused(own, name):
    with pytest.raises(ak.AccumkitError, match="give 1 to 80 letters"):
        ak.progress(name=name)
    assert not (own / FILE).exists()


def test_a_copy_to_hand_in(own, tmp_path):
    Q.check(train)
    report = ak.progress(name="Ada")
    path = report.save(tmp_path / "ada.json")
    assert read(path) == report.progress
    with pytest.raises(ak.AccumkitError, match="is there already"):
        report.save(path)
    with pytest.raises(ak.AccumkitError, match="cannot be written"):
        report.save(tmp_path / "no" / "such" / "folder.json")
    for no_file in ("", ".", tmp_path, None, 3, b"x"):
        with pytest.raises(ak.AccumkitError, match="give the name of a file"):
            report.save(no_file)


@pytest.mark.parametrize(
    ("name", "file"),
    [(None, "progress YOUR NAME.json"), ("Zoë K.-L.", "progress Zoë K-L.json"), ('../"a\\', "progress a.json")],
)
def test_the_way_to_hand_it_in_is_said_and_works(own, name, file):
    Q.check(train)
    report = ak.progress(name=name)
    *_, said = repr(report).splitlines()
    call = re.fullmatch(r"To hand it in: (.*) writes a copy beside this notebook\.", said)[1]
    assert call == f'ak.progress().save("{file}")'
    eval(call, {"ak": ak})
    assert read(file) == report.progress and not Path(file).name.startswith(".")


def test_the_lessons_that_the_table_names_are_there():
    from accumkit.checks.progress_notes import QUIZ_AFTER

    notebooks = test_house.TREE / "notebooks"
    assert "panels.quiz" in (notebooks / course.START).read_text(encoding="utf-8")
    assert "panels.quiz" in (notebooks / QUIZ_AFTER).read_text(encoding="utf-8")
    assert "ak.progress()" in (notebooks / course.START).read_text(encoding="utf-8")
