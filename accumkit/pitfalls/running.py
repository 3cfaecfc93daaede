"""A loop run for real on a fresh model, watched or not."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from accumkit import tasks
from accumkit.objective import AccumkitError
from accumkit.pitfalls.bases import Base
from accumkit.pitfalls.data import loader_of
from accumkit.pitfalls.settings import MODELS, OPTIMIZERS, Settings
from accumkit.trace.record import Trace
from accumkit.trace.watch import watch


@dataclass(frozen=True)
class Run:
    """What a run leaves."""

    trace: Trace | None  # None where it was not watched
    start: Tensor  # the parameters before, in one row, float64, on the CPU
    end: Tensor  # after
    learning_rate: float  # at the end
    kept: int  # bytes of activations that the graph of what train returns still holds
    loss: float | None  # the mean over all units of the data, after training; None where it was watched
    warnings: tuple[str, ...]  # that were given


def run(module: ModuleType, base: Base, settings: Settings, watched: bool = True) -> Run:
    """Run a loop.

    Parameters
    ----------
    module : ModuleType
        With ``train(model, loader, optimizer, accumulation_steps, epochs)``, and ``build()`` if ``base.builds``.
    base : Base
        Gives data and objective.
    settings : Settings
        Complete: without None.
    watched : bool
        Whether to trace it.

    Returns
    -------
    Run

    Raises
    ------
    AccumkitError
        The loop raised.
    """
    with undisturbed(settings), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = loader_of(settings, base)
        model = _model(module, base, settings)
        optimizer = OPTIMIZERS[settings.optimizer](model.parameters())
        objective = base.objective()
        steps, start = settings.accumulation_steps, _row(model)
        watching = watch(model, objective, accumulation_steps=steps) if watched else contextlib.nullcontext()
        try:
            with watching as trace:
                returned = module.train(model, loader, optimizer, steps, settings.epochs)
        except Exception as error:
            raise AccumkitError(
                f"{module.__name__}.py raised {type(error).__name__}: {error} ({settings.text}); try other settings"
            ) from error
        end, loss = _row(model), None if watched else _loss(model, loader, base)
    return Run(
        trace,
        start,
        end,
        optimizer.param_groups[0]["lr"],
        _kept(returned),
        loss,
        tuple(dict.fromkeys(str(w.message) for w in caught)),
    )


@contextlib.contextmanager
def undisturbed(settings: Settings) -> Iterator[None]:
    """Seed every random generator in a block and compute with one thread; leave all as it was."""
    threads, pythons = torch.get_num_threads(), random.getstate()
    cuda = [torch.device(settings.device)] if settings.device.startswith("cuda") else []
    with torch.random.fork_rng(devices=cuda):
        torch.set_num_threads(1)  # two threads on a busy machine can take many times as long
        torch.manual_seed(settings.seed)
        random.seed(settings.seed)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            random.setstate(pythons)


def _model(module: ModuleType, base: Base, settings: Settings) -> nn.Module:
    if base.builds:
        model = module.build()
        if len(base.dtypes) > 1:  # else its source chooses the precision
            model = model.to(settings.torch_dtype)
    elif base.task == "tokens":
        model = tasks.next_token_model(seed=settings.seed, dtype=settings.torch_dtype)
    else:
        model = MODELS[settings.model](seed=settings.seed, dtype=settings.torch_dtype)
    return model.to(settings.device)


def _row(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten().double().cpu() for p in model.parameters()])


def _kept(returned: Any) -> int:
    """Return the bytes of the tensors that a graph has saved, those of parameters apart."""
    saved: dict[int, int] = {}
    parameters: set[int] = set()
    waiting, known = [getattr(returned, "grad_fn", None)], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in known:
            continue
        known.add(node)
        waiting += [other for other, _ in node.next_functions]
        if isinstance(variable := getattr(node, "variable", None), Tensor):
            parameters.add(variable.untyped_storage().data_ptr())
        for name in dir(node):
            if name.startswith("_saved_"):
                with contextlib.suppress(RuntimeError):  # freed by a backward
                    if isinstance(tensor := getattr(node, name), Tensor):
                        storage = tensor.untyped_storage()
                        saved[storage.data_ptr()] = storage.nbytes()
    return sum(size for place, size in saved.items() if place not in parameters)


def _loss(model: nn.Module, loader: DataLoader, base: Base) -> float:
    """Return the mean loss over the data that are not broken."""
    objective, total, count = base.objective(), 0.0, 0.0
    model.eval()
    with torch.no_grad():
        for batch in loader:
            if batch[0].is_floating_point():
                batch = [t[batch[0].flatten(1).isfinite().all(1)] for t in batch]
                batch[0] = batch[0].to(next(model.parameters()).dtype)
            if len(batch[0]):
                total += objective.total(model, batch).item()
                count += objective.count(batch)
    return total / count if count else float("nan")
