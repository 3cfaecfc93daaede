"""Asks the process that runs notebooks for their marks, and starts it anew where one of them has ended it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading

from accumkit.errors import AccumkitError
from accumkit.grading.marks import BROKEN

# One thread each, for sums in one order and a machine shared fairly; no GPU, so that all are judged alike.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


class Keeper:
    """A process that keeps notebooks' processes, started when it is first asked, and anew when it is lost."""

    def __init__(self) -> None:
        self.process: subprocess.Popen | None = None
        self.stopped = False
        self.isolated = 0

    def ask(self, request: dict, patience: float) -> dict:
        """Return the mark of one notebook."""
        if self.process is None:
            self.isolated = self._start()
        timer = threading.Timer(patience, self._kill)
        timer.start()
        try:
            with contextlib.suppress(OSError, ValueError):
                self.process.stdin.write(json.dumps(request).encode() + b"\n")
                self.process.stdin.flush()
                return json.loads(self.process.stdout.readline())
        finally:
            timer.cancel()
        self.close()
        return {"status": BROKEN, "faults": [], "said": "The notebook ended the process that watches it.", "seconds": 0}

    def stop(self) -> None:
        """End it and what it runs; one that waits for its answer gets none."""
        self.stopped = True
        self._kill()

    def close(self) -> None:
        """End it, and let go of it."""
        self._kill()
        if self.process is not None:
            self.process.stdout.close()
            with contextlib.suppress(OSError):  # of what could not be written to it any more
                self.process.stdin.close()
            self.process.wait()
            self.process = None

    def _start(self) -> int:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "accumkit.grading.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=os.environ | ENVIRONMENT, start_new_session=True,
        )  # fmt: skip
        try:
            return json.loads(self.process.stdout.readline())["isolated"]
        except ValueError as cause:
            raise AccumkitError("the process that runs notebooks did not start; its error stands above") from cause

    def _kill(self) -> None:
        """End the process and all that it has started."""
        import psutil  # comes with ipykernel

        if self.process is None:
            return
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(self.process.pid)
            for one in [root, *root.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    one.kill()
