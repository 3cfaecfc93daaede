"""Which forward calls a backward reaches, and whose graphs are still alive: by a tag on the graph itself."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from accumkit.batches import tensors_in

KEY = "accumkit"  # in a node's metadata, a dictionary that torch keeps for whoever wants to note something there
MOST = 5000  # nodes looked at in one backward; beyond, the graph of the loss is no small one


class Tag:
    """Lives as long as the graph of one forward call's output."""

    __slots__ = ("__weakref__",)


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
