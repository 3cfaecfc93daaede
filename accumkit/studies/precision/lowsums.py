"""Sums held in low precision: their error as N grows, where adding sticks, and what float32 sums cost."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accumkit import tasks
from accumkit.objective import AccumkitError
from accumkit.studies import table
from accumkit.studies.precision.problem import MICRO_BATCH

AT = (1, 2, 4, 16, 64, 256, 1024)
LOW = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of a window's gradients, each error relative to the length of what it is compared with."""

    micro_batches: int  # N
    in_grad: float  # added up in .grad, in the model's precision: against the same gradients added up in float64
    in_float32: float  # added up in float32: the same
    one_rounding: float  # the exact sum rounded once to the model's precision: the same
    true_in_grad: float  # against the gradients of the same model computed in float64
    true_in_float32: float


@dataclass(frozen=True, repr=False)
class Sums:
    """How the error of a sum grows with N."""

    dtype: str
    rows: tuple[Sum, ...]

    def at(self, micro_batches: int) -> Sum:
        """Return the row of one N."""
        return next(row for row in self.rows if row.micro_batches == micro_batches)

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]], str]:
        head = ("N", f"sum in {self.dtype}", "sum in float32", "rounded once", "v true: .grad", "v true: float32")
        small = table.small
        rows = [
            (str(r.micro_batches), small(r.in_grad), small(r.in_float32), small(r.one_rounding),
             small(r.true_in_grad), small(r.true_in_float32))
            for r in self.rows
        ]  # fmt: skip
        return head, rows, "Relative errors: of the sum of the same gradients, and against the true gradient."

    def __repr__(self) -> str:
        return table.plain(*self._table())

    def _repr_html_(self) -> str:
        return table.html(*self._table())


def sums(
    dtype: str = "bfloat16", at: Sequence[int] = AT, hidden: int = 64, seed: int = 0, device: str = "cpu",
    rounded: bool = False,
) -> Sums:  # fmt: skip
    """Add up the gradients of a model kept in low precision, in ``.grad`` and in float32 beside it.

    One pass serves every N: what stands in ``.grad`` after N micro-batches is the window of N, a constant apart.

    Parameters
    ----------
    dtype : {"bfloat16", "float16"}
    at : sequence of int
        The N to look at.
    hidden, seed : int
        The size of the perceptron, and its first parameters and data.
    device : str
    rounded : bool
        True takes each gradient as computed in float64 and rounded to ``dtype``, the best that a machine could do:
        the figures are then the same on all of them. False computes it in ``dtype``, as training does.

    Returns
    -------
    Sums

    Examples
    --------
    >>> from accumkit.studies import precision
    >>> result = precision.sums(at=(2, 16))
    >>> result.at(16).in_grad > result.at(2).in_grad, result.at(16).in_float32 < 1e-6
    (True, True)
    """
    if dtype not in LOW:
        raise AccumkitError(f"dtype={dtype!r}: give one of {', '.join(LOW)}")
    low = LOW[dtype]
    images, labels = (part.to(device) for part in tasks.digits(seed=seed).tensors)
    model = tasks.mlp(seed=seed, hidden=hidden).to(device, low)
    twin = deepcopy(model).double()
    in_grad = exact = side = true = torch.zeros((), dtype=low, device=device)
    rows = []
    for i in range(max(at)):
        chosen = (torch.arange(MICRO_BATCH, device=device) + MICRO_BATCH * i) % len(labels)
        x, y = images[chosen].to(low), labels[chosen]
        best = _gradient(twin, x.double(), y)
        given = best.to(low) if rounded else _gradient(model, x, y)
        in_grad = in_grad + given  # what autograd does to .grad, in its precision
        side = side + given.float()
        exact = exact + given.double()
        true = true + best
        if i + 1 in at:
            errors = [_apart(s, exact) for s in (in_grad, side, exact.to(low))]
            rows.append(Sum(i + 1, *errors, *(_apart(s, true) for s in (in_grad, side))))
    return Sums(dtype, tuple(rows))


def sticks(dtype: str = "bfloat16", step: float = 1.0, most: int = 5000) -> int | None:
    """Return the number at which adding ``step`` again and again changes nothing any more; None below ``most`` steps.

    Examples
    --------
    >>> from accumkit.studies import precision
    >>> precision.sticks("bfloat16"), precision.sticks("float16"), precision.sticks("float32")
    (256, 2048, None)
    """
    total, one = torch.zeros((), dtype=getattr(torch, dtype)), torch.tensor(step, dtype=getattr(torch, dtype))
    for _ in range(most):
        more = total + one
        if more == total:
            return int(total.item())
        total = more
    return None


@dataclass(frozen=True)
class Types:
    """What autocast computes in, and what it leaves alone."""

    output: str  # of the model's output
    parameter: str
    gradient: str  # of .grad, where the window is added up


def types(dtype: str = "bfloat16", autocast: bool = True, device: str = "cpu") -> Types:
    """Return the types that a step works in: under autocast, or with the model itself in ``dtype``.

    Examples
    --------
    >>> from accumkit.studies import precision
    >>> precision.types()
    Types(output='bfloat16', parameter='float32', gradient='float32')
    >>> precision.types(autocast=False)
    Types(output='bfloat16', parameter='bfloat16', gradient='bfloat16')
    """
    low = LOW[dtype]
    model = tasks.mlp(hidden=16).to(device, torch.float32 if autocast else low)
    x, y = (part.to(device) for part in tasks.digits(MICRO_BATCH).tensors)
    with torch.autocast(device, dtype=low, enabled=autocast):
        output = model(x if autocast else x.to(low))
    F.cross_entropy(output.float(), y).backward()
    parameter = next(model.parameters())
    return Types(*(str(d).removeprefix("torch.") for d in (output.dtype, parameter.dtype, parameter.grad.dtype)))


def _gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    output = model(x)
    loss = F.cross_entropy(output if output.dtype == torch.float64 else output.float(), y)
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])


def _apart(row: Tensor, reference: Tensor) -> float:
    return ((row.double() - reference).norm() / reference.norm()).item()


def bytes_of(model: nn.Module, dtype: torch.dtype = torch.float32) -> tuple[int, int]:
    """Return the bytes of a model's gradients in its own precision, and of sums of them in ``dtype``.

    Examples
    --------
    >>> import torch
    >>> from accumkit.studies import precision
    >>> precision.bytes_of(torch.nn.Linear(3, 4).bfloat16())
    (32, 64)
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    return sum(p.nbytes for p in trained), sum(p.numel() * dtype.itemsize for p in trained)
