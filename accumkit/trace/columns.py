"""A model's gradients as one row of numbers; of a large model a sample of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors  # private in name; what DistributedDataParallel flattens with

MOST = 32_768  # columns kept of a large model; 4,096 recover the shares of 64 micro-batches to 1e-6


def lowest(parameters: Sequence[nn.Parameter]) -> torch.dtype:
    """Return the parameters' lowest precision: no sum over all of them is more exact."""
    return max((p.dtype for p in parameters), key=lambda dtype: torch.finfo(dtype).eps)


class Columns:
    """Which entries of which gradients make up a row.

    Parameters
    ----------
    parameters : sequence of nn.Parameter
        The trainable ones, in order.
    most : int
        Columns at most; a larger model is sampled evenly, each parameter at least once.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], most: int = MOST) -> None:
        self.parameters = list(parameters)
        total = sum(p.numel() for p in self.parameters)
        self.complete = total <= most
        self.indices: list[Tensor | None] = []
        for p in self.parameters:
            if self.complete:
                self.indices.append(None)
            else:  # an odd stride, so that it does not run along one column of a weight
                step = max(1, -(-total // most)) | 1
                self.indices.append(torch.arange(0, p.numel(), min(step, max(1, p.numel() - 1)), device=p.device))
        self.sizes = [p.numel() if i is None else i.numel() for p, i in zip(self.parameters, self.indices, strict=True)]
        self.dtype = torch.float64 if lowest(self.parameters) == torch.float64 else torch.float32
        self.device = self.parameters[0].device
        self.joined = False  # at this step, other parameters than these or than those looked at take part
        self.plain = self.complete and all(p.dtype == self.dtype and p.device == self.device for p in self.parameters)

    def row(self, grads: Sequence[Tensor | None]) -> Tensor:
        """Return gradients, one a parameter, as a new row of shape (columns,); a gradient of None is zeros."""
        with torch.no_grad():
            if self.plain and all([g is not None and g.layout is torch.strided for g in grads]):
                return _flatten_dense_tensors(grads) if len(grads) > 1 else grads[0].reshape(-1).clone()
            pairs = zip(grads, self.parameters, strict=True)  # those of a copy in float64 are taken as they are
            wide = any(g is not None and g.dtype == torch.float64 != p.dtype for g, p in pairs)
            dtype = torch.float64 if wide else self.dtype
            parts = []
            for grad, index, size in zip(grads, self.indices, self.sizes, strict=True):
                if grad is None:
                    parts.append(torch.zeros(size, dtype=dtype, device=self.device))
                    continue
                flat = (grad.to_dense() if grad.layout != torch.strided else grad).detach().reshape(-1)
                flat = flat if index is None else flat[index]
                parts.append(flat.to(device=self.device, dtype=dtype))
            return torch.cat(parts)

    def covers(self, held: set[int]) -> Tensor | None:
        """Return the columns of the parameters whose ids are ``held``, as indices; None where those are all."""
        if all(id(p) in held for p in self.parameters):
            return None
        keep = [torch.full((size,), id(p) in held) for p, size in zip(self.parameters, self.sizes, strict=True)]
        return torch.cat(keep).nonzero()[:, 0].to(self.device)
