"""What a process that runs others' code may use, and what it can be cut off from, as far as the system allows."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import sys
from collections.abc import Callable

LINUX = sys.platform == "linux"
LARGEST_FILE = 64 * 2**20  # bytes
RESERVE = 256 * 2**20  # bytes that are kept for the check
NEW_USER, NEW_PID, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000  # flags of unshare(2)
DIES_WITH_PARENT, REAPS_ORPHANS = 1, 36  # options of prctl(2)


def limited(megabytes: int, seconds: float) -> Callable[[], None]:
    """Limit this process and those it starts; return a function that gives back some memory at the end.

    Parameters
    ----------
    megabytes : int
        Memory of one process, beyond what it has now.
    seconds : float
        Of processor time, a backstop: the clock on the wall is watched from outside.
    """
    try:
        import resource
    except ImportError:  # Windows: what the process uses is watched from outside
        return lambda: None
    _set(resource, resource.RLIMIT_CORE, 0)
    _set(resource, resource.RLIMIT_FSIZE, LARGEST_FILE)
    _set(resource, resource.RLIMIT_CPU, int(2 * seconds) + 2)
    now = _data_now()
    if not now:
        return lambda: None
    # The address space says little (torch maps libraries of gigabytes); what a process can write to says all.
    allowed = now + megabytes * 2**20
    _set(resource, resource.RLIMIT_DATA, allowed, allowed + RESERVE)
    return lambda: _set(resource, resource.RLIMIT_DATA, allowed + RESERVE)


def _set(resource, which: int, soft: int, hard: int | None = None) -> None:
    with contextlib.suppress(ValueError, OSError):  # a lower limit holds already
        resource.setrlimit(which, (soft, soft if hard is None else hard))


def _data_now() -> int | None:
    """Return the bytes that this process can write to, None where the system does not say."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData"))
    except (OSError, StopIteration):
        return None


def prctl(option: int, value: int) -> None:
    """Set one of Linux's options of a process; elsewhere, do nothing."""
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def dies_with_parent() -> None:
    """Let this process end when the one that started it does."""
    prctl(DIES_WITH_PARENT, signal.SIGKILL)


def unshare(flags: int) -> bool:
    """Cut this process, or those it starts, off from the others' processes or network; return whether it worked."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(flags):
        return False
    if flags & NEW_USER:
        try:
            for name, line in (
                ("setgroups", "deny"),
                ("uid_map", f"{user} {user} 1"),
                ("gid_map", f"{group} {group} 1"),
            ):
                with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                    file.write(line)
        except OSError:
            return False
    if flags & NEW_NETWORK:
        with contextlib.suppress(OSError):
            _loopback_up()
    return True


def _loopback_up() -> None:
    """Let processes that are cut off from the network reach each other, as ranks of torch.distributed do."""
    import fcntl
    import socket

    set_flags, up_and_running = 0x8914, 0x41
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sH22x", b"lo", up_and_running))


def possible() -> int:
    """Return the flags with which `unshare` works here, 0 where it does not: tried in a process of its own."""
    if not LINUX:
        return 0
    for flags in (
        NEW_PID | NEW_NETWORK,
        NEW_USER | NEW_PID | NEW_NETWORK,
        NEW_NETWORK,
        NEW_USER | NEW_NETWORK,
    ):
        child = os.fork()
        if child == 0:
            works = False
            try:
                works = unshare(flags)
                if works and flags & NEW_PID:
                    inner = os.fork()
                    if inner == 0:
                        os._exit(0)
                    works = os.waitpid(inner, 0)[1] == 0
            finally:
                os._exit(0 if works else 1)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            return flags
    return 0
