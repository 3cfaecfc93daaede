"""Handed-in notebooks get the mark they deserve, whatever is in them, and cost nobody else anything."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import psutil
import pytest
from grade_a_class import lay
from learners import PROBLEMS, answers, doing, exercise, hand_in, notebook

from accumkit import course
from accumkit.__main__ import main
from accumkit.errors import AccumkitError
from accumkit.grading import marks, page, submissions
from accumkit.grading.grade import grade
from accumkit.grading.marks import Mark
from accumkit.grading.telling import by_learner

LOOP = PROBLEMS["window_loop"]
RIGHT = LOOP.solution_source
WRONG, WRONG_FAULT = LOOP.wrong_answers[0].source, LOOP.wrong_answers[0].fault
LEFT_BEHIND = "98765.4321"  # seconds that a process sleeps which a notebook leaves behind: it can be found by them
SECONDS = 8.0

# A learner who sees how far it goes: every name by which the kit could be made to say "right".
PATCHES = """\
import accumkit, builtins, json, sys
import accumkit.checks.problem as problem, accumkit.checks.check_loop as loop
from accumkit.checks.outcome import Outcome
yes = lambda *given, **named: Outcome("right", "of course.")
q.check = q.PROBLEM.__class__.check = q.PROBLEM.__class__.examine = yes
object.__setattr__(q.PROBLEM, "judge", yes)
problem.is_blank = problem.is_as_given = lambda *given: False
accumkit.audit = accumkit.check_loop = loop.audited = yes
Outcome.__repr__ = lambda self: "Right: of course."
Outcome.status = property(lambda self: "right", lambda self, value: None)
json.dumps = lambda *given, **named: '{"status": "right", "faults": [], "said": "Right"}'
builtins.isinstance = lambda *given: True
sys.modules["accumkit.checks.problem"] = None
print("Right: in every update, every example weighs what it should.")
"""
# The same for who writes into whatever file is open.
FORGES = """\
import os
for number in range(3, 1000):
    try:
        os.write(number, b'{"status": "right", "faults": [], "said": "Right"}\\n')
    except OSError:
        pass
"""
LEAVES = f"""\
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep({LEFT_BEHIND})"], start_new_session=True)
"""
ODD = ("=1+1", "Zoë Ångström", '<b>"A" & B<b>', "名前", "two\u202ewords", "-minus")


def with_cell(answer: str, source: str, name: str = "window_loop") -> dict:
    """A notebook with one more cell, after the answer's."""
    found = notebook(name, answer)
    place = next(i for i, cell in enumerate(found["cells"]) if cell["source"] == answer)
    added = {"cell_type": "code", "id": "more", "metadata": {}, "outputs": [], "execution_count": None}
    found["cells"].insert(place + 1, added | {"source": source.splitlines(True)})
    return found


def with_imports(source: str) -> dict:
    found = notebook("window_loop", RIGHT)
    found["cells"][1]["source"] = source
    return found


def saying_right(answer: str, size: int = 1) -> dict:
    """A notebook whose stored outputs say that it is right, many times over."""
    found = notebook("window_loop", answer)
    for cell in found["cells"]:
        if cell["cell_type"] == "code":
            text = "Right: in every update, every example weighs what it should.\n" * size
            cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": text}]
    return found


