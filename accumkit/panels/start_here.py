"""Lesson 00: one control that answers."""

from __future__ import annotations

import torch

from accumkit import tasks
from accumkit.figures.numbers import grouped
from accumkit.figures.picture import weights_picture
from accumkit.loops import train_epoch
from accumkit.objective import classification
from accumkit.panels.base import Answer, Panel, slider
from accumkit.trace.watch import watch

EXAMPLES, MICRO_BATCH_SIZE = 30, 4  # a last micro-batch of 2: a bar of another width


def start_here(strict: bool | None = None) -> Panel:
    """Return the panel of lesson 00: how many micro-batches make an update, and what comes of it.

    Every move of the slider trains a small model on 30 handwritten digits and watches it.

    Parameters
    ----------
    strict : bool, optional
        See :class:`accumkit.panels.Panel`.

    Returns
    -------
    Panel

    Examples
    --------
    >>> from accumkit import panels
    >>> panels.start_here().answered.sentence
    'N = 4: 30 examples in 8 micro-batches of at most 4 make 2 updates, of 16 and 14 examples.'
    """
    data = None
    picture = weights_picture(height=176)

    def answer(accumulation_steps: int) -> Answer:
        nonlocal data
        data = data or tasks.digits(EXAMPLES, dtype=torch.float64)
        model = tasks.mlp(dtype=torch.float64)
        objective = classification()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = tasks.loader(data, MICRO_BATCH_SIZE)
        with watch(model, objective, accumulation_steps=accumulation_steps) as trace:
            log = train_epoch(model, loader, optimizer, objective, accumulation_steps=accumulation_steps)
        sizes = [update.examples for update in log.updates]
        sentence = (
            f"N = {accumulation_steps}: {sum(sizes)} examples in {log.micro_batches} micro-batches of at most "
            f"{MICRO_BATCH_SIZE} make {grouped(sizes, 'updates', 'examples')}."
        )
        return Answer(sentence, (picture.html(trace),))

    steps = slider("Accumulation steps N", 4, 1, 8, "How many micro-batches make one update")
    return Panel("start-here", {"accumulation_steps": steps}, answer, strict=strict)
