"""The commands: python -m accumkit lab, doctor, pitfalls, exercises, wheels, grade and collect."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from accumkit import __version__, course, doctor, lab
from accumkit.errors import AccumkitError

STOPPED = 130  # what a shell expects of a program that was stopped with Ctrl+C


def run_lab(told: argparse.Namespace) -> int:
    """Lay the lessons and exercises, and open JupyterLab on them."""
    lab.check_port(told.port)  # before anything is laid
    home = course.home()
    directory = told.dir or home / "my-work"
    done = course.lay(home, directory)
    print(f"Your copies are in {directory}")
    for name, what in done.items():
        print(f"  {name}: {what}")
    lab.start(directory, port=told.port, browser=not told.no_browser)
    return 0


def run_doctor(told: argparse.Namespace) -> int:
    """Say whether this machine is fit for the course."""
    report = doctor.check(told.dir or course.home() / "my-work")
    print(report.details())
    return 0 if report.ok else 1


def run_pitfalls(told: argparse.Namespace) -> int:
    """Simulate every pitfall of the catalog, and say whether the audit names it."""
    from accumkit.pitfalls import table  # here, so that the other commands do without it

    print(table.line(table.HEADER))
    wrong = []
    for simulation, cells in table.rows():
        print(table.line(cells), flush=True)
        wrong += [f"{cells[0]}: {why}" for why in [table.why_not(simulation)] if why]
    print("\nEvery pitfall is named." if not wrong else "\n" + "\n".join(wrong))
    return 1 if wrong else 0


def run_exercises(told: argparse.Namespace) -> int:
    """Try every exercise's check on its stub, its solution and its wrong answers."""
    from accumkit import checks  # here, so that the other commands do without it
    from accumkit.checks import attempts

    print(attempts.line(attempts.HEADER))
    wrong = []
    for cells, failed in attempts.rows(checks.problems()):
        print(attempts.line(cells), flush=True)
        wrong += failed
    print("\nEvery wrong answer is named." if not wrong else "\n" + "\n".join(wrong))
    return 1 if wrong else 0


def run_wheels(told: argparse.Namespace) -> int:
    """Fill a folder from which rooms without internet install the course."""
    from accumkit import offline  # here, so that the other commands do without it

    pythons = told.python or [".".join(map(str, sys.version_info[:2]))]
    offline.check(course.home(), told.folder, told.platform, pythons)
    print("Gathering wheels; this takes some minutes ...", flush=True)
    for one in offline.fill(course.home(), told.folder, told.platform, pythons, told.torch):
        print(one)
    start = {"windows": "py -3 install.py (Windows)"}
    run = dict.fromkeys(start.get(name, "python3 install.py (macOS, Linux)") for name in told.platform)
    print(f"\nCopy {told.folder} onto each machine, and in it run: {' or '.join(run)}. README.txt there says more.")
    return 0


def run_grade(told: argparse.Namespace) -> int:
    """Run handed-in notebooks, and write down what each of them gets."""
    from accumkit.grading import telling  # here, so that the other commands do without it

    return telling.grade(told.folder, told.out, told.seconds, told.memory, told.jobs)


def run_collect(told: argparse.Namespace) -> int:
    """Sum up learners' progress files."""
    from accumkit.grading import telling  # here, so that the other commands do without it

    return telling.collect(told.folder, told.out)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line: one small function above for each command."""
    top = argparse.ArgumentParser(prog="python -m accumkit", description="Gradient accumulation that is right.")
    top.add_argument("--version", action="version", version=f"accumkit {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    place = argparse.ArgumentParser(add_help=False)
    place.add_argument("--dir", type=Path, help="folder of your own copies (my-work in the project's folder)")

    command = commands.add_parser("lab", parents=[place], help="open the course in JupyterLab, in copies of your own")
    command.add_argument("--port", type=int, default=8888, help="where to listen, on localhost (%(default)s)")
    command.add_argument("--no-browser", action="store_true", help="only print the address to open")
    command.set_defaults(run=run_lab)

    command = commands.add_parser("doctor", parents=[place], help="say whether this machine is fit for the course")
    command.set_defaults(run=run_doctor)

    command = commands.add_parser("pitfalls", help="simulate every pitfall, and say whether the audit names it")
    command.set_defaults(run=run_pitfalls)

    command = commands.add_parser(
        "exercises", help="try every exercise's check on its stub, solution and wrong answers"
    )
    command.set_defaults(run=run_exercises)

    command = commands.add_parser("wheels", help="fill a folder from which rooms without internet install the course")
    command.add_argument("folder", type=Path, help="a new folder, or one filled before")
    command.add_argument("--platform", nargs="+", required=True, help="of the machines: windows, macos, linux")
    command.add_argument("--python", nargs="+", help="their version of Python, such as 3.12 (the one that runs this)")
    command.add_argument("--torch", default="", help="where torch's CPU build is: a folder, or an address")
    command.set_defaults(run=run_wheels)

    command = commands.add_parser("grade", help="for teachers: run handed-in exercises, and write down their marks")
    command.add_argument("folder", type=Path, help="what was handed in: a folder for each learner, or all side by side")
    command.add_argument(
        "--out", type=Path, default=Path("grades"), help="where marks.csv and marks.html go (%(default)s)"
    )
    command.add_argument("--seconds", type=float, default=10.0, help="for each notebook (%(default)g)")
    command.add_argument("--memory", type=int, default=1024, help="megabytes for each notebook (%(default)s)")
    command.add_argument("--jobs", type=int, help="how many run at the same time (as many as there are processors)")
    command.set_defaults(run=run_grade)

    command = commands.add_parser("collect", help="for teachers: sum up the progress files of learners")
    command.add_argument("folder", type=Path, help="folder: one for each learner, or progress files side by side")
    command.add_argument("--out", type=Path, help="also write the tables, for a spreadsheet: NAME.csv by learner, and "
                         "beside it NAME-exercises.csv")  # fmt: skip
    command.set_defaults(run=run_collect)
    for command in commands.choices.values():
        command.set_defaults(command=command)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 well, 1 not, 2 for what is not understood, 130 for Ctrl+C."""
    if arguments is None:
        arguments = sys.argv[1:]
    top = parser()
    if not arguments:
        top.print_help()
        return 0
    told, unknown = top.parse_known_args(arguments)
    if unknown:  # said by the command that does not know them, under its own usage
        told.command.error(f"not understood: {' '.join(unknown)}; --help says what this command takes")
    try:
        code = told.run(told)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever reads has read enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except AccumkitError as error:
        print(f"accumkit: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\naccumkit: stopped with Ctrl+C", file=sys.stderr)
        return STOPPED


if __name__ == "__main__":
    sys.exit(main())
