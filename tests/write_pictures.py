"""Draw the picture of the README from real runs: `python -m tests.write_pictures`."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

import accumkit as ak
from accumkit import tasks
from accumkit.figures import palette
from accumkit.figures.gallery import gallery

PLACE = Path(__file__).parents[1] / "notebooks" / "images" / "weights.png"
EXAMPLES, MICRO_BATCH_SIZE, STEPS = 19, 4, 3


def right(model, batch, window):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="sum") / window.count


def undivided(model, batch, window):
    return F.cross_entropy(model(batch[0]), batch[1])


def divided_by_the_full_number(model, batch, window):
    return F.cross_entropy(model(batch[0]), batch[1]) / STEPS


def run(loss, drop_tail: bool = False):
    """Train on 19 digits with a loss, watched; return the trace."""
    model = tasks.mlp(dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = tasks.loader(tasks.digits(EXAMPLES, dtype=torch.float64), MICRO_BATCH_SIZE)
    objective = ak.classification()
    with ak.watch(model, objective, accumulation_steps=STEPS) as trace:
        for window in ak.windows(loader, STEPS, objective):
            for batch in window:
                loss(model, batch, window).backward()
            if not (drop_tail and window.is_tail):
                optimizer.step()
            optimizer.zero_grad()
    return trace


def traces() -> dict[str, object]:
    """Return the runs that the picture shows, by name."""
    return {
        "The right loop": run(right),
        "missing-division": run(undivided),
        "tail-divisor and mean-of-means": run(divided_by_the_full_number),
        "tail-dropped": run(right, drop_tail=True),
    }


if __name__ == "__main__":
    PLACE.parent.mkdir(exist_ok=True)
    palette.to_png(gallery(traces()), PLACE, dpi=120)
    print(f"{PLACE.name}: {PLACE.stat().st_size / 1000:.0f} kB")
