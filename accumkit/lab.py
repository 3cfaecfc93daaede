"""JupyterLab on the learner's copies: on this machine only, with its token, and without questions."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
import webbrowser
from pathlib import Path

from accumkit.course import OWN, START
from accumkit.errors import AccumkitError

HOST = "localhost"
NEXT_PORTS = 100  # tried after the one asked for, before any free one is taken
NO_NEWS = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}


def start(directory: Path, port: int = 8888, browser: bool = True) -> None:
    """Run JupyterLab in ``directory``, opened on the first lesson, until it is stopped.

    Settings hold for this run alone: nothing of the reader's own Jupyter is changed.

    Parameters
    ----------
    directory : Path
        Where the copies of the lessons lie.
    port : int
        Where to listen, on localhost; the next free one if it is taken, and any free one for 0.
    browser : bool
        False: only print the address.

    Raises
    ------
    AccumkitError
        There is no such port, JupyterLab is not installed, or its kernel would be another Python than this one.

    Examples
    --------
    It runs until it is stopped; in a shell: ``python -m accumkit lab --no-browser --port 0``
    """
    check_port(port)
    prefer_this_environment(directory)
    print("Starting JupyterLab; this takes some seconds ...", flush=True)
    try:
        from jupyterlab.labapp import LabApp
    except ImportError as cause:
        raise AccumkitError(
            "JupyterLab is not installed in this Python; in the project's folder, run: "
            'pip install -c constraints.txt -e ".[course]"'
        ) from cause
    kernel = kernel_python()
    if not is_this_python(kernel):
        raise AccumkitError(
            f"notebooks would run in {kernel or 'no Python at all'} rather than in {sys.executable}, "
            "which has accumkit; run: python -m ipykernel install --sys-prefix"
        )
    browser = browser and has_browser()
    held = listening(port)
    server = LabApp.initialize_server(argv=arguments(directory, 0, browser))
    server.port = held[0].getsockname()[1]
    server.http_server.listen = lambda *_: server.http_server.add_sockets(held)  # where Jupyter would bind a port
    server.identity_provider.token_generated = False  # else Jupyter prints the address again, three times
    taken = port if port not in (0, server.port) else None
    server.io_loop.add_callback(announce, address(server), directory, browser, taken)  # runs once the server listens
    server.start()
    print(f"\nStopped; what you saved is in {directory}")


def check_port(port: int) -> None:
    """Refuse a port that there is none of.

    Raises
    ------
    AccumkitError
    """
    if not 0 <= port <= 65535:
        raise AccumkitError(f"port {port}: give a number from 1 to 65535, or 0 for any free one")


def listening(port: int) -> list[socket.socket]:
    """Return sockets that listen on a port of this machine alone: the one asked for, or the next free one.

    Jupyter looks for a free port at one moment and takes it at a later one: where a class starts together on a shared
    machine, another has taken it by then. So it is taken here, and Jupyter is given what listens there.
    """
    near = range(port, min(port + NEXT_PORTS, 65535) + 1) if port else ()
    for one in (*near, 0, 0, 0):
        with contextlib.suppress(OSError):  # taken, or not open to this user
            return _bound(one)
    raise AccumkitError(f"no port is free on {HOST}: close other programs that listen there, or restart the machine")


def _bound(port: int) -> list[socket.socket]:
    """Return what listens on a port of both of this machine's own addresses, IPv6 only where there is any."""
    held = [socket.create_server(("127.0.0.1", port), backlog=128)]
    try:
        held.append(socket.create_server(("::1", held[0].getsockname()[1]), family=socket.AF_INET6, backlog=128))
    except OSError as cause:
        if cause.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            held[0].close()
            raise
    for one in held:
        one.setblocking(False)  # as Jupyter's event loop needs it
    return held


def announce(url: str, directory: Path, browser: bool, taken: int | None = None) -> None:
    """Say where the course is, that the port asked for is taken if it is, and how to stop it."""
    if taken is not None:
        print(f"\nPort {taken} is taken, perhaps by another JupyterLab, or not open to you; this is the next free one.")
    print(f"\nThe course is open at\n\n    {url}\n")
    print("Your browser should show it now." if browser else "Open this address in a browser on this machine.")
    print(f"Stop it with Ctrl+C; what you saved stays in {directory}", flush=True)


def prefer_this_environment(directory: Path) -> None:
    """Let this run use this Python's kernel, and answer its question about news with no."""
    settings = directory.resolve() / OWN / "labconfig" / "default_setting_overrides.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(json.dumps(NO_NEWS, indent=1))
    before = os.environ.get("JUPYTER_CONFIG_PATH")
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, [str(settings.parent.parent), before]))
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"


def kernel_python() -> str | None:
    """Return the Python that notebooks would run in, or None where there is no such kernel."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        command = KernelSpecManager().get_kernel_spec("python3").argv[0]
    except NoSuchKernel:
        return None
    # jupyter_client, too, starts its own Python for a bare name
    bare = {"python", f"python{sys.version_info[0]}", f"python{sys.version_info[0]}.{sys.version_info[1]}"}
    return sys.executable if command in bare else command


def is_this_python(command: str | None) -> bool:
    """Whether a kernel's command is a Python of this environment; links are not followed, they leave it."""
    return command is not None and Path(os.path.abspath(command)).parent == Path(os.path.abspath(sys.executable)).parent


def arguments(directory: Path, port: int, browser: bool) -> list[str]:
    """Return what JupyterLab is told on its command line, which holds above the reader's own settings."""
    told = [
        f"--ServerApp.root_dir={directory.resolve()}",
        f"--ServerApp.ip={HOST}",
        f"--ServerApp.port={port}",
        f"--ServerApp.open_browser={browser}",
        "--ServerApp.answer_yes=True",  # one Ctrl+C stops it
        "--ServerApp.log_level=ERROR",  # the address is printed once, in words
        "--LabApp.log_level=ERROR",
        "--KernelManager.transport_encryption=auto",  # else each kernel warns of eavesdropping
        f"--LabApp.default_url=/lab/tree/{START}",
        f"--LabApp.open_browser={browser}",
        f"--LabApp.workspaces_dir={directory.resolve() / OWN / 'workspaces'}",  # no tabs of other projects
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        told.append("--ServerApp.allow_root=True")  # as in a container; Jupyter refuses otherwise
    return told


def has_browser() -> bool:
    """Whether a browser with a window can be opened from here."""
    if sys.platform.startswith("linux") and not any(map(os.environ.get, ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def address(server) -> str:
    """Return the first lesson's address, with the token that opens it."""
    token = server.identity_provider.token
    return f"{server.connection_url}lab/tree/{START}" + (f"?token={token}" if token else "")
