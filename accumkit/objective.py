"""What an update should minimise: a sum of losses, and the count it is divided by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from accumkit.batches import examples_in, tensors_in
from accumkit.errors import AccumkitError

__all__ = ["LABEL_KEYS", "AccumkitError", "Objective", "classification", "examples_in", "next_token", "regression",
           "target_of", "tensors_in"]  # fmt: skip


LABEL_KEYS = ("labels", "label", "targets", "target", "y")
SHORT = 128  # targets that are counted sooner as a list than by two tensor operations
NARROW = (torch.uint8, torch.int8, torch.int16, torch.int32)


def target_of(batch: Any) -> Tensor:
    """Return the target of a batch: a mapping's labels, a tuple's last entry, or the batch itself."""
    if isinstance(batch, (tuple, list)):
        if type(batch) is PackedSequence:  # a tuple, whose last entry says how its lines were sorted
            raise AccumkitError("no target in a batch that is a PackedSequence alone; yield (packed, targets)")
        return batch[-1]
    if isinstance(batch, Mapping):
        for key in LABEL_KEYS:
            if key in batch:
                return batch[key]
        raise AccumkitError(
            f"no target in a batch with the keys {sorted(map(str, batch))}; name it one of {', '.join(LABEL_KEYS)}, "
            "or write an Objective of your own"
        )
    return batch


@dataclass(frozen=True)
class Objective:
    """The quantity one update should minimise: (sum of losses in the window) / (count of the window).

    Parameters
    ----------
    loss : callable, optional
        ``loss(output, batch)``: the *summed* loss of a micro-batch, a scalar, from the model's output.
    count : callable
        ``count(batch)``: the number of units summed over, such as examples, valid tokens or class weights.
    total_loss : callable, optional
        ``total_loss(model, batch)``: the summed loss from the model, when a batch is not one forward call.
        Exactly one of ``loss`` and ``total_loss`` is needed.
    per_update : callable, optional
        ``per_update(model)``: a scalar that counts once an update, such as a regulariser.
    inputs : callable, optional
        ``inputs(batch)``: the positional arguments of forward, a tuple. By default all of a tuple but its
        last entry, the entries of a mapping that are not labels (by keyword), or the batch itself.
    unit : str
        What is counted, in the plural: "examples", "tokens", "class weights".

    Raises
    ------
    AccumkitError
        Neither or both of ``loss`` and ``total_loss`` given, or no ``count``.

    Examples
    --------
    >>> import accumkit as ak, torch, torch.nn.functional as F
    >>> objective = ak.Objective(
    ...     loss=lambda output, batch: F.cross_entropy(output, batch[1], reduction="sum"),
    ...     count=lambda batch: len(batch[1]))
    >>> objective.count((torch.zeros(4, 2), torch.tensor([0, 1, 1, 0])))
    4
    """

    loss: Callable[[Any, Any], Tensor] | None = None
    count: Callable[[Any], float] | None = None
    total_loss: Callable[[nn.Module, Any], Tensor] | None = None
    per_update: Callable[[nn.Module], Tensor] | None = None
    inputs: Callable[[Any], tuple] | None = None
    unit: str = "examples"

    def __post_init__(self) -> None:
        if (self.loss is None) == (self.total_loss is None):
            given = "neither" if self.loss is None else "both"
            raise AccumkitError(f"an Objective needs one of loss= and total_loss=; {given} was given")
        if self.count is None:
            raise AccumkitError(
                "an Objective needs count=: a function from a batch to the number of units its loss sums over, "
                "for example count=lambda batch: len(batch[1])"
            )

    def total(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the summed loss of ``batch``, a scalar attached to the graph."""
        if self.total_loss is not None:
            return self.total_loss(model, batch)
        if self.inputs is not None:
            return self.loss(model(*self.inputs(batch)), batch)
        if isinstance(batch, (tuple, list)) and not hasattr(batch, "to"):  # a PackedSequence is a tuple with .to
            return self.loss(model(*batch[:-1]) if len(batch) > 1 else model(batch[0]), batch)
        if isinstance(batch, Mapping):
            return self.loss(model(**{k: v for k, v in batch.items() if k not in LABEL_KEYS}), batch)
        return self.loss(model(batch), batch)


def full_precision(output: Any) -> Tensor:
    """Return a model's output, or the logits in it, with float16 and bfloat16 as float32.

    A sum of losses needs more range and digits than those have.
    """
    if not isinstance(output, Tensor):
        found = getattr(output, "logits", None)
        if not isinstance(found, Tensor):
            raise AccumkitError(
                f"the model gave a {type(output).__name__}, where this objective needs a tensor, or something with "
                "logits; write one that picks it: ak.Objective(loss=lambda output, batch: ..., count=...)"
            )
        output = found
    return output.float() if output.dtype in (torch.float16, torch.bfloat16) else output


def classes_of(target: Tensor) -> Tensor:
    """Return targets of a small type as int64: torch wraps the number they are compared with, and -100 is byte 156."""
    return target.long() if target.dtype in NARROW else target


