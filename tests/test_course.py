"""The learner's copies are laid, refreshed while untouched, and never written over; JupyterLab opens on them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from accumkit import course, lab
from accumkit.__main__ import main
from accumkit.errors import AccumkitError

LESSON, EXERCISE, PICTURE = "01_lesson.ipynb", "exercises/01_task.ipynb", "images/a.png"


@pytest.fixture
def kit(tmp_path):
    folder = tmp_path / "kit"
    put(folder / "notebooks" / LESSON, b"lesson, see [it](../exercises/01_task.ipynb)")
    put(folder / "notebooks" / PICTURE, b"](../exercises/ in a picture stays")
    put(folder / EXERCISE, b"exercise, from [here](../notebooks/01_lesson.ipynb)")
    put(folder / "notebooks" / ".ipynb_checkpoints" / LESSON, b"of an editor")
    return folder


@pytest.fixture
def work(tmp_path):
    return tmp_path / "my-work"


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_first_time_lays_everything_with_links_that_lead_somewhere(kit, work):
    assert course.lay(kit, work) == {LESSON: "new", PICTURE: "new", EXERCISE: "new"}
    assert (work / LESSON).read_bytes() == b"lesson, see [it](exercises/01_task.ipynb)"
    assert (work / EXERCISE).read_bytes() == b"exercise, from [here](../01_lesson.ipynb)"
    assert (work / PICTURE).read_bytes() == b"](../exercises/ in a picture stays"
    assert not list(work.rglob(".*.half"))


def test_untouched_copies_are_refreshed_and_touched_ones_kept(kit, work):
    course.lay(kit, work)
    put(work / EXERCISE, b"my answer")
    put(kit / "notebooks" / LESSON, b"a better lesson")
    done = course.lay(kit, work)
    assert done[LESSON].startswith("refreshed") and done[EXERCISE] == "yours, kept" and done[PICTURE] == "as it was"
    assert (work / LESSON).read_bytes() == b"a better lesson"
    assert (work / EXERCISE).read_bytes() == b"my answer"


def test_a_touched_copy_is_kept_however_often_the_kit_changes(kit, work):
    course.lay(kit, work)
    put(work / LESSON, b"mine")
    for content in (b"second", b"third"):
        put(kit / "notebooks" / LESSON, content)
        assert "the kit has a newer one" in course.lay(kit, work)[LESSON]
        assert (work / LESSON).read_bytes() == b"mine"
    (work / LESSON).rename(work / "mine.ipynb")  # as the sentence says
    assert course.lay(kit, work)[LESSON] == "new"
    assert (work / LESSON).read_bytes() == b"third" and (work / "mine.ipynb").read_bytes() == b"mine"


@pytest.mark.parametrize("manifest", [None, b"", b"[1]", b'{"01_lesson.ipynb": '])
def test_without_a_readable_manifest_nothing_is_written_over(kit, work, manifest):
    course.lay(kit, work)
    put(work / LESSON, b"mine")
    put(kit / EXERCISE, b"newer")
    path = work / course.OWN / "laid.json"
    path.unlink() if manifest is None else path.write_bytes(manifest)
    done = course.lay(kit, work)
    assert "kept" in done[LESSON] and "kept" in done[EXERCISE] and done[PICTURE] == "as it was"
    assert (work / LESSON).read_bytes() == b"mine"
    put(kit / "notebooks" / PICTURE, b"newer")
    assert course.lay(kit, work)[PICTURE].startswith("refreshed")  # known again, since it was the kit's own


def test_what_the_kit_no_longer_has_goes_only_if_untouched(kit, work):
    course.lay(kit, work)
    put(work / EXERCISE, b"my answer")
    for path in (kit / EXERCISE, kit / "notebooks" / PICTURE):
        path.unlink()
    done = course.lay(kit, work)
    assert done[EXERCISE] == "yours, kept" and done[PICTURE].startswith("taken away")
    assert (work / EXERCISE).read_bytes() == b"my answer" and not (work / PICTURE).exists()
    assert course.lay(kit, work) == {LESSON: "as it was"}


def test_a_deleted_copy_comes_back(kit, work):
    course.lay(kit, work)
    (work / LESSON).unlink()
    assert course.lay(kit, work)[LESSON] == "new"


@pytest.mark.parametrize("place", ["", "notebooks", "exercises", "notebooks/../notebooks"])
def test_copies_do_not_go_among_the_originals(kit, place):
    with pytest.raises(AccumkitError, match="the kit's own files"):
        course.lay(kit, kit / place)


def test_a_folder_that_cannot_be_written_is_a_clear_error(kit, work):
    work.write_text("a file stands where the folder should")
    with pytest.raises(AccumkitError, match="--dir") as caught:
        course.lay(kit, work)
    assert isinstance(caught.value.__cause__, OSError) and str(work) in str(caught.value)


def test_every_link_between_the_real_copies_leads_somewhere(work):
    done = course.lay(course.home(), work)
    assert course.START in done and any(name.startswith("exercises/") for name in done)
    for path in work.rglob("*.ipynb"):
        for cell in json.loads(path.read_bytes())["cells"]:
            for target in re.findall(r"\]\(([^):#]+\.(?:ipynb|png|svg))\)", "".join(cell["source"])):
                assert (path.parent / target).is_file(), f"{path.name} links to {target}"


def test_copies_have_no_answer_to_what_a_lesson_asks(work):
    course.lay(course.home(), work)
    for original in sorted((course.home() / "notebooks").glob("*.ipynb")):
        stored, copied = (json.loads(path.read_bytes())["cells"] for path in (original, work / original.name))
        assert any(course.RUN_FIRST in cell["metadata"].get("tags", []) for cell in stored)
        for before, after in zip(stored, copied, strict=True):
            if course.RUN_FIRST in before["metadata"].get("tags", []):
                assert before["outputs"] and (after["outputs"], after["execution_count"]) == ([], None)
            else:
                assert after.get("outputs") == before.get("outputs")
    doctor = json.loads((work / course.START).read_bytes())["cells"][2]
    assert doctor["id"] == "doctor" and doctor["outputs"] == [], "it would look like a report of this machine"


def test_a_kernel_of_another_python_is_noticed():
    assert lab.is_this_python(sys.executable) and lab.is_this_python(lab.kernel_python())
    assert not lab.is_this_python(None) and not lab.is_this_python("/usr/lib/another/bin/python3")


def test_arguments_hold_root_and_the_reader_apart(monkeypatch, work):
    monkeypatch.setattr(os, "geteuid", lambda: 0, raising=False)
    assert "--ServerApp.allow_root=True" in lab.arguments(work, 8888, True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000, raising=False)
    told = lab.arguments(work, 8888, True)
    assert not any("allow_root" in argument or "token" in argument.lower() for argument in told)
    assert "--ServerApp.ip=localhost" in told


def test_a_browser_needs_a_screen(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert not lab.has_browser()


def test_lab_says_that_the_port_asked_for_is_taken(work, tmp_path):
    said = tmp_path / "said.txt"
    with socket.create_server(("127.0.0.1", 0)) as other, said.open("w") as file:
        port = other.getsockname()[1]
        command = [sys.executable, "-m", "accumkit", "lab", "--no-browser", "--port", str(port), "--dir", str(work)]
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT,
                                   env=os.environ | {"HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"})  # fmt: skip
        try:
            found = wait_for(lambda: re.search(r"http://localhost:(\d+)/", said.read_text()), process, said)
        finally:
            process.terminate()
            process.wait(timeout=20)
    assert int(found[1]) != port and f"Port {port} is taken" in said.read_text()


def test_labs_that_start_at_the_same_moment_take_a_port_each(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    said = [tmp_path / f"said {one}.txt" for one in range(2)]
    started = [begin_lab(tmp_path / f"work {one}", port, file) for one, file in enumerate(said)]
    try:
        found = [
            wait_for(lambda file=file: re.search(r"http://localhost:(\d+)/", file.read_text()), process, file, 120)[1]
            for process, file in zip(started, said, strict=True)
        ]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(timeout=20)
    assert len({*found}) == 2 and str(port) in found
    assert sum("is taken" in file.read_text() for file in said) == 1


def test_a_port_is_held_from_the_moment_it_is_found():
    first = lab.listening(0)
    port = first[0].getsockname()[1]
    second = lab.listening(port)
    try:
        assert port < second[0].getsockname()[1] <= port + lab.NEXT_PORTS
    finally:
        for one in first + second:
            one.close()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signal for one process")
def test_ctrl_c_while_lab_starts_is_one_line(work, tmp_path):
    said = tmp_path / "said.txt"
    process = begin_lab(work, 0, said)
    try:
        wait_for(lambda: "Starting JupyterLab" in said.read_text(), process, said)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
    finally:
        process.kill()
    assert said.read_text().endswith("\naccumkit: stopped with Ctrl+C\n") and "Traceback" not in said.read_text()


def begin_lab(work: Path, port: int, said: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "accumkit", "lab", "--no-browser", "--port", str(port), "--dir", str(work)]
    home = {"HOME": str(said.parent), "PYTHONUNBUFFERED": "1"}
    # a shell that runs the tests in the background has them ignore interrupts, and so all that they start
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with said.open("w") as file:
            return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=os.environ | home)
    finally:
        signal.signal(signal.SIGINT, before)


def test_lab_opens_on_the_first_lesson_with_its_token(work, tmp_path):
    said = tmp_path / "said.txt"
    mine = {"HOME": str(tmp_path), "JUPYTER_CONFIG_DIR": str(tmp_path / "config"), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "accumkit", "lab", "--no-browser", "--port", "0", "--dir", str(work)]
    with said.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=os.environ | mine)
    try:
        url = wait_for(lambda: re.search(r"http://localhost:\d+/\S+", said.read_text()), process, said)[0]
        base, token = url.split("/lab/")[0], url.split("?token=")[1]
        assert url.split("?")[0] == f"{base}/lab/tree/{course.START}" and len(token) >= 32
        assert f'"treePath": "{course.START}"' in fetch(url)
        assert f'"treePath": "{course.START}"' in fetch(f"{base}/?token={token}")  # where Jupyter sends a browser
        assert course.START in fetch(f"{base}/api/contents?token={token}")
        settings = fetch(f"{base}/lab/api/settings/@jupyterlab/apputils-extension:notification?token={token}")
        assert json.loads(settings)["schema"]["properties"]["fetchNews"]["default"] == "false"
        for refused in (f"{base}/api/contents", f"{base}/api/contents?token=wrong"):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                fetch(refused)
    finally:
        process.terminate()
        process.wait(timeout=20)
    assert f"{course.START}: new" in said.read_text() and said.read_text().count("token=") == 1
    assert said.read_text().endswith(f"Stopped; what you saved is in {work}\n")
    assert "is taken" not in said.read_text()


def test_a_port_that_is_taken_is_told(capsys, tmp_path):
    lab.announce("http://localhost:8900/lab", tmp_path, False)
    assert "Port" not in capsys.readouterr().out
    lab.announce("http://localhost:8900/lab", tmp_path, False, 8899)
    said = capsys.readouterr().out
    assert said.index("Port 8899 is taken") < said.index("http://localhost:8900/lab")


def wait_for(look, process, said, seconds=60):
    for _ in range(seconds * 10):
        if found := look():
            return found
        assert process.poll() is None, said.read_text()
        time.sleep(0.1)
    raise AssertionError(f"nothing after {seconds} s: {said.read_text()}")


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read().decode()


@pytest.mark.parametrize("port", [-1, 65536, 99999999])
def test_a_port_that_there_is_none_of_is_refused_before_anything_is_laid(port, tmp_path, capsys):
    assert main(["lab", "--dir", str(tmp_path / "work"), "--port", str(port)]) == 1
    assert f"port {port}: give a number from 1 to 65535, or 0 for any free one" in capsys.readouterr().err
    assert not (tmp_path / "work").exists()
    with pytest.raises(AccumkitError, match=f"port {port}"):
        lab.start(tmp_path, port)
    lab.check_port(0)
    lab.check_port(65535)