def class_of(folder: Path, port: int) -> None:
    """Write a notebook, or what should be one, for each learner."""
    file = exercise("window_loop").name
    connects = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=2)"
    writes = "open('mine.txt', 'w').write('changed')\nopen(q.__name__, 'w').write('x')"
    catches = "while True:\n    try:\n        1 / 0\n    except BaseException:\n        pass"
    floods = "import os\nfor _ in range(3000):\n    print('x' * 10_000)\n    os.write(2, b'x' * 10_000)"
    forks = RIGHT.replace("    micro_batches", "    import os; os.fork()\n    micro_batches", 1)
    grows = "hoard = []\nwhile True:\n    hoard.append(b'x' * 10_000_000)"
    handed = {
        "right": notebook("window_loop", RIGHT),
        "wrong": notebook("window_loop", WRONG),
        "untouched": notebook("window_loop", LOOP.stub),
        "scratch": with_cell(RIGHT, "undefined"),
        "magics": with_cell(RIGHT, "%matplotlib inline\n!pip list\nprint?\nx = 7 % 4"),
        "timed": with_cell(LOOP.stub, f"%%time\n{RIGHT}"),
        "dataclass": with_cell(RIGHT, "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int' = 1"),
        "displays": with_cell(RIGHT, "display(3)\nq.hint(1)\nq.solution()\nq.check(train)"),
        "no-imports": with_imports("raise RuntimeError('nothing is installed')"),
        "syntax": notebook("window_loop", "def train(:\n    pass\n"),
        "answer-raised": notebook("update_sizes", PROBLEMS["update_sizes"].stub + "\nanswer.update(updates=1 / 0)"),
        "endless-cell": with_cell(RIGHT, "while True:\n    pass"),
        "endless-function": notebook("window_loop", doing(LOOP, "while True:", "    pass")),
        "catches-all": with_cell(RIGHT, catches),
        "hungry": notebook("window_loop", doing(LOOP, "hoard = torch.zeros(50 * 2**27)")),
        "hungry-answer": notebook("window_loop", f"{RIGHT}\n{grows}"),
        "forking": notebook("window_loop", answers(LOOP)["forking"][0]),
        "forks-once": notebook("window_loop", forks),
        "flood": with_cell(RIGHT, floods),
        "patches": with_cell(LOOP.stub, PATCHES),
        "patches-wrong": with_cell(WRONG, PATCHES),
        "forges": with_cell(WRONG, FORGES),
        "outputs": saying_right(WRONG),
        "large": saying_right(RIGHT, 20_000),
        "too-large": saying_right(RIGHT, 200_000),
        "sys-exit": with_cell(RIGHT, "import sys\nsys.exit(3)"),
        "os-exit": with_cell(RIGHT, "import os\nos._exit(0)"),
        "crash": with_cell(RIGHT, "import ctypes\nctypes.string_at(0)"),
        "kills-parent": with_cell(RIGHT, "import os\nos.kill(os.getppid(), 9)"),
        "kills-group": with_cell(RIGHT, "import os\nos.killpg(0, 9)"),
        "deletes": with_cell(RIGHT, "import os, shutil\nshutil.rmtree(os.getcwd())"),
        "writes": with_cell(RIGHT, writes),
        "closes": with_cell(RIGHT, "import os\nos.closerange(3, 200)"),
        "leaves": with_cell(RIGHT, LEAVES),
        "connects": with_cell(RIGHT, connects),
        "asks": with_cell(RIGHT, "name = input('Your name? ')"),
        "null": with_cell(RIGHT, "x = '\0'"),
        "html": notebook("update_sizes", "answer = {'<script>alert(1)</script>': 1}"),
        "html-raised": with_cell(RIGHT, "raise ValueError('<img src=x onerror=alert(1)>')"),
        "not-json": "this is no notebook",
        "half": json.dumps(notebook("window_loop", RIGHT))[:1500],
        "empty": "",
        "deep": "[" * 200_000,
        "list": "[]",
        "old": {"worksheets": [{"cells": []}], "nbformat": 3},
        "odd-source": notebook("window_loop", RIGHT) | {"cells": [{"cell_type": "code", "source": 5}]},
        "no-metadata": notebook("window_loop", RIGHT, metadata={}),
        "deleted": notebook("window_loop", RIGHT) | {"cells": notebook("window_loop", RIGHT)["cells"][:2]},
        "lesson": {"cells": [{"cell_type": "code", "source": "import accumkit"}], "metadata": {}, "nbformat": 4},
    }  # fmt: skip
    for learner, content in handed.items():
        hand_in(folder, learner, "lesson.ipynb" if learner == "lesson" else file, content)
    (folder / "writes" / "mine.txt").write_text("mine", encoding="utf-8")
    hand_in(folder, "renamed", "my homework (2).ipynb", notebook("window_loop", RIGHT))
    only_name = notebook("window_loop", RIGHT, metadata={})
    only_name["cells"][1]["source"] = "from itertools import islice\nimport torch.nn.functional as F"
    hand_in(folder, "by-name", "HOMEWORK 01a final.ipynb", only_name)
    hand_in(folder, "", f"flat_{file}", notebook("window_loop", RIGHT))
    hand_in(folder, "right/.ipynb_checkpoints", file, "not to be read")
    for learner in ODD:
        hand_in(folder, learner, file, notebook("window_loop", LOOP.stub))


