"""Two variants of BatchNorm that make plain what accumulation does to it: ghost batches, and deferred statistics."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # private in name; for inputs of any dimensions


class GhostBatchNorm(_BatchNorm):
    """BatchNorm over ghost batches: a batch is normalised in pieces of ``ghost`` examples, each by itself.

    This is what accumulation makes of BatchNorm, with the micro-batch as the ghost batch (Hoffer and others, 2017,
    "Train longer, generalize better").

    Parameters
    ----------
    num_features : int
        Channels.
    ghost : int
        Examples in a ghost batch; the last one may be shorter.

    Examples
    --------
    >>> import torch
    >>> from accumkit.studies.layers import GhostBatchNorm
    >>> x = torch.randn(8, 3)
    >>> torch.equal(GhostBatchNorm(3, ghost=4)(x)[:4], torch.nn.BatchNorm1d(3)(x[:4]))
    True
    """

    def __init__(self, num_features: int, ghost: int, **options) -> None:
        super().__init__(num_features, **options)
        self.ghost = ghost

    def _check_input_dim(self, x: Tensor) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each ghost batch; in evaluation mode, by the running statistics."""
        if not self.training:
            return super().forward(x)
        return torch.cat([super(GhostBatchNorm, self).forward(piece) for piece in x.split(self.ghost)])


class DeferredBatchNorm(_BatchNorm):
    """BatchNorm whose running statistics wait for the boundary: one update of them for each optimizer update.

    Each micro-batch is still normalised by itself, so gradients are those of a plain BatchNorm. Its mean and its
    squared deviations are pooled, and :meth:`commit` at the window's end moves the running statistics once, as the
    big batch would. (GPipe's reference code does so too, with one difference: its variance is not the unbiased one.)

    Parameters
    ----------
    num_features : int
        Channels.

    Examples
    --------
    >>> import torch
    >>> from accumkit.studies.layers import DeferredBatchNorm
    >>> x, deferred, big = torch.randn(8, 3), DeferredBatchNorm(3), torch.nn.BatchNorm1d(3)
    >>> for piece in x.split(2):
    ...     _ = deferred(piece)
    >>> deferred.commit()
    >>> _ = big(x)
    >>> torch.allclose(deferred.running_var, big.running_var), int(deferred.num_batches_tracked)
    (True, 1)
    """

    def __init__(self, num_features: int, **options) -> None:
        super().__init__(num_features, **options)
        self._pooled: tuple[int, Tensor, Tensor] | None = None  # values a channel, their mean, squared deviations

    def _check_input_dim(self, x: Tensor) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the micro-batch's own statistics; in evaluation mode, by the running ones."""
        if not self.training:
            return super().forward(x)
        self._pool(x.detach())
        return F.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps)

    def commit(self) -> None:
        """Move the running statistics once, by what was pooled since the last commit; nothing pooled, nothing moved."""
        if self._pooled is None:
            return
        values, mean, squares = self._pooled
        self._pooled = None
        self.num_batches_tracked.add_(1)
        momentum = 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(squares / max(values - 1, 1), momentum)

    def _pool(self, x: Tensor) -> None:
        """Add a micro-batch to the pool, in the form that does not subtract large numbers (Chan and others, 1979)."""
        over = [0, *range(2, x.dim())]
        values, mean = x.numel() // x.shape[1], x.mean(over)
        squares = (x - mean.reshape(1, -1, *[1] * (x.dim() - 2))).square().sum(over)
        if self._pooled is not None:
            before, earlier, sum_before = self._pooled
            total, apart = before + values, mean - earlier
            squares = sum_before + squares + apart.square() * before * values / total
            values, mean = total, earlier + apart * values / total
        self._pooled = values, mean, squares


def commit(model: nn.Module) -> None:
    """Commit every deferred layer of a model: call it where the optimizer steps."""
    for layer in model.modules():
        if isinstance(layer, DeferredBatchNorm):
            layer.commit()
