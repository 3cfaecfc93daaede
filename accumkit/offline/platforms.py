"""The platforms that a folder can be filled for: which wheels fit them, and how they answer packages' conditions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from accumkit.errors import AccumkitError


@dataclass(frozen=True)
class Platform:
    """One kind of machine."""

    name: str
    words: str  # what it is, for people
    tags: tuple[str, ...]  # of wheels that run on it, as pip names them
    system: str  # what platform.system() says there
    machine: str  # what platform.machine() says there
    sys_platform: str
    os_name: str

    def answers(self, python: str) -> Mapping[str, str]:
        """Return what the platform answers to the conditions in packages' requirements.

        pip answers them for the machine that it runs on, and would leave out what only the other one needs.

        Examples
        --------
        >>> from accumkit.offline import platform
        >>> platform("windows").answers("3.12")["sys_platform"]
        'win32'
        """
        full = newest(python)
        return {
            "python_version": python,
            "python_full_version": full,
            "os_name": self.os_name,
            "sys_platform": self.sys_platform,
            "platform_system": self.system,
            "platform_machine": self.machine,
            "platform_release": "",
            "platform_version": "",
            "platform_python_implementation": "CPython",
            "implementation_name": "cpython",
            "implementation_version": full,
        }


_GLIBC = tuple(f"manylinux_2_{minor}_x86_64" for minor in range(28, 4, -1))  # of 2018; torch asks for it
PLATFORMS = {
    "windows": Platform(
        "windows", "Windows, 64 bits (x86-64)", ("win_amd64",), "Windows", "AMD64", "win32", "nt"
    ),
    "macos": Platform(
        "macos", "macOS 14 or newer, Apple silicon", ("macosx_14_0_arm64",), "Darwin", "arm64", "darwin", "posix"
    ),
    "linux": Platform(
        "linux", "Linux, 64 bits (x86-64), glibc 2.28 or newer",
        (*_GLIBC, "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"),
        "Linux", "x86_64", "linux", "posix",
    ),
}  # fmt: skip


def newest(python: str) -> str:
    """Return a version that counts as the newest of its kind: some wheels ask for more than the first 3.11.

    Examples
    --------
    >>> from accumkit.offline.platforms import newest
    >>> newest("3.11")
    '3.11.99'
    """
    return f"{python}.99"


def platform(name: str) -> Platform:
    """Return a platform by its name.

    Raises
    ------
    AccumkitError
        There is none of this name.

    Examples
    --------
    >>> from accumkit.offline import platform
    >>> platform("macos").tags
    ('macosx_14_0_arm64',)
    """
    if name not in PLATFORMS:
        known = "; ".join(f"{p.name} ({p.words})" for p in PLATFORMS.values())
        raise AccumkitError(f"unknown platform {name!r}: wheels can be gathered for {known}")
    return PLATFORMS[name]
