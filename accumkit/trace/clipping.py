"""Clipping written by hand: told from dividing the gradients by looking at a whole run."""

from __future__ import annotations

from math import isfinite
from operator import attrgetter

from accumkit.trace.record import Update

NEAR = 1e-4  # relative; gradient norms of clipped updates agree to rounding


def tell_hand_clipping(updates: list[Update]) -> list[Update]:
    """Return the updates with clipping by hand taken out of their shares.

    After the last backward a loop may divide ``.grad`` by the count, clip it by hand, or both: at one step they look
    alike. Over a run they do not. Where every example of an update weighs the same f < 1, where all such updates
    end at one gradient norm, and where every other update weighs 1 and stays below that norm, f is a clip. And where
    a short window's fair gradient is multiplied by its part of a full one, that is a division and no clip.
    """
    updates = _divided(updates)
    common = [_common_weight(update) for update in updates]
    clipped = [i for i, f in enumerate(common) if f is not None and f < 1 - 1e-3]
    fair = [i for i, f in enumerate(common) if f is not None and abs(f - 1) <= 1e-3]
    known = sum(f is not None for f in common)
    if not clipped or len(clipped) + len(fair) < known:
        return updates
    norms = [updates[i].grad_norm for i in clipped]
    limit = max(norms)
    if min(norms) < limit * (1 - NEAR) or any(updates[i].grad_norm > limit * (1 + NEAR) for i in fair):
        return updates
    factors = [common[i] for i in clipped]
    if len(clipped) == 1:  # one update alone could also be divided by a wrong count
        steps = updates[clipped[0]].accumulated
        ratios = [j / n for n in range(1, 2 * steps + 2) for j in range(1, n)]
        if len(fair) < 2 or any(abs(factors[0] - ratio) < 1e-3 for ratio in ratios):
            return updates
    elif max(factors) - min(factors) < 1e-3 * max(factors):
        return updates  # one constant is a division
    told = list(updates)
    for i in clipped:
        told[i] = _unclipped(updates[i], common[i])
    return told


def _divided(updates: list[Update]) -> list[Update]:
    """Return the updates with what was taken for clips by hand of short windows put into their shares, if it is none.

    It is none where each such window is multiplied by its micro-batches, or its count, over those of the largest.
    """
    short = [u for u in updates if u.clip_factor is not None]
    if not short or len(short) == len(updates) or any(u.max_norm is not None or not u.cosine for u in short):
        return updates
    for size in (attrgetter("accumulated"), attrgetter("count")):
        full = max(size(u) or 0 for u in updates)
        if full and all(size(u) < full and abs(u.clip_factor * full / size(u) - 1) <= 1e-3 for u in short):
            return [_weighed(u, u.clip_factor) if u.clip_factor is not None else u for u in updates]
    return updates


def _weighed(update: Update, factor: float) -> Update:
    """Return an update with a factor in its shares."""
    return _unclipped(update, 1 / factor)._replace(clip_factor=None, clip_scale=None)


def _common_weight(update: Update) -> float | None:
    """Return what every example of an update weighs, where that is one number and nothing else happened."""
    weights = [m.weight for m in update.micro_batches if m.fate == "kept" and m.count]
    plain = update.clip_factor is None and not update.carried and len(weights) == update.accumulated
    if not plain or not weights or None in weights or not all(map(isfinite, weights)) or max(weights) <= 0:
        return None
    return weights[0] if max(weights) - min(weights) <= 1e-3 * max(weights) else None


def _unclipped(update: Update, factor: float) -> Update:
    ratio = update.gradient_ratio / factor
    length = ratio / update.cosine  # |G| / |R|
    return update._replace(
        micro_batches=tuple(m._replace(share=m.share / factor) for m in update.micro_batches),
        gradient_ratio=ratio,
        relative_error=max(0.0, length**2 - 2 * ratio + 1) ** 0.5,
        grad_norm=update.grad_norm / factor,
        clip_factor=factor,
        clip_scale=_scale(update, factor),
    )


def _scale(update: Update, factor: float) -> float:
    """Return what the gradient was multiplied by when it was clipped by hand: 1, unless a scaler's scale was in it."""
    scale = update.micro_batches[-1].scale
    if scale is None or update.hand_scaled is None:
        return 1.0
    divided = (1, update.count, update.accumulated)  # by hand too, before it was unscaled
    return scale if any(abs(update.hand_scaled * by / factor - 1) <= 1e-3 for by in divided) else 1.0
