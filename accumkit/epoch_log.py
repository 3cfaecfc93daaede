"""What an epoch of training did, in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from math import fsum, isfinite, nan

from accumkit.errors import several

ROWS = 20  # updates shown by a repr


@dataclass(frozen=True, slots=True)
class UpdateLog:
    """One update of an epoch.

    Attributes
    ----------
    micro_batches, examples : int
        How many were in the window.
    count : int or float
        Units in the window: what its summed loss was divided by.
    loss : float
        Mean loss over the window's units, before the update; ``per_update`` is not in it.
    per_update : float or None
        The objective's per-update term, where it has one.
    grad_norm : float or None
        Norm of the unscaled gradient before clipping; None where no ``max_grad_norm`` was given.
    skipped : bool
        Whether a scaler skipped the step because of a gradient that was not finite.
    """

    micro_batches: int
    examples: int
    count: int | float
    loss: float
    per_update: float | None = None
    grad_norm: float | None = None
    skipped: bool = False


@dataclass(frozen=True, repr=False)
class EpochLog:
    """An epoch: its updates, and updates, micro-batches, examples and units counted apart.

    Attributes
    ----------
    updates : tuple of UpdateLog
        In order; skipped ones too.
    unit : str
        What ``count`` counts: "examples", "tokens", "class weights".
    dropped_micro_batches, dropped_examples : int
        In a tail that was dropped on purpose.

    Examples
    --------
    >>> log = EpochLog((UpdateLog(3, 12, 12, loss=2.0), UpdateLog(2, 8, 4, loss=1.0)), unit="tokens")
    >>> log.micro_batches, log.examples, log.count, log.loss
    (5, 20, 16, 1.75)
    """

    updates: tuple[UpdateLog, ...]
    unit: str = "examples"
    dropped_micro_batches: int = 0
    dropped_examples: int = 0

    @property
    def micro_batches(self) -> int:
        """Micro-batches in the updates."""
        return sum(update.micro_batches for update in self.updates)

    @property
    def examples(self) -> int:
        """Examples in the updates."""
        return sum(update.examples for update in self.updates)

    @property
    def count(self) -> int | float:
        """Units in the updates."""
        return sum(update.count for update in self.updates)

    @property
    def skipped(self) -> int:
        """Updates whose step a scaler skipped."""
        return sum(update.skipped for update in self.updates)

    @property
    def loss(self) -> float:
        """Mean loss over the epoch's units; windows whose loss was not finite (skipped ones) are left out."""
        seen = [(update.loss, update.count) for update in self.updates if isfinite(update.loss)]
        return fsum(loss * count for loss, count in seen) / fsum(count for _, count in seen) if seen else nan

    def _table(self) -> tuple[list[str], list[list[str]]]:
        shown = self.updates[:ROWS]
        head = ["update", "micro-batches", "examples"]
        columns = [[str(i + 1) for i in range(len(shown))], [str(u.micro_batches) for u in shown],
                   [str(u.examples) for u in shown]]  # fmt: skip
        if self.unit != "examples" or self.count != self.examples:
            head, columns = [*head, self.unit], [*columns, [_short(u.count) for u in shown]]
        head, columns = [*head, "loss"], [*columns, [_short(u.loss) for u in shown]]
        if any(u.grad_norm is not None for u in shown):
            head, columns = [*head, "grad norm"], [*columns, [_short(u.grad_norm) for u in shown]]
        if self.skipped:
            head, columns = [*head, "step"], [*columns, ["skipped" if u.skipped else "made" for u in shown]]
        return head, [list(row) for row in zip(*columns, strict=True)]

    def _summary(self) -> list[str]:
        lines = [f"... {several(len(self.updates) - ROWS, 'more update')}"] if len(self.updates) > ROWS else []
        units = "" if self.unit == "examples" else f", {_short(self.count)} {self.unit}"
        skipped = f" ({self.skipped} skipped)" if self.skipped else ""
        lines.append(
            f"{several(len(self.updates), 'update')}{skipped}, {several(self.micro_batches, 'micro-batch')}, "
            f"{several(self.examples, 'example')}{units}, mean loss {_short(self.loss)}"
        )
        if self.dropped_micro_batches:
            gone = several(self.dropped_micro_batches, "micro-batch"), several(self.dropped_examples, "example")
            lines.append(f"dropped: {', '.join(gone)}")
        return lines

    def __repr__(self) -> str:
        head, rows = self._table()
        widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
        lines = ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in (head, *rows)]
        return "\n".join(lines + self._summary())

    def _repr_html_(self) -> str:
        head, rows = self._table()
        top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        foot = "<br>".join(escape(line) for line in self._summary())
        return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table><p>{foot}</p>"


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.4g}"
