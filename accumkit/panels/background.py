"""Long work in small slices, so that the kernel goes on answering: it can be shown, overtaken and stopped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

SLICE, REST = 0.05, 0.005  # seconds of work between two looks at what the reader does, and the pause for them


class Background:
    """Runs an iterator a slice at a time on the kernel's event loop.

    Where no event loop runs (a plain script, a test), ``start`` works everything off at once.

    Parameters
    ----------
    show : callable
        Called with what the iterator yielded last, after each slice.
    ended : callable
        Called once at the end with "done", "stopped" or the exception that ended it.
    limit : float, optional
        Seconds after which it is stopped.

    Examples
    --------
    >>> from accumkit.panels.background import Background
    >>> seen = []
    >>> work = Background(seen.append, seen.append)
    >>> work.start(iter([1, 2, 3]))
    >>> seen
    [3, 'done']
    """

    def __init__(
        self,
        show: Callable[[object], None],
        ended: Callable[[str | Exception], None],
        limit: float | None = None,
    ) -> None:
        self._show, self._ended, self._limit = show, ended, limit
        self._work: Iterator | None = None
        self._task: asyncio.Task | None = None
        self._begun = 0.0

    @property
    def running(self) -> bool:
        """Whether there is work left that goes on by itself."""
        return self._work is not None

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._begun

    def start(self, work: Iterator) -> None:
        """Begin; work that was at hand before is dropped."""
        self._work, self._begun = work, time.monotonic()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            while self._work is not None:
                self._slice(float("inf"))
            return
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._go_on())

    def stop(self) -> None:
        """End the work where it stands."""
        if self._work is not None:
            self._end("stopped")

    def finish(self) -> None:
        """Work off what is left, now, showing it slice by slice."""
        while self._work is not None:
            self._slice(SLICE)

    async def _go_on(self) -> None:
        while self._work is not None:
            self._slice(SLICE)
            await asyncio.sleep(REST)

    def _slice(self, seconds: float) -> None:
        work, until, last, any_yet = self._work, time.monotonic() + seconds, None, False
        try:
            while self._work is work:
                last, any_yet = next(work), True
                if time.monotonic() >= until:
                    break
        except StopIteration:
            if any_yet:
                self._show(last)
            if self._work is work:
                self._end("done")
            return
        except Exception as error:
            self._end(error)
            return
        if self._work is work:
            self._show(last)
            if self._limit is not None and self.seconds > self._limit:
                self._end("stopped")

    def _end(self, how: str | Exception) -> None:
        self._work = None
        self._ended(how)