def classification(
    class_weight: Tensor | None = None, ignore_index: int = -100, label_smoothing: float = 0.0
) -> Objective:
    """Cross entropy over classes; its count is what torch's mean divides by.

    Parameters
    ----------
    class_weight : Tensor of shape (classes,), optional
        A weight for each class; the count is then the sum of the weights of the valid targets.
    ignore_index : int
        Targets with this value count for nothing.
    label_smoothing : float
        As in ``torch.nn.functional.cross_entropy``.

    Returns
    -------
    Objective
        For outputs of shape (examples, classes, ...), or something with such ``logits``, and targets as a batch's
        last entry or its labels.

    Raises
    ------
    AccumkitError
        A class weight is negative.

    Examples
    --------
    >>> import accumkit as ak, torch
    >>> ak.classification().count((torch.zeros(3, 2), torch.tensor([0, -100, 1])))
    2
    """
    weights = {} if class_weight is None else {None: torch.as_tensor(class_weight).detach().clone()}
    if weights and (weights[None] < 0).any():
        raise AccumkitError(
            f"class_weight has a negative entry, {weights[None].min().item():g}, and examples of that class would be "
            "taken away from the count; give weights of 0 or more"
        )

    def weight_as(device: torch.device, dtype: torch.dtype) -> Tensor:
        if (device, dtype) not in weights:  # made once: a copy between devices for each micro-batch would wait
            weights[device, dtype] = weights[None].to(device, dtype)
        return weights[device, dtype]

    def loss(output: Tensor, batch: Any) -> Tensor:
        output = full_precision(output)
        weight = weight_as(output.device, output.dtype) if weights else None
        return F.cross_entropy(output, classes_of(target_of(batch)), weight=weight, ignore_index=ignore_index,
                               label_smoothing=label_smoothing, reduction="sum")  # fmt: skip

    def count(batch: Any) -> float:
        target = target_of(batch)
        if target.is_floating_point():  # class probabilities: torch's mean divides by the examples, weights or not
            return target.numel() // target.shape[1 if target.dim() > 1 else 0]
        if not weights and target.dim() == 1 and target.numel() <= SHORT and target.is_cpu:
            return target.numel() - target.tolist().count(ignore_index)
        target = classes_of(target)
        valid = target != ignore_index
        if not weights:
            return int(torch.count_nonzero(valid))
        return weight_as(target.device, torch.float64)[target[valid]].sum().item()

    return Objective(loss=loss, count=count, unit="examples" if class_weight is None else "class weights")


def next_token(
    ignore_index: int = -100, shift: bool = True, logits: Callable[[Any], Tensor] | None = None
) -> Objective:
    """Cross entropy over the next token; its count is the number of tokens that have a valid target.

    Parameters
    ----------
    ignore_index : int
        Labels with this value count for nothing (padding).
    shift : bool
        Position t predicts label t + 1 (the usual convention); False if the labels are shifted already.
    logits : callable, optional
        From the model's output to logits of shape (lines, tokens, vocabulary); by default ``output.logits``
        where there is one, else the output itself.

    Returns
    -------
    Objective
        For a batch that is a tensor of tokens, a tuple (tokens, labels), or a mapping with ``labels``; logits and
        labels whose lines and tokens differ in number are refused, since torch would pair the wrong ones.

    Examples
    --------
    >>> import accumkit as ak, torch
    >>> ak.next_token().count(torch.tensor([[5, 6, 7], [5, 6, -100]]))
    3
    """

    def labels_of(batch: Any) -> Tensor:
        labels = classes_of(target_of(batch))
        return labels[:, 1:] if shift else labels

    def loss(output: Any, batch: Any) -> Tensor:
        scores = full_precision(logits(output) if logits else output)
        scores, labels = scores[:, :-1] if shift else scores, labels_of(batch)
        if scores.shape[:-1] != labels.shape and labels.dim() > 1:  # labels made one row have their order already
            raise AccumkitError(
                f"logits of shape {tuple(scores.shape)} against labels of shape {tuple(labels.shape)}"
                f"{' (without the places that have no partner)' if shift else ''}: they are paired one by one, so "
                "give logits (lines, tokens, vocabulary) and labels (lines, tokens); where the model puts time first, "
                "next_token(logits=lambda output: output.transpose(0, 1))"
            )
        return F.cross_entropy(scores.flatten(0, -2), labels.flatten(), ignore_index=ignore_index, reduction="sum")

    def count(batch: Any) -> int:
        return int(torch.count_nonzero(labels_of(batch) != ignore_index))

    return Objective(loss=loss, count=count, unit="tokens")


def regression() -> Objective:
    """Squared error; its count is the number of target values, as torch's mean has it.

    Returns
    -------
    Objective
        For outputs and targets of one shape; another shape is refused, since torch would broadcast it.

    Examples
    --------
    >>> import accumkit as ak, torch
    >>> ak.regression().count((torch.zeros(4, 3), torch.zeros(4, 2)))
    8
    """

    def loss(output: Tensor, batch: Any) -> Tensor:
        output, target = full_precision(output), target_of(batch)
        if output.shape != target.shape:
            raise AccumkitError(
                f"outputs of shape {tuple(output.shape)} against targets of shape {tuple(target.shape)}: "
                "torch would broadcast one over the other; make the shapes equal (unsqueeze or squeeze one of them)"
            )
        return F.mse_loss(output, target, reduction="sum")

    return Objective(loss=loss, count=lambda batch: target_of(batch).numel(), unit="values")
