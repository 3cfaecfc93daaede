"""Progress files are summed up; one that cannot be relied on is named with the reason, and costs the others nothing."""

from __future__ import annotations

import csv
import json
import time

import pytest
from learners import PROBLEMS

from accumkit.__main__ import main
from accumkit.checks.progress import ExerciseRecord, Progress, QuizRecord, text_of
from accumkit.checks.quiz import QUESTIONS
from accumkit.checks.records import moment
from accumkit.errors import AccumkitError
from accumkit.grading.collecting import EXERCISES, LEARNERS, collect

BEGAN, ENDED = "2026-01-31T12:00:00Z", "2026-01-31T12:30:00Z"


def right(id: str, **more: object) -> ExerciseRecord:
    return ExerciseRecord(id, 2, "right", BEGAN, ENDED, ENDED, seconds=600, **more)


def tried(id: str, *faults: str, **more: object) -> ExerciseRecord:
    return ExerciseRecord(id, 3, "not yet", BEGAN, ENDED, None, dict.fromkeys(faults, 2), seconds=90, **more)


def quiz(score: int, finished: bool = True) -> QuizRecord:
    """A quiz with so many right answers."""
    answers = {}
    for number, question in enumerate(QUESTIONS):
        wrong = next(choice.key for choice in question.choices if choice is not question.right)
        answers[question.slug] = question.right.key if number < score else wrong
    return QuizRecord(answers, score, len(QUESTIONS), BEGAN, ENDED, ENDED if finished else None)


@pytest.fixture
def folder(tmp_path):
    """A class: in folders of their own, in copies side by side, and what cannot be relied on."""
    place = tmp_path / "class"
    ada = Progress("Ada", (right("01a", hints=(1, 2)), tried("02a", "mean-of-means", "tail-divisor")),
                   {"before": quiz(2), "after": quiz(6)})  # fmt: skip
    bob = Progress("", (tried("01a", "mean-of-means"), tried("02a", "mean-of-means", solution_seen=ENDED)),
                   {"before": quiz(5), "after": quiz(3, finished=False)})  # fmt: skip
    eve = Progress("Somebody else", (right("01a"),), {"before": quiz(4), "after": quiz(3)})
    texts = {
        "ada/.accumkit/progress.json": text_of(ada),
        "ada/.accumkit/laid.json": '{"00_start_here.ipynb": "0"}',
        "ada/.git/config.json": "{}",
        "bob.json": text_of(bob),
        "=eve/progress.json": text_of(eve),
        "half.json": text_of(bob)[:200],
        "forged.json": text_of(bob).replace('"not yet"', '"right"'),
        "other/settings.json": json.dumps({"theme": "dark"}),
        "empty.json": "",
        "words.json": "no JSON",
    }
    for name, text in texts.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (place / "bytes.json").write_bytes(b"\xff\xfe\x00\x01")
    return place


def rows(table, header) -> dict[str, dict[str, str]]:
    return {row[0]: dict(zip(header, row, strict=True)) for row in table}


def test_learners_are_summed_up(folder):
    learners = rows(collect(folder, PROBLEMS).learners, LEARNERS)
    assert list(learners) == ["=eve", "ada", "bob"]
    numbers = LEARNERS[1:10]
    assert [learners["ada"][name] for name in numbers] == ["1", "1", "5", "2", "0", "12", "2 of 8", "6 of 8", "+4"]
    assert [learners["bob"][name] for name in numbers] == ["0", "2", "6", "0", "1", "4", "5 of 8", "begun", ""]
    assert learners["=eve"]["difference"] == "-1"
    assert learners["=eve"]["remark"] == "calls itself Somebody else"
    assert learners["ada"]["file"] == "ada/.accumkit/progress.json"


def test_exercises_say_what_to_talk_about(folder):
    exercises = rows(collect(folder, PROBLEMS).exercises, EXERCISES)
    assert list(exercises) == [problem.id for problem in PROBLEMS.values()]
    first, second = exercises["01a"], exercises["02a"]
    assert (first["right"], first["not yet"], first["attempts"]) == ("2", "1", "7")
    assert first["faults, and how many met them"] == "mean-of-means 1"
    assert (second["right"], second["not yet"], second["solutions seen"]) == ("0", "2", "1")
    assert second["faults, and how many met them"] == "mean-of-means 2, tail-divisor 1"


def test_what_cannot_be_relied_on_is_named_with_the_reason(folder):
    refused = dict(collect(folder, PROBLEMS).refused)
    assert set(refused) == {"half.json", "forged.json", "other/settings.json", "empty.json", "words.json", "bytes.json"}
    assert all(len(why) > 15 and str(folder) not in why for why in refused.values()), refused
    assert len(set(refused.values())) >= 4, refused


