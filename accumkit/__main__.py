"""The commands: python -m accumkit lab, doctor, pitfalls and exercises."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from accumkit import course, doctor, lab
from accumkit.errors import AccumkitError


def run_lab(told: argparse.Namespace) -> int:
    """Lay the lessons and exercises, and open JupyterLab on them."""
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


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line: one small function above for each command."""
    top = argparse.ArgumentParser(prog="python -m accumkit", description="Gradient accumulation that is right.")
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
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 well, 1 not, 2 for a command that is not understood."""
    if arguments is None:
        arguments = sys.argv[1:]
    top = parser()
    if not arguments:
        top.print_help()
        return 0
    told = top.parse_args(arguments)
    try:
        return told.run(told)
    except AccumkitError as error:
        print(f"accumkit: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
