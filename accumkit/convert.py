"""BatchNorm layers turned into ones that leave the examples of a batch alone: GroupNorm, or their own frozen form."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from math import gcd

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # private in name, stable since torch 1.0; every BatchNorm is one

from accumkit.errors import AccumkitError

GROUPS = 32  # Wu and He's choice


class FrozenBatchNorm(nn.Module):
    """A BatchNorm that always uses its running statistics and never changes them, whatever mode the model is in.

    ``layer.eval()`` alone does not last: the next ``model.train()`` undoes it. Weight and bias still train. Names
    in the state dict are those of the BatchNorm it was made from.

    Parameters
    ----------
    layer : nn.BatchNorm1d, 2d, 3d or nn.SyncBatchNorm
        With running statistics of some training.

    Examples
    --------
    >>> import torch
    >>> from accumkit.convert import FrozenBatchNorm
    >>> layer = torch.nn.BatchNorm1d(3)
    >>> _ = layer(torch.randn(8, 3))
    >>> frozen, x = FrozenBatchNorm(layer).train(), torch.randn(4, 3)
    >>> torch.equal(frozen(x), layer.eval()(x))
    True
    """

    def __init__(self, layer: _BatchNorm) -> None:
        super().__init__()
        self.num_features, self.eps = layer.num_features, layer.eps
        self.weight, self.bias = layer.weight, layer.bias  # the same parameters: an optimizer that has them keeps them
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(layer, name))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the running statistics."""
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)

    def extra_repr(self) -> str:
        """What is printed between the parentheses."""
        return f"{self.num_features}, eps={self.eps}"


def replace_batchnorm(
    model: nn.Module, groups: int | Callable[[int], int] | None = None, frozen: bool = False
) -> nn.Module:
    """Turn every BatchNorm layer of a model into a GroupNorm, which treats each example by itself.

    The accumulated gradient of a model without BatchNorm is that of the big batch. Layers are replaced in place;
    the model is returned, since it may be a BatchNorm itself. Weights and biases are kept, as the same parameters.
    Running statistics have no place in a GroupNorm: a trained model must be trained on after this. SyncBatchNorm
    is replaced too: it joins the statistics of ranks, not those of micro-batches.

    Parameters
    ----------
    model : nn.Module
        Checked as a whole before anything is changed.
    groups : int or callable, optional
        Groups of channels, for every layer, or a function from a layer's channels to its groups. 32 by default.
        1 is LayerNorm over an example's channels and pixels; as many as channels is InstanceNorm.
    frozen : bool
        Keep BatchNorm with its running statistics, fixed for good (:class:`FrozenBatchNorm`), instead of GroupNorm.

    Returns
    -------
    nn.Module

    Raises
    ------
    AccumkitError
        There is no BatchNorm; a layer's channels cannot be divided into the groups; a lazy layer does not know its
        channels yet; or, with ``frozen``, a layer has no statistics of any training.

    Examples
    --------
    >>> import accumkit as ak, torch
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(1, 6, 3), torch.nn.BatchNorm2d(6), torch.nn.ReLU())
    >>> layer = ak.replace_batchnorm(model, groups=3)[1]
    >>> type(layer).__name__, layer.num_groups
    ('GroupNorm', 3)
    """
    found = {
        name: layer for name, layer in model.named_modules(remove_duplicate=False) if isinstance(layer, _BatchNorm)
    }
    if not found:
        raise AccumkitError(f"this {type(model).__name__} has no BatchNorm layer: there is nothing to replace")
    if frozen and groups is not None:
        raise AccumkitError(f"groups={groups!r} and frozen=True: a frozen BatchNorm has no groups; give one of the two")
    for name, layer in found.items():
        if not layer.num_features:
            raise AccumkitError(f"layer {name!r} is lazy and does not know its channels; run one batch through first")
    if frozen:
        _have_statistics(found)
        made = {id(layer): FrozenBatchNorm(layer) for layer in found.values()}
    else:
        chosen = _groups(found, GROUPS if groups is None else groups)
        _warn(found, chosen)
        made = {id(layer): _group_norm(layer, chosen[name]) for name, layer in found.items()}
    for name, layer in found.items():
        made[id(layer)].train(layer.training)
        if name:
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, made[id(layer)])
    return made[id(model)] if "" in found else model


def _groups(found: dict[str, _BatchNorm], groups: int | Callable[[int], int]) -> dict[str, int]:
    """Return each layer's groups, checked against its channels."""
    if not callable(groups) and (isinstance(groups, bool) or not isinstance(groups, int) or groups < 1):
        raise AccumkitError(f"groups={groups!r}: give a whole number of at least 1, or a function of the channels")
    chosen = {name: groups(layer.num_features) if callable(groups) else groups for name, layer in found.items()}
    whole = {name: isinstance(g, int) and not isinstance(g, bool) and g >= 1 for name, g in chosen.items()}
    wrong = [name for name, g in chosen.items() if not whole[name] or found[name].num_features % g]
    if wrong:
        shown = ", ".join(f"{name!r} has {found[name].num_features}" for name in wrong[:4])
        more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""
        common = gcd(*(layer.num_features for layer in found.values()))
        fitting = ", ".join(str(g) for g in range(1, common + 1) if common % g == 0)
        given = " and ".join(sorted({repr(chosen[name]) for name in wrong}))
        raise AccumkitError(
            f"{given} groups do not divide the channels of every layer ({shown}{more}); these divide them all: "
            f"{fitting}. Or give a function: groups=lambda channels: math.gcd(32, channels)"
        )
    return chosen


def _have_statistics(found: dict[str, _BatchNorm]) -> None:
    for name, layer in found.items():
        if layer.running_mean is None:
            raise AccumkitError(
                f"layer {name!r} keeps no running statistics (track_running_stats=False), so there is nothing to "
                "freeze; replace it by GroupNorm: leave out frozen=True"
            )
        if not int(layer.num_batches_tracked):
            raise AccumkitError(
                f"the running statistics of layer {name!r} are still the initial ones, mean 0 and variance 1; load "
                "trained weights, or run data through the model in training mode, before freezing it"
            )


def _warn(found: dict[str, _BatchNorm], chosen: dict[str, int]) -> None:
    """Say what a conversion loses."""
    trained = [n for n, layer in found.items() if layer.running_mean is not None and int(layer.num_batches_tracked)]
    if trained:
        warnings.warn(
            f"{len(trained)} of {len(found)} BatchNorm layers have running statistics of a training ({trained[0]!r} "
            "the first of them); GroupNorm has none, so the model's outputs change: train it on, or keep the "
            "statistics with frozen=True",
            stacklevel=3,
        )
    alone = [n for n, layer in found.items() if isinstance(layer, nn.BatchNorm1d) and chosen[n] == layer.num_features]
    if alone:
        warnings.warn(
            f"layer {alone[0]!r} gets groups of a single channel: where an example has one value a channel, as after a "
            "Linear layer, each value is normalised by itself, to 0; give fewer groups",
            stacklevel=3,
        )


def _group_norm(layer: _BatchNorm, groups: int) -> nn.GroupNorm:
    norm = nn.GroupNorm(groups, layer.num_features, layer.eps, affine=layer.affine)
    if layer.affine:
        norm.weight, norm.bias = layer.weight, layer.bias  # the same parameters: an optimizer that has them keeps them
    return norm