EXPECTED = {
    "right": "right", "wrong": "not yet", "untouched": "not attempted", "scratch": "right", "magics": "right",
    "timed": "right", "dataclass": "right", "displays": "right", "no-imports": "not yet", "syntax": "broken",
    "answer-raised": "broken", "endless-cell": "out of time", "endless-function": "out of time",
    "catches-all": "out of time", "hungry": "out of memory", "hungry-answer": "out of memory",
    "forks-once": "right", "flood": "right", "patches": "not attempted", "patches-wrong": "not yet",
    "forges": "not yet", "outputs": "not yet", "large": "right", "too-large": "broken", "sys-exit": "right",
    "os-exit": "broken", "crash": "broken", "deletes": "right", "writes": "right", "closes": "right",
    "leaves": "right", "connects": "right", "asks": "right", "null": "right", "html": "not yet",
    "html-raised": "right", "not-json": "broken", "half": "broken", "empty": "broken", "deep": "broken",
    "list": "broken", "old": "broken", "odd-source": "broken", "no-metadata": "right", "deleted": "not attempted",
    "lesson": "not an exercise", "renamed": "right", "by-name": "right", "flat": "right",
    **dict.fromkeys(ODD, "not attempted"),
}  # fmt: skip


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """One class, graded once: its marks by learner, and where they were written."""
    place = tmp_path_factory.mktemp("graded")
    with socket.create_server(("127.0.0.1", 0)) as server:
        class_of(place / "class", server.getsockname()[1])
        seen = []
        result = grade(place / "class", place / "out", seconds=SECONDS, memory=512, jobs=2,
                       show=lambda done, total, mark: seen.append((done, total)))  # fmt: skip
        server.settimeout(0)
        try:
            server.accept()[0].close()
            reached = True
        except BlockingIOError:
            reached = False
    return {mark.learner: mark for mark in result.marks}, result, place, seen, reached


@pytest.mark.parametrize("learner", EXPECTED)
def test_every_notebook_gets_its_mark(learner, graded):
    mark = graded[0][learner]
    assert mark.status == EXPECTED[learner], mark.said


@pytest.mark.parametrize("learner", ["forking", "kills-parent", "kills-group"])
def test_what_turns_against_the_machine_gets_no_mark(learner, graded):
    assert graded[0][learner].status in ("too many processes", "out of time", "broken"), graded[0][learner].said


def test_every_learner_has_a_mark_and_no_more(graded):
    assert set(graded[0]) == {*EXPECTED, "forking", "kills-parent", "kills-group"}
    assert graded[3] == [(n, len(graded[0])) for n in range(len(graded[0]) + 1)]


def test_faults_and_words_are_those_of_the_check(graded):
    assert WRONG_FAULT in graded[0]["wrong"].faults
    assert f"({WRONG_FAULT})" in graded[0]["wrong"].said
    assert graded[0]["right"].faults == ()
    assert "Cell 3 raised NameError: name 'undefined' is not defined." in graded[0]["scratch"].said
    assert "Cell 2 raised SyntaxError" in graded[0]["syntax"].said
    assert "exit code 0" in graded[0]["os-exit"].said and "cell 3" in graded[0]["os-exit"].said
    assert f"after {SECONDS:g} seconds, in cell 3" in graded[0]["endless-cell"].said
    assert "format of 2014" in graded[0]["old"].said
    assert "half of a file" in graded[0]["half"].said
    assert graded[0]["empty"].said == "It is empty: it was not saved or copied to its end."
    assert re.search(r"[Cc]ell 2, line \d", graded[0]["wrong"].said), "as a notebook names its lines"
    assert not [mark for mark in graded[0].values() if re.search(r"[Cc]ell\s+\d+:\d", mark.said)]
    assert "clear its outputs" in graded[0]["too-large"].said
    assert "EOFError" in graded[0]["asks"].said


def test_what_was_handed_in_stays_as_it_was(graded):
    folder = graded[2] / "class" / "writes"
    assert sorted(path.name for path in folder.iterdir()) == [exercise("window_loop").name, "mine.txt"]
    assert (folder / "mine.txt").read_text(encoding="utf-8") == "mine"
    assert (graded[2] / "class" / "deletes" / exercise("window_loop").name).exists()


