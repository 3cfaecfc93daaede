"""The data that a simulation runs on: digits or lines of text, cut into equal or unequal micro-batches."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from accumkit import tasks
from accumkit.pitfalls.bases import Base
from accumkit.pitfalls.plan import Plan
from accumkit.pitfalls.settings import Settings

UNEQUAL = (1.0, 0.5, 1.5, 0.75, 1.25)  # of the micro-batch size, over and over


def sizes_of(examples: int, size: int, unequal: bool) -> list[int]:
    """Return the examples in each micro-batch of a pass.

    Examples
    --------
    >>> from accumkit.pitfalls.data import sizes_of
    >>> sizes_of(19, 4, unequal=False), sizes_of(19, 4, unequal=True)
    ([4, 4, 4, 4, 3], [4, 2, 6, 3, 4])
    """
    sizes: list[int] = []
    while examples:
        wanted = max(1, round(size * UNEQUAL[len(sizes) % len(UNEQUAL)])) if unequal else size
        sizes.append(min(wanted, examples))
        examples -= sizes[-1]
    return sizes


def loader_of(settings: Settings, base: Base) -> DataLoader:
    """Return the loader of a run."""
    if base.task == "tokens":
        return _lines(settings, base)
    data = tasks.digits(settings.examples, settings.torch_dtype, settings.seed)
    images, labels = (t.to(settings.device) for t in data.tensors)
    sizes = sizes_of(settings.examples, settings.micro_batch_size, settings.unequal)
    broken = _flawed(sizes, settings.accumulation_steps, base.flaw)
    if broken is not None:
        first = sum(sizes[:broken])
        images = images.clone()
        images[first] = torch.nan
    data = TensorDataset(images, labels)
    own = _own_generator()
    if not settings.unequal:
        return DataLoader(data, settings.micro_batch_size, generator=own)
    return DataLoader(data, batch_sampler=_chunks(sizes), generator=own)


def plan_of(settings: Settings, base: Base, loader: DataLoader) -> Plan:
    """Return what a loop will see."""
    objective = base.objective()
    batches = list(loader)
    return Plan(
        counts=tuple(objective.count(batch) for batch in batches),
        sizes=tuple(len(batch[1]) for batch in batches),
        steps=settings.accumulation_steps,
        epochs=settings.epochs,
    )


def _lines(settings: Settings, base: Base) -> DataLoader:
    zen = tasks.zen()
    order = torch.randperm(len(zen), generator=torch.Generator().manual_seed(settings.seed)).tolist()
    chosen = [order[i % len(order)] for i in range(settings.examples)]
    sizes = sizes_of(settings.examples, settings.micro_batch_size, settings.unequal)
    empty = _flawed(sizes, settings.accumulation_steps, base.flaw)
    silent = set() if empty is None else set(_chunks(sizes)[empty])
    data = [(zen[line], i in silent) for i, line in enumerate(chosen)]

    def collate(lines: list[tuple[Tensor, bool]]) -> tuple[Tensor, Tensor]:
        tokens, labels = zen.collate([line for line, _ in lines])
        labels[torch.tensor([silent for _, silent in lines])] = tasks.IGNORED
        return tokens.to(settings.device), labels.to(settings.device)

    return DataLoader(data, batch_sampler=_chunks(sizes), collate_fn=collate, generator=_own_generator())


def _own_generator() -> torch.Generator:
    """Return one that a loader draws from instead of the global one, which a loop's dropout may need undisturbed."""
    return torch.Generator().manual_seed(0)


def _chunks(sizes: list[int]) -> list[list[int]]:
    stops = torch.tensor(sizes).cumsum(0).tolist()
    return [list(range(stop - size, stop)) for size, stop in zip(sizes, stops, strict=True)]


def _flawed(sizes: list[int], steps: int, flaw: str | None) -> int | None:
    """Return the micro-batch that a base's flaw is put in; None where it would be alone in its window."""
    if flaw == "broken later":  # an update must have been made before
        return steps if len(sizes) > steps else None
    return 1 if flaw and steps > 1 and len(sizes) > 1 else None
