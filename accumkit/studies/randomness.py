"""Dropout under accumulation: other masks than the big batch's, drawn in the same way."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accumkit import tasks
from accumkit.studies import table
from accumkit.studies.nets import one_thread, seeded


@dataclass(frozen=True, repr=False)
class Masks:
    """Relative differences between accumulated and big-batch gradients of a network with dropout; a table."""

    same_seed: float  # one seed before the big pass, the same before the first micro-batch
    averages: dict[int, float]  # by the number of draws: the mean gradients of both, over so many draws
    repeated: float  # the most draws, with the seed set before each micro-batch: all get the same masks
    repeated_variance: float  # how much more the gradient then varies from draw to draw
    replayed: float  # each micro-batch again, with the generator's state from before it
    evaluation: float  # dropout off

    def __repr__(self) -> str:
        return table.plain(*self._table())

    def _repr_html_(self) -> str:
        return table.html(*self._table())

    def _table(self):
        rows = [("one big pass and N small ones, same seed", f"{self.same_seed:.1g}")]  # one draw: a digit is enough
        rows += [(f"their means over {n:,} draws", f"{d:.1g}") for n, d in self.averages.items() if n > 1]
        rows += [
            ("N small passes, run again from the saved generator states", table.small(self.replayed)),
            ("one big pass and N small ones, evaluation mode", table.small(self.evaluation)),
        ]
        return ("compared", "relative difference"), rows, ""


def compare(
    micro_batch_size: int = 8, dropout: float = 0.5, window: int = 64, draws: tuple[int, ...] = (1, 10, 100)
) -> Masks:
    """Compare accumulated with big-batch gradients of a network with dropout, in several ways.

    Parameters
    ----------
    micro_batch_size, window : int
    dropout : float
        The probability that a unit is left out.
    draws : tuple of int
        Over how many draws of the masks gradients are averaged.

    Returns
    -------
    Masks

    Examples
    --------
    >>> from accumkit.studies import randomness
    >>> found = randomness.compare(draws=(1, 16))
    >>> found.same_seed > 0.1, found.replayed, found.evaluation < 1e-12
    (True, 0.0, True)
    """
    images, labels = tasks.digits(window, dtype=torch.float64).tensors
    pieces = list(zip(images.split(micro_batch_size), labels.split(micro_batch_size), strict=True))
    with one_thread(), seeded(0):
        # Two layers that draw: with one, a CPU would draw the same masks in the same order, micro-batches or not.
        hidden = [part for _ in range(2) for part in (nn.Linear(64, 64), nn.ReLU(), nn.Dropout(dropout))]
        model = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, 10)).double()
        big, small, repeated = [], [], []
        for draw in range(max(draws)):
            for found, batches, every in (
                (big, [(images, labels)], False),
                (small, pieces, False),
                (repeated, pieces, True),
            ):
                torch.default_generator.manual_seed(draw)
                found.append(_gradient(model, batches, window, draw if every else None))
        rows = [torch.stack(found) for found in (big, small, repeated)]
        averages = {n: _apart(rows[1][:n].mean(0), rows[0][:n].mean(0)) for n in draws}
        torch.default_generator.manual_seed(0)
        states: list[Tensor] = []
        first = _gradient(model, pieces, window, keep=states)
        again = _gradient(model, pieces, window, replay=states)
        model.eval()
        off = _apart(_gradient(model, pieces, window), _gradient(model, [(images, labels)], window))
        varies = [row.var(0).sum() if len(row) > 1 else torch.tensor(1.0) for row in rows]
        return Masks(
            same_seed=_apart(rows[1][0], rows[0][0]),
            averages=averages,
            repeated=_apart(rows[2].mean(0), rows[0].mean(0)),
            repeated_variance=float(varies[2] / varies[1]),
            replayed=_apart(again, first),
            evaluation=off,
        )


def _gradient(
    model: nn.Module,
    batches: list[tuple[Tensor, Tensor]],
    count: int,
    seed: int | None = None,
    keep: list[Tensor] | None = None,
    replay: list[Tensor] | None = None,
) -> Tensor:
    """Return the gradient accumulated over batches, the generator set, kept or put back before each."""
    model.zero_grad()
    for i, (x, y) in enumerate(batches):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        if keep is not None:
            keep.append(torch.get_rng_state())
        if replay is not None:
            torch.set_rng_state(replay[i])
        (F.cross_entropy(model(x), y, reduction="sum") / count).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def _apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())
