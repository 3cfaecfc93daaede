"""How far it is: one line that is written anew on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from typing import TextIO

WIDTH = 30
PAUSE = 15.0  # seconds between lines of a log, at least


class Bar:
    """Progress in plain text.

    Parameters
    ----------
    total : int
    stream : TextIO, optional
        The standard error by default, so that what a program says on its standard output stays apart.

    Examples
    --------
    >>> import sys
    >>> from accumkit.grading.bar import Bar
    >>> bar = Bar(2, sys.stdout)
    >>> bar.show(2, "2 right")
    [##############################] 2 of 2  2 right
    """

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self.total, self.stream = total, stream or sys.stderr
        self.began = self.last = time.monotonic()
        self.width = 0  # of the line that stands there

    def show(self, done: int, said: str = "") -> None:
        """Say how many are done, and something more."""
        filled = WIDTH * done // max(1, self.total)
        line = f"[{'#' * filled}{'.' * (WIDTH - filled)}] {done} of {self.total}  {self._left(done)}{said}".rstrip()
        now, over = time.monotonic(), done >= self.total
        if self.stream.isatty():
            self.stream.write(f"\r{line.ljust(self.width)}" + "\n" * over)
            self.width = len(line)
        elif over or now - self.last >= PAUSE:
            self.stream.write(f"{line}\n")
            self.last = now
        self.stream.flush()

    def _left(self, done: int) -> str:
        """Return about how long it will take yet, once that can be told."""
        spent = time.monotonic() - self.began
        if done < 3 or done >= self.total or spent < 5:
            return ""
        left = spent / done * (self.total - done)
        return f"about {left / 60:.0f} min left  " if left >= 90 else f"about {left:.0f} s left  "