def test_command_prints_and_writes_and_says_by_its_exit_code(folder, capsys, tmp_path):
    table = tmp_path / "new" / "progress.csv"
    assert main(["collect", str(folder), "--out", str(table)]) == 1, "files are left out"
    said = capsys.readouterr().out
    assert "6 files left out:" in said and "half.json" in said
    assert "mean-of-means 2, tail-divisor 1" in said
    with table.open(encoding="utf-8-sig", newline="") as file:
        learners = {row["learner"]: row for row in csv.DictReader(file)}
    assert set(learners) == {"'=eve", "ada", "bob"}
    assert learners["ada"]["difference"] == "+4"
    with table.with_name("progress-exercises.csv").open(encoding="utf-8-sig", newline="") as file:
        assert len(list(csv.DictReader(file))) == len(PROBLEMS)


def test_command_is_content_where_every_file_counts(folder, capsys):
    assert main(["collect", str(folder / "ada")]) == 0
    assert "left out" not in capsys.readouterr().out


def test_a_learner_without_a_file_is_told(folder, capsys):
    for name in ("carl/exercises", "bob", ".git", "marks", "tables"):
        (folder / name).mkdir(parents=True)
    (folder / "marks" / "marks.csv").write_text("learner")
    learners = collect(folder, PROBLEMS, folder / "tables" / "progress.csv").learners
    assert [row[0] for row in learners] == ["=eve", "ada", "bob", "carl"], "bob has a file beside his folder"
    assert learners[-1] == ("carl", *[""] * 10, "no progress file")
    main(["collect", str(folder), "--out", str(folder / "tables" / "progress.csv")])
    said = capsys.readouterr().out
    assert "no progress file" in said and "tables  " not in said


def test_a_learners_own_folders_are_no_learners(folder):
    (folder / "ada" / "images").mkdir()
    (folder / "ada" / "exercises").mkdir()
    (folder / "ada" / "exercises" / "progress ada.json").write_bytes((folder / "bob.json").read_bytes())
    assert "images" not in [row[0] for row in collect(folder / "ada", PROBLEMS).learners]


def test_two_files_of_one_learner_are_told(folder):
    copy = folder / "ada" / "copy.json"
    copy.write_bytes((folder / "ada" / ".accumkit" / "progress.json").read_bytes())
    learners = collect(folder, PROBLEMS).learners
    assert [row[-1] for row in learners if row[0] == "ada"] == ["calls itself Ada; more than one file"] * 2


def test_a_file_that_was_edited_and_used_on_is_told(folder):
    (folder / "bob.json").write_text(text_of(Progress("bob", (right("01a"),), edited=True)), encoding="utf-8")
    learners = rows(collect(folder, PROBLEMS).learners, LEARNERS)
    assert learners["bob"]["remark"] == "edited by hand at some time"


def test_files_side_by_side_are_named_after_their_learners_as_notebooks_are(tmp_path):
    names = ("progress anna", "bert-progress", "Progress_Cleo (1)", "dora", "progress (2)", "progress-Copy1")
    for name in names:
        (tmp_path / f"{name}.json").write_text(text_of(Progress()), encoding="utf-8")
    learners = collect(tmp_path, PROBLEMS).learners
    assert [row[0] for row in learners] == ["(no name)", "(no name)", "anna", "bert", "Cleo", "dora"]
    assert [row[-1] for row in learners] == ["more than one file"] * 2 + [""] * 4


def test_faults_beyond_the_five_most_common_are_counted(tmp_path):
    (tmp_path / "ada.json").write_text(text_of(Progress("", (tried("01a", *"abcdefg"),))), encoding="utf-8")
    assert rows(collect(tmp_path, PROBLEMS).exercises, EXERCISES)["01a"]["faults, and how many met them"] == (
        "a 1, b 1, c 1, d 1, e 1, and 2 more"
    )


def test_a_learners_own_folder_may_be_given(folder):
    assert [row[0] for row in collect(folder / "ada", PROBLEMS).learners] == ["ada"]


@pytest.mark.parametrize(("name", "needed"), [("none", "is no folder"), ("empty", "there is no progress file")])
def test_nothing_to_collect_is_refused(tmp_path, name, needed, capsys):
    (tmp_path / "empty").mkdir()
    with pytest.raises(AccumkitError, match=needed):
        collect(tmp_path / name, PROBLEMS)
    assert main(["collect", str(tmp_path / name)]) == 1
    assert needed in capsys.readouterr().err


def test_a_clock_that_was_ahead_is_a_remark_and_no_reason_to_leave_a_file_out(tmp_path):
    later = moment(time.time() + 3 * 24 * 3600)
    (tmp_path / "ann.json").write_text(text_of(Progress("", (ExerciseRecord("01a", 1, "right", BEGAN, later, later),))))
    collected = collect(tmp_path, PROBLEMS)
    assert collected.refused == ()
    assert rows(collected.learners, LEARNERS)["ann"]["remark"] == f"noted at {later}, in the future: a clock was ahead"


def test_what_jupyterlab_keeps_beside_the_progress_is_no_progress(folder):
    before = collect(folder, PROBLEMS).refused
    for inner in ("labconfig", "workspaces"):
        (folder / "ada" / ".accumkit" / inner).mkdir()
        (folder / "ada" / ".accumkit" / inner / "settings.json").write_text("{}", encoding="utf-8")
    assert collect(folder, PROBLEMS).refused == before
