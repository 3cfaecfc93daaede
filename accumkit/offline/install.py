"""Install the course from the folder that this file lies in, without internet: README.txt there says how."""

# Standard library only, and no newer syntax than an old Python reads: it has to say which Python it needs.
from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import struct
import subprocess
import sys
from pathlib import Path

SYSTEMS = {
    "windows": ("Windows", ("AMD64", "x86_64")),
    "macos": ("Darwin", ("arm64",)),
    "linux": ("Linux", ("x86_64",)),
}
ROOM = 5  # times the bytes of the wheels: what they take when they are unpacked, and a little more
LAY = "from accumkit import course; course.lay(course.home(), course.home() / 'my-work')"


class CannotInstall(Exception):
    """What is wrong, and what to do."""


def wheels_for(made_for: dict, system: str, machine: str, version: tuple) -> dict:
    """Return the wheels for a machine and the size of each, out of what the folder was made for.

    Examples
    --------
    >>> from accumkit.offline.install import wheels_for
    >>> made_for = {"linux 3.12": {"lowest": "3.12.0", "wheels": {"a.whl": 7}}}
    >>> wheels_for(made_for, "Linux", "x86_64", (3, 12, 1))
    {'a.whl': 7}
    """
    python = f"{version[0]}.{version[1]}"
    here = [name for name, (its, machines) in SYSTEMS.items() if its == system and machine in machines]
    name = f"{here[0] if here else f'{system} {machine}'} {python}"
    if name in made_for:
        lowest = made_for[name]["lowest"]
        if tuple(version[:3]) < tuple(map(int, lowest.split("."))):
            found = ".".join(map(str, version[:3]))
            raise CannotInstall(
                f"This is Python {found}; some packages need {lowest} or a newer {python}: install that."
            )
        return made_for[name]["wheels"]
    others = [made.split()[1] for made in sorted(made_for) if here and made.startswith(here[0] + " ")]
    if others:
        start = f"py -{others[0]} install.py" if system == "Windows" else f"python{others[0]} install.py"
        raise CannotInstall(
            f"This is Python {python}, and the folder is made for Python {' or '.join(others)}. Start it so: "
            f"{start}\nIf the machine does not have it, install it first; its installer needs no internet."
        )
    raise CannotInstall(
        f"This machine is {system} {machine} with Python {python}; the folder is made for "
        f"{', '.join(sorted(made_for)) or 'none'}. Where there is internet, fill it for this one too: "
        "python -m accumkit wheels FOLDER --platform ..."
    )


def check_wheels(wheels: Path, sizes: dict) -> None:
    """Raise if a wheel is missing or was cut off on its way."""
    for name, size in sizes.items():
        path = wheels / name
        if not path.is_file() or path.stat().st_size != size:
            what = "is not whole" if path.is_file() else "is missing"
            raise CannotInstall(f"{path} {what}: copy the folder again, from where it was filled.")


def check_room(folder: Path, sizes: dict) -> None:
    """Raise if the disk is too full."""
    need, free = ROOM * sum(sizes.values()), shutil.disk_usage(folder).free
    if free < need:
        raise CannotInstall(
            f"{free / 1e6:,.0f} MB are free on this disk, and about {need / 1e6:,.0f} MB are needed: make room, or "
            "copy the folder to another disk and start it there."
        )


def make_environment(folder: Path) -> Path:
    """Make .venv in the folder, if it is not there, and return its Python."""
    inside = folder / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not inside.is_file():
        print("Making the environment .venv ...", flush=True)
        done = subprocess.run([sys.executable, "-m", "venv", str(folder / ".venv")], check=False)
        if done.returncode:
            shutil.rmtree(str(folder / ".venv"), ignore_errors=True)
            raise CannotInstall(
                "The environment could not be made; the lines above say why. On Debian and Ubuntu the package "
                f"python3-venv is needed; else look whether you may write in {folder}."
            )
    return inside


def install(folder: Path, python: Path) -> None:
    """Install the course and all it needs, from the wheels alone."""
    print("Installing; this takes a few minutes ...", flush=True)
    # The machine's own settings of pip may name places that cannot be reached from here.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHONPATH"))}
    environment["PIP_CONFIG_FILE"] = os.devnull
    command = [
        str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index",
        "--find-links", str(folder / "wheels"), "--constraint", str(folder / "course" / "constraints.txt"),
        "--editable", str(folder / "course") + "[course]",
    ]  # fmt: skip
    if subprocess.run(command, env=environment, check=False).returncode:
        raise CannotInstall("pip could not install the course; the lines above say why. Nothing was downloaded.")


def main(arguments: list | None = None) -> int:
    """Install, lay the lessons, check the machine, and say how to start."""
    parser = argparse.ArgumentParser(description="Install the course from this folder, without internet.")
    parser.parse_args(arguments)
    folder = Path(__file__).resolve().parent
    try:
        try:
            made_for = json.loads((folder / "contents.json").read_text(encoding="utf-8"))["made for"]
        except (OSError, ValueError, KeyError) as cause:
            raise CannotInstall(f"{folder} is not whole ({cause}): copy the folder again.") from cause
        if struct.calcsize("P") != 8:
            raise CannotInstall("This Python is one of 32 bits: torch needs one of 64 bits. Install that first.")
        sizes = wheels_for(made_for, platform.system(), platform.machine(), sys.version_info)
        check_wheels(folder / "wheels", sizes)
        if not (folder / ".venv").exists():
            check_room(folder, sizes)
        python = make_environment(folder)
        install(folder, python)
        subprocess.run([str(python), "-c", LAY], check=True)
        fit = subprocess.run([str(python), "-m", "accumkit", "doctor"], check=False).returncode == 0
    except CannotInstall as wrong:
        print(f"\n{wrong}", file=sys.stderr)
        return 1
    except OSError as wrong:
        print(f"\n{wrong}: make room on this disk, or copy the folder to where you may write.", file=sys.stderr)
        return 1
    print(f"\nStart the course with\n\n    {python} -m accumkit lab\n")
    return 0 if fit else 1


if __name__ == "__main__":
    sys.exit(main())
