"""What a loop costs beside the hand-written one, on a 64-64-10 MLP with micro-batches of 8."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

import accumkit as ak

from .rounds import interleaved, table

N = 4
LIMITS = {"train_epoch": 1.03, "train_epoch, buffered=False": 1.03}


def mlp() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a fresh MLP and its optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def data(micro_batches: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return micro-batches of 8."""
    torch.manual_seed(1)
    return [(torch.randn(8, 64), torch.randint(0, 10, (8,))) for _ in range(micro_batches)]


def hand_written(batches: list) -> Callable[[], None]:
    model, optimizer = mlp()

    def run() -> None:
        for i, (x, y) in enumerate(batches):
            (F.cross_entropy(model(x), y) / N).backward()
            if (i + 1) % N == 0:
                optimizer.step()
                optimizer.zero_grad()

    return run


def six_lines(batches: list) -> Callable[[], None]:
    model, optimizer = mlp()
    objective = ak.classification()

    def run() -> None:
        for window in ak.windows(batches, N, objective):
            optimizer.zero_grad()
            for batch in window:
                (objective.total(model, batch) / window.count).backward()
            optimizer.step()

    return run


def train_epoch(batches: list, buffered: bool) -> Callable[[], None]:
    model, optimizer = mlp()
    objective = ak.classification()
    return lambda: ak.train_epoch(
        model, batches, optimizer, objective, accumulation_steps=N, buffered=buffered
    )  # fmt: skip


def accelerate(batches: list) -> Callable[[], None]:
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=N, cpu=True)
    model, optimizer = accelerator.prepare(*mlp())

    def run() -> None:
        for x, y in batches:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()

    return run


def fabric(batches: list) -> Callable[[], None]:
    from lightning_fabric import Fabric

    runner = Fabric(accelerator="cpu", devices=1)
    model, optimizer = runner.setup(*mlp())

    def run() -> None:
        for i, (x, y) in enumerate(batches):
            waiting = (i + 1) % N != 0
            with runner.no_backward_sync(model, enabled=waiting):
                runner.backward(F.cross_entropy(model(x), y) / N)
            if not waiting:
                optimizer.step()
                optimizer.zero_grad()

    return run


def bench(quick: bool) -> str:
    """Return the table of loops."""
    batches = data(200)
    runs = {
        "hand-written": hand_written(batches),
        "hand-written again": hand_written(batches),
        "windows, six lines": six_lines(batches),
        "train_epoch": train_epoch(batches, True),
        "train_epoch, buffered=False": train_epoch(batches, False),
    }
    left_out = []
    for name, package, make in (("Accelerate", "accelerate", accelerate), ("Fabric", "lightning_fabric", fabric)):
        if importlib.util.find_spec(package):
            version = importlib.import_module(package).__version__
            runs[f"{name} {version}"] = make(batches)
        else:
            left_out.append(f"  {name}: not installed, left out (pip install 'accumkit[frameworks]')")
    title = f"Loops: 64-64-10 MLP, micro-batches of 8, N = {N}, SGD with momentum, torch {torch.__version__}, 1 thread"
    return "\n".join([table(title, interleaved(runs, len(batches), 15 if quick else 101, LIMITS)), *left_out])
