"""The doctor says what is wrong and what to do, and nothing that differs between fit machines."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from importlib import metadata

import pytest
import torch

import accumkit
from accumkit import __main__ as main
from accumkit import doctor

FIT = """\
Python           ok
torch            ok
numpy            ok
scikit-learn     ok
matplotlib       ok
ipywidgets       ok
ipykernel        ok
jupyterlab       ok
notebook kernel  ok
memory           ok
writing files    ok
a training step  ok
GPU              not needed

This machine is fit for the course."""


def line(report: doctor.Report, name: str) -> doctor.Line:
    return next(line for line in report.lines if line.name == name)


def test_a_fit_machine_looks_the_same_everywhere(tmp_path):
    report = doctor.check(tmp_path)
    assert report.ok and repr(report) == FIT
    assert not re.search(r"\d", report._repr_html_()) and "fit for the course" in report._repr_html_()
    assert torch.__version__ in report.details() and str(tmp_path) in report.details()


def test_checking_leaves_randomness_and_folders_alone(tmp_path):
    before = torch.random.get_rng_state()
    doctor.check(tmp_path / "not" / "there" / "yet")
    assert torch.equal(before, torch.random.get_rng_state())
    assert not list(tmp_path.iterdir())


def test_old_and_missing_packages_are_named_with_what_to_do(monkeypatch, tmp_path):
    real = metadata.version
    versions = {"torch": "2.3.1+cpu", "ipywidgets": "7.7.1", "scikit-learn": None}

    def version(name):
        if versions.get(name, "") is None:
            raise metadata.PackageNotFoundError(name)
        return versions.get(name) or real(name)

    monkeypatch.setattr(metadata, "version", version)
    report = doctor.check(tmp_path)
    assert not report.ok and report.sentence == "To mend before the course: torch, scikit-learn, ipywidgets."
    for name, lowest in (("torch", "2.4"), ("scikit-learn", "1.5"), ("ipywidgets", "8.1")):
        assert line(report, name).state == "mend"
        assert f"{name} {lowest} or newer is needed" in repr(report) and "pip install" in repr(report)
    assert "7.7.1" in report._repr_html_()


@pytest.mark.parametrize("found, enough", [("2.13.0+cpu", True), ("2.4", True), ("2.4.0rc1", True), ("2.3.9", False),
                                           ("10.0", True), ("2", False), ("2.0.1", False)])  # fmt: skip
def test_versions_compare_as_numbers(monkeypatch, found, enough):
    monkeypatch.setattr(metadata, "version", lambda name: found)
    assert (doctor._answer("torch", lambda: doctor._package("torch")).state == "ok") is enough


def test_a_package_that_breaks_on_import_is_an_answer(monkeypatch, tmp_path):
    def broken(name):
        raise OSError("a library cannot be loaded")

    monkeypatch.setattr(doctor, "import_module", broken)
    assert "a library cannot be loaded" in line(doctor.check(tmp_path), "matplotlib").detail


def test_too_little_memory_and_no_place_to_write(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "_free_bytes", lambda: 100 * 2**20)
    blocked = tmp_path / "file"
    blocked.write_text("a file stands where the folder should")
    report = doctor.check(blocked)
    assert line(report, "memory").detail == "0.1 GiB free" and "close other programs" in repr(report)
    assert line(report, "writing files").state == "mend" and "--dir" in repr(report)
    assert line(report, "writing files").detail == os.strerror(errno.ENOTDIR), "and names no file that nobody knows"


def test_memory_is_measured_or_said_to_be_unknown(monkeypatch):
    assert doctor._free_bytes() > 2**27
    monkeypatch.setattr(doctor, "_free_bytes", lambda: None)
    assert doctor._memory() == "could not be measured"


def test_a_training_step_that_lies_is_found_out(monkeypatch, tmp_path):
    from accumkit import loops

    def mean_of_means(model, micro_batches, optimizer, objective, accumulation_steps):
        for x, y in micro_batches:
            (torch.nn.functional.mse_loss(model(x), y) / accumulation_steps).backward()
        optimizer.step()

    monkeypatch.setattr(loops, "train_epoch", mean_of_means)
    answer = line(doctor.check(tmp_path), "a training step")
    assert answer.state == "mend" and "differs" in answer.detail


def test_a_kernel_of_another_python_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "kernel_python", lambda: "/usr/lib/another/bin/python3")
    report = doctor.check(tmp_path)
    assert "ipykernel install" in line(report, "notebook kernel").advice


@pytest.mark.cuda
def test_a_gpu_is_named_and_works():
    assert doctor._training_step(torch.device("cuda"))
    assert torch.cuda.get_device_name() in doctor._gpu().detail and "works" in doctor._gpu().detail


def test_command_line(monkeypatch, capsys, tmp_path):
    assert main.main(["doctor", "--dir", str(tmp_path)]) == 0
    assert "This machine is fit" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "_free_bytes", lambda: 0)
    assert main.main(["doctor", "--dir", str(tmp_path)]) == 1
    assert "To mend before the course: memory." in capsys.readouterr().out


def test_what_a_command_does_not_know_is_said_under_its_own_usage(capsys):
    with pytest.raises(SystemExit, match="2"):
        main.main(["exercises", "99z"])
    said = capsys.readouterr().err
    assert said.startswith("usage: python -m accumkit exercises [-h]") and "not understood: 99z" in said
    assert "{" not in said and "--help" in said


def test_the_version_is_said(capsys):
    with pytest.raises(SystemExit, match="0"):
        main.main(["--version"])
    assert capsys.readouterr().out == f"accumkit {accumkit.__version__}\n"


def test_help_lists_the_commands_and_an_unknown_one_is_an_error():
    def run(*arguments):
        return subprocess.run([sys.executable, "-m", "accumkit", *arguments], capture_output=True, text=True)

    for asked in (run("--help"), run()):
        assert asked.returncode == 0 and "lab " in asked.stdout and "doctor " in asked.stdout
    wrong = run("teach")
    assert wrong.returncode == 2 and "'teach'" in wrong.stderr and "doctor" in wrong.stderr


def test_a_course_that_is_not_there_is_a_sentence(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(main.course, "__file__", str(tmp_path / "site" / "accumkit" / "course.py"))
    assert main.main(["lab"]) == 1
    assert "installed without its course" in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="a pipe that is closed is another error there")
def test_whoever_stops_reading_gets_no_traceback():
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = subprocess.run([sys.executable, "-m", "accumkit", "doctor"], stdout=writes, stderr=subprocess.PIPE)
    finally:
        os.close(writes)
    assert (done.returncode, done.stderr) == (1, b"")
