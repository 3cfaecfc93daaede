"""What goes on between the examples of a window: running statistics that move, and random masks that come again."""

from __future__ import annotations

from torch import nn

from accumkit.trace.pending import Open
from accumkit.trace.record import RunningStatistics


class Tracked:
    """Counts how often a model's running statistics move.

    Parameters
    ----------
    layers : list of (str, nn.Module)
        BatchNorm layers by name.
    """

    def __init__(self, layers: list[tuple[str, nn.Module]]) -> None:
        self.layers = [(name, layer) for name, layer in layers if layer.num_batches_tracked is not None]
        self.before = [int(layer.num_batches_tracked) for _, layer in self.layers]

    def moved(self) -> list[RunningStatistics]:
        """Return the layers whose running statistics have moved since, with how often."""
        found = zip(self.layers, self.before, strict=True)
        counts = [(name, layer.momentum, int(layer.num_batches_tracked) - before) for (name, layer), before in found]
        return [RunningStatistics(*entry) for entry in counts if entry[2] > 0]


def masks_of(window: Open) -> tuple[int, int]:
    """Return how many micro-batches drew random numbers in forward, and how many drew those of an earlier one."""
    seen: set[tuple] = set()
    drew = repeated = 0
    for held in window.held:
        piece = next((piece for piece in held.pieces if piece.drew), None)
        if piece is None:
            continue
        key = (*(state.numpy().tobytes() for state in piece.rng), repr(piece.others))
        drew += 1
        repeated += key in seen
        seen.add(key)
    return drew, repeated
