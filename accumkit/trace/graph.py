"""Which forward calls a backward reaches, and whose graphs are still alive: by a tag on the graph itself."""

from __future__ import annotations

import weakref
from collections.abc import Sequence, Set
from typing import Any

from torch import Tensor

from accumkit.batches import tensors_in

KEY = "accumkit"  # in a node's metadata, a dictionary that torch keeps for whoever wants to note something there
MOST = 5000  # nodes looked at in one backward; beyond, the graph of the loss is no small one


class Tag:
    """Lives as long as the graph of one forward call's output."""

    __slots__ = ("__weakref__",)


UNTAGGED = Tag()  # stands for the graph of a forward call that was noted in short, or that gave nothing


def tag(output: Any) -> weakref.ref[Tag] | None:
    """Tag the graph of a forward's output; return a weak reference to the tag, None where there is no graph."""
    tensors = [output] if type(output) is Tensor else tensors_in(output)
    nodes = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    if not nodes:
        return None
    mark = Tag()
    for node in nodes:
        node.metadata.setdefault(KEY, []).append(mark)
    return weakref.ref(mark)


def reached(roots: Tensor | Sequence[Tensor]) -> set[Tag] | None:
    """Return the tags that a backward from ``roots`` passes; None where the graph is too large to tell."""
    roots = [roots] if isinstance(roots, Tensor) else roots
    stack = [root.grad_fn for root in roots if isinstance(root, Tensor) and root.grad_fn is not None]
    seen, found = set(stack), set()
    while stack:
        node = stack.pop()
        tags = node.metadata.get(KEY)
        if tags:
            found.update(tags)
            continue
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                stack.append(below)
        if len(seen) > MOST:
            return None
    return found


def passes_untagged(roots: Tensor | Sequence[Tensor], parameters: Set[int]) -> bool:
    """Say whether a backward passes the graph of a forward call that has no tag, beside any that have one.

    On its way to parameters (by id) it then meets no tag, and a node of the kind that the tagged ones begin with; a
    penalty on the parameters themselves has none of these.
    """
    stack = [root.grad_fn for root in tensors_in(roots) if root.grad_fn is not None]
    seen, tagged, kinds, found = set(stack), set(), set(), False
    while stack and len(seen) <= MOST:
        node = stack.pop()
        if node.metadata.get(KEY):
            tagged.add(node.name())
            continue
        kinds.add(node.name())
        found = found or id(getattr(node, "variable", None)) in parameters
        below = {child for child, _ in node.next_functions if child is not None} - seen
        seen |= below
        stack += below
    return found and (not tagged or not tagged.isdisjoint(kinds))