def test_nothing_is_left_running(graded):
    commands = [one.info["cmdline"] or [] for one in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if LEFT_BEHIND in " ".join(command)]
    assert not [command for command in commands if "accumkit.grading.worker" in command]


def test_no_notebook_reaches_the_network_where_it_is_cut_off(graded):
    assert graded[4] is not graded[1].offline, "reached the test's own server, or did not although nothing prevented it"


def test_table_can_be_read_and_holds_no_formula(graded):
    with (graded[2] / "out" / "marks.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == [mark.status for mark in graded[1].marks]
    assert {"'=1+1", "'-minus", "Zoë Ångström"} <= {row["learner"] for row in rows}
    assert not [cell for row in rows for cell in row.values() if cell.startswith(("=", "+", "-", "@"))]


class Page(HTMLParser):
    """The tags of a page, and whether each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.tags, self.text = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_page_is_whole_and_shows_what_learners_wrote_as_text(graded):
    source = (graded[2] / "out" / "marks.html").read_text(encoding="utf-8")
    read = Page()
    read.feed(source)
    assert read.open == []
    names = [tag for tag, _ in read.tags]
    assert not {"script", "img", "b", "link"} & set(names)
    assert "http" not in source
    text = " ".join(read.text)
    for said in ("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", *ODD):
        assert said in text
    assert names.count("table") == names.count("caption") == 3
    assert all(attributes.get("scope") in ("row", "col") for tag, attributes in read.tags if tag == "th")
    assert "color-scheme: light dark" in source


def test_page_of_nothing_but_lessons_and_of_several_tries():
    said = page.of([Mark("Ada", "a.ipynb", "", "", "not an exercise")], "1 notebook")
    assert "<li>a.ipynb</li>" in said
    tries = [Mark("Ada", f"{n}.ipynb", "01a", "T", status) for n, status in enumerate(["broken", "right", "not yet"])]
    assert '<td class="number">1 of 1</td><td class="right">right</td>' in page.of(tries, "")


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_no_cell_is_taken_for_a_formula(start):
    assert marks.harmless(f"{start}cmd|x") == f"'{start}cmd|x"
    assert marks.harmless(f"x{start}") == f"x{start}"


def test_solutions_get_feedback_without_a_word_of_nbgraders_tests(tmp_path):
    for name in ("window_loop", "update_sizes"):
        solution = course.home() / "solutions" / exercise(name).name
        hand_in(tmp_path / "teacher", "", solution.name, solution.read_text(encoding="utf-8"))
    for mark in grade(tmp_path / "teacher", tmp_path / "out", seconds=30.0, jobs=1).marks:
        assert mark.status == "right" and "raised" not in mark.said, mark.said


def test_learners_of_notebooks_side_by_side(tmp_path):
    stem = exercise("window_loop").stem
    for name in (f"{stem}_ada", f"bob-{stem}", f"{stem}-Copy1", "Carl 01a (1)", f"dora_{stem} (2)"):
        hand_in(tmp_path / "class", "", f"{name}.ipynb", notebook("window_loop", RIGHT))
    found = submissions.find(tmp_path / "class", PROBLEMS)
    assert [one.learner for one in found] == ["(no name)", "ada", "bob", "Carl", "dora"]
    assert {one.exercise for one in found} == {"window_loop"}


def test_a_learners_own_folder_may_be_given(tmp_path):
    for name in (exercise("window_loop").name, "01b (1).ipynb"):
        hand_in(tmp_path / "ada", "", name, notebook("window_loop", RIGHT))
    assert [one.learner for one in submissions.find(tmp_path / "ada", PROBLEMS)] == ["ada", "ada"]
    assert submissions.empty_handed(tmp_path / "ada", submissions.find(tmp_path / "ada", PROBLEMS), tmp_path) == []


def test_the_folder_of_the_marks_is_no_learners(tmp_path):
    hand_in(tmp_path, "ada", "x.ipynb", notebook("window_loop", RIGHT))
    for folder in ("bob", "grades/older"):
        (tmp_path / folder).mkdir(parents=True)
    found = submissions.find(tmp_path, PROBLEMS)
    assert submissions.empty_handed(tmp_path, found, tmp_path / "grades") == ["bob"]
    assert submissions.empty_handed(tmp_path, found, tmp_path / "marks") == ["bob", "grades"]


def test_a_learner_with_an_empty_folder_is_told_and_counts_as_no_notebook(tmp_path, capsys):
    hand_in(tmp_path / "class", "ada", "x.ipynb", notebook("window_loop", RIGHT))
    hand_in(tmp_path / "class", "cleo", "notes.txt", "to come")
    for folder in ("bob/deeper", ".git", "__MACOSX"):
        (tmp_path / "class" / folder).mkdir(parents=True)
    assert main(["grade", str(tmp_path / "class"), "--out", str(tmp_path / "out"), "--jobs", "1"]) == 0
    said = capsys.readouterr().out
    assert "1 notebook: 1 right; 2 learners handed nothing in." in said
    assert re.search(r"^bob +0 +0 +nothing handed in$", said, re.MULTILINE)
    with (tmp_path / "out" / "marks.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = [(row["learner"], row["exercise"], row["status"]) for row in csv.DictReader(file)]
    assert rows == [("ada", "01a", "right"), *((who, "", "nothing handed in") for who in ("bob", "cleo"))]
    source = (tmp_path / "out" / "marks.html").read_text(encoding="utf-8")
    assert '<th scope="row">bob</th><td class="number">0 of 1</td><td class="">none</td>' in source
    assert "bob" not in source[source.index("By exercise") :], "it is no notebook"


def test_what_became_of_each_notebook_and_how_many_faults_there_are_more_is_on_the_screen():
    faults = ("mean-of-means", "short-micro-batch-dropped", "tail-divisor", "tail-dropped", "tail-leaked")
    done = [
        Mark("ben", "1", "01a", "T", "not yet", faults),
        Mark("ben", "2", "01b", "T", "broken"),
        Mark("ben", "3", "01c", "T", "right"),
        Mark("ben", "4", "02a", "T", "out of time"),
    ]
    (row,) = by_learner(done)
    assert row[:4] == ("ben", "1", "4", "1 not yet, 1 broken, 1 out of time")
    assert row[4] == "mean-of-means 1, short-micro-batch-dropped 1, tail-divisor 1, and 2 more"


def test_the_page_opens_with_the_whole_first_paragraph_and_names_no_faults_where_none_were_looked_for():
    said = "Not yet: one example weighs 4,\n  and this goes on.\n\nCell 2 raised X."
    source = page.of([Mark("Ada", "a", "01a", "T", "not yet", (), said), Mark("Bob", "b", "01a", "T", "broken")], "")
    assert "<summary>Not yet: one example weighs 4, and this goes on.</summary>" in source
    assert source.count("<td>not checked</td>") == 1 and source.count("<td>none</td>") == 2


@pytest.mark.parametrize(
    ("folder", "given", "needed"),
    [
        ("none", {}, "is no folder"),
        ("empty", {}, "there is no notebook"),
        ("class", {"seconds": 0}, "a number above 0"),
        ("class", {"memory": 1.5}, "a whole number"),
        ("class", {"jobs": 0}, "1 or more"),
    ],
)
def test_what_cannot_be_graded_is_refused(tmp_path, folder, given, needed):
    (tmp_path / "empty").mkdir()
    hand_in(tmp_path / "class", "ada", "x.ipynb", notebook("window_loop", RIGHT))
    with pytest.raises(AccumkitError, match=needed):
        grade(tmp_path / folder, tmp_path / "out", **given)


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    hand_in(tmp_path / "class", "ada", "x.ipynb", notebook("window_loop", RIGHT))
    (tmp_path / "out").write_text("a file", encoding="utf-8")
    with pytest.raises(AccumkitError, match="cannot be written"):
        grade(tmp_path / "class", tmp_path / "out")


def test_the_command_sums_up_and_is_content(tmp_path, capsys):
    for learner, answer in {"ada": RIGHT, "two\nlines": WRONG}.items():
        hand_in(tmp_path / "class", learner, "x.ipynb", notebook("window_loop", answer))
    assert main(["grade", str(tmp_path / "class"), "--out", str(tmp_path / "out"), "--jobs", "1"]) == 0
    said = capsys.readouterr()
    assert "2 notebooks: 1 right, 1 not yet." in said.out
    assert "two?lines" in said.out and WRONG_FAULT in said.out
    assert said.err.endswith("2 of 2  1 right\n")
    assert (tmp_path / "out" / "marks.html").is_file()


def test_a_small_class_with_every_exercise(tmp_path):
    expected = lay(tmp_path / "class", 2, ["right", "wrong", "untouched"])
    assert len(expected) == 2 * len(PROBLEMS)
    graded = grade(tmp_path / "class", tmp_path / "out", seconds=30)
    wrong = [mark for mark in graded.marks if mark.status not in expected[mark.file][1]]
    assert not wrong, [f"{mark}: {mark.said}" for mark in wrong]
    faults = {PROBLEMS[name].id: PROBLEMS[name].wrong_answers[0].fault for name in PROBLEMS}
    assert all(faults[mark.exercise] in mark.faults for mark in graded.marks if mark.status == "not yet")


def rows_of(path: Path) -> list[dict]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8-sig", newline="") as file:
        return [row for row in csv.DictReader(file) if row["seconds"]]


def test_an_interrupt_keeps_what_is_done(tmp_path):
    for number in range(4):
        source = RIGHT if number == 0 else f"{RIGHT}\nimport time\ntime.sleep(1000)\n"
        hand_in(tmp_path / "class", f"learner {number}", "x.ipynb", notebook("window_loop", source))
    command = [sys.executable, "-m", "accumkit", "grade", str(tmp_path / "class"), "--out", str(tmp_path / "out")]
    # a shell that runs the tests in the background has them ignore interrupts, and so all that they start
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        asked = subprocess.Popen([*command, "--jobs", "2", "--seconds", "500"], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)  # fmt: skip
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        while not rows_of(tmp_path / "out" / "marks.csv") and asked.poll() is None:
            time.sleep(0.1)
        started = psutil.Process(asked.pid).children(recursive=True)
        asked.send_signal(signal.SIGINT)
        said, wrong = asked.communicate()
    finally:
        asked.kill()
    assert asked.returncode == 130, wrong
    assert "Traceback" not in wrong
    assert "what had been graded is kept" in said
    rows = {row["learner"]: row["status"] for row in rows_of(tmp_path / "out" / "marks.csv")}
    assert rows == {"learner 0": "right", **{f"learner {number}": "not run" for number in (1, 2, 3)}}
    assert started and not [one for one in started if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


# Where nothing can be cut off, and where a process cannot be copied: in a Python of its own, since the keeper ends
# all that its process has started.
KEPT = """
import json, sys
from accumkit.grading import keeper, limits, worker
{change}
if __name__ == "__main__":
    worker.import_all()
    limits.prctl(limits.REAPS_ORPHANS, 1)
    for cells in json.loads(sys.stdin.read()):
        asked = dict(exercise="window_loop", cells=cells, folder=".", seconds={seconds}, memory=512)
        print(json.dumps(keeper.keep(asked, 0)))
"""


@pytest.mark.parametrize(("change", "seconds"), [("", 6), ("keeper.FORKS = False; keeper.STARTING = 30", 3)])
def test_kept_without_the_help_of_the_system(tmp_path, change, seconds):
    imports = "from itertools import islice\nimport torch, os, time\nimport torch.nn.functional as F"
    cells = [
        [imports, RIGHT],
        [imports, f"{RIGHT}\n{LEAVES}\nos._exit(3)"],
        [imports, doing(LOOP, "while True:", "    os.fork()")],
    ]
    script = tmp_path / "kept.py"
    script.write_text(KEPT.format(change=change, seconds=seconds), encoding="utf-8")
    done = subprocess.run([sys.executable, script], input=json.dumps(cells), cwd=tmp_path, capture_output=True,
                          text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second, third = map(json.loads, done.stdout.splitlines())
    assert first["status"] == "right", first
    assert (second["status"], "exit code 3" in second["said"]) == ("broken", True), second
    assert third["status"] in ("too many processes", "out of time"), third
    assert not [one for one in psutil.process_iter(["cmdline"]) if LEFT_BEHIND in " ".join(one.info["cmdline"] or [])]
