"""pip, asked to bring wheels for another machine, and its failures in words."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from accumkit.errors import AccumkitError
from accumkit.offline.platforms import Platform, newest

FULL = re.compile(r"No space left on device|\[Errno 28\]|WinError 112|disk is full", re.IGNORECASE)
NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeoutError|ReadTimeoutError|ProtocolError|ProxyError|"
    r"Failed to establish a new connection|Temporary failure in name resolution|Network is unreachable"
)
NO_WHEEL = re.compile(r"No matching distribution found for ([^\s;]+)")


def download(
    names: Sequence[str], folder: Path, platform: Platform, python: str, environment: Mapping[str, str] | None = None
) -> None:
    """Bring the wheels of some packages for a platform, without what they require.

    Parameters
    ----------
    names : sequence of str
        Each with its version, such as "numpy==2.4.6".
    folder : Path
        Where the wheels go; those that are there are not brought again.
    platform : Platform
    python : str
        Its version there, such as "3.12".
    environment : mapping, optional
        Further environment variables for pip.

    Raises
    ------
    AccumkitError
        There is no network, no room on the disk, or no wheel that fits.
    """
    tags = [word for tag in platform.tags for word in ("--platform", tag)]
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--only-binary", ":all:", "--implementation", "cp", "--python-version", newest(python), *tags,
        "--dest", str(folder), *names,
    ]  # fmt: skip
    told = {**os.environ, **(environment or {})}
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=told)
    if done.returncode:
        raise AccumkitError(reason(done.stderr + done.stdout, platform, python, folder))


def reason(said: str, platform: Platform, python: str, folder: Path) -> str:
    """Return why pip failed, in words, and what to do.

    Examples
    --------
    >>> from pathlib import Path
    >>> from accumkit.offline import platform
    >>> from accumkit.offline.pip import reason
    >>> reason("ERROR: No matching distribution found for x==1", platform("windows"), "3.12", Path("w")).split(":")[0]
    'x==1 has no wheel for windows and Python 3.12 where pip looks'
    """
    if FULL.search(said):
        return (
            f"the disk of {folder} (or of temporary files) is full: make room, or name a folder on another disk; "
            "what is there is kept"
        )
    if "No module named pip" in said:
        return f"this Python ({sys.executable}) has no pip, which brings the wheels; run: python -m ensurepip"
    if NETWORK.search(said):
        return (
            "pip cannot reach its package index: run this on a machine with internet access (and its proxy, if it "
            "needs one, in the environment variable HTTPS_PROXY), then run it again; what has come so far is kept"
        )
    if missing := NO_WHEEL.search(said):
        return (
            f"{missing[1]} has no wheel for {platform.name} and Python {python} where pip looks: try another --python, "
            "or, for torch, --torch; nothing is built from source, since the other machine could not use it"
        )
    last = [line for line in said.splitlines() if line.strip()][-3:]
    return "pip failed, and said: " + " / ".join(last)
