"""Clipping written by hand: told from dividing the gradients by looking at a whole run."""

from __future__ import annotations

from math import isfinite
from operator import attrgetter

from accumkit.trace.record import Update

NEAR = 1e-4  # relative; gradient norms of clipped updates agree to rounding
CLOSE = 1e-3  # two factors this near are one


def tell_hand_clipping(updates: list[Update]) -> list[Update]:
    """Return the updates with clipping by hand taken out of their shares.

    After the last backward a loop may divide ``.grad`` by the count, clip it by hand, or both: at one step they look
    alike. Over a run they do not. Clipped updates all end at one gradient norm, which no other exceeds. What was done
    by hand is all clip, and no division, where some update of several micro-batches was left as it was, or weighs
    more than it should for all that, or where none does without it. Else the clip is what is left of the weights once
    every update is divided as it should be. And where a short window's fair gradient is multiplied by its part of a
    full one, that is a division and no clip.
    """
    updates = _divided(updates)
    cut = _all_clip(updates)
    if cut:
        return [_unclipped(u, u.by_hand) if i in cut and u.clip_factor is None else u for i, u in enumerate(updates)]
    common = [_common_weight(update) for update in updates]
    clipped = [i for i, f in enumerate(common) if f is not None and f < 1 - CLOSE]
    fair = [i for i, f in enumerate(common) if f is not None and abs(f - 1) <= CLOSE]
    known = sum(f is not None for f in common)
    if not clipped or len(clipped) + len(fair) < known:
        return updates
    known_clips = [u for u in updates if u.clip_factor is not None and _plain(u)]  # told at their own step
    together = [*(updates[i] for i in clipped), *known_clips]
    factors = [*(common[i] for i in clipped), *(u.clip_factor for u in known_clips)]
    if not _one_limit(together, factors, [updates[i] for i in fair]):
        return updates
    told = list(updates)
    for i in clipped:
        told[i] = _unclipped(updates[i], common[i])
    return told


def _all_clip(updates: list[Update]) -> set[int]:
    """Return the indices of updates for which all that was done by hand is a clip; none where it may be a division."""
    plain = {i: u for i, u in enumerate(updates) if _plain(u)}
    cut = {i: u for i, u in plain.items() if u.by_hand is not None}
    alone = [u for i, u in plain.items() if i not in cut]
    factors = [u.by_hand for u in cut.values()]
    if not cut or not all(0 < f < 1 - CLOSE for f in factors) or not _one_limit([*cut.values()], factors, alone):
        return set()
    undivided = any(u.accumulated > 1 and u.count > 1 for u in alone)  # dividing by 1 leaves no trace
    undivided = undivided or any(_total(u) > 1 + CLOSE for u in cut.values())  # no clip makes a fair gradient longer
    weighed = [_total(u) / (u.by_hand if u.clip_factor is None else 1.0) for u in cut.values()]
    return set(cut) if undivided or max(weighed) <= 1 + CLOSE else set()


def _one_limit(clipped: list[Update], factors: list[float], others: list[Update]) -> bool:
    """Whether some updates end at one norm, by factors that differ, and no other update exceeds it."""
    norms = [u.grad_norm * (u.clip_factor or 1.0) for u in clipped]
    limit = max(norms)
    if min(norms) < limit * (1 - NEAR) or any(u.grad_norm > limit * (1 + NEAR) for u in others):
        return False
    if len(clipped) > 1:
        return max(factors) - min(factors) >= CLOSE * max(factors)  # one constant is a division
    steps = clipped[0].accumulated  # one update alone could also be divided by a wrong count
    ratios = [j / n for n in range(1, 2 * steps + 2) for j in range(1, n)]
    return len(others) > 1 and all(abs(factors[0] - ratio) >= CLOSE for ratio in ratios)


def _divided(updates: list[Update]) -> list[Update]:
    """Return the updates with what was taken for clips by hand of short windows put into their shares, if it is none.

    It is none where each such window is multiplied by its micro-batches, or its count, over those of the largest.
    """
    short = [u for u in updates if u.clip_factor is not None]
    if not short or len(short) == len(updates) or any(u.max_norm is not None or not u.cosine for u in short):
        return updates
    for size in (attrgetter("accumulated"), attrgetter("count")):
        full = max(size(u) or 0 for u in updates)
        if full and all(size(u) < full and abs(u.clip_factor * full / size(u) - 1) <= CLOSE for u in short):
            return [_weighed(u, u.clip_factor) if u.clip_factor is not None else u for u in updates]
    return updates


def _weighed(update: Update, factor: float) -> Update:
    """Return an update with a factor in its shares."""
    return _unclipped(update, 1 / factor)._replace(clip_factor=None, clip_scale=None)


def _plain(update: Update) -> bool:
    """Whether an update was measured and its gradient only multiplied as a whole, by hand or not at all."""
    clip, shares = update.clip_factor, [m.share for m in update.micro_batches]
    if update.carried or not shares or None in shares or any(m.fate != "kept" for m in update.micro_batches):
        return False
    if not all(map(isfinite, shares)) or _total(update) <= 0 or not update.cosine or not update.grad_norm:
        return False
    return clip is None or (update.by_hand is not None and abs(clip / update.by_hand - 1) <= CLOSE)


def _total(update: Update) -> float:
    """Return what its examples weigh on average."""
    return sum(m.share for m in update.micro_batches)


def _common_weight(update: Update) -> float | None:
    """Return what the examples of an update weigh, where nothing else happened.

    They all weigh the same, or their gradient was multiplied by hand: then it is what they weigh on average.
    """
    if update.clip_factor is not None or not _plain(update):
        return None
    weights = [m.weight for m in update.micro_batches if m.count]
    if update.by_hand is None and max(weights) - min(weights) > CLOSE * max(weights):
        return None
    return _total(update)


def _unclipped(update: Update, factor: float) -> Update:
    ratio = update.gradient_ratio / factor
    length = ratio / update.cosine  # |G| / |R|
    return update._replace(
        micro_batches=tuple(m._replace(share=m.share / factor) for m in update.micro_batches),
        gradient_ratio=ratio,
        relative_error=max(0.0, length**2 - 2 * ratio + 1) ** 0.5,
        rounding=None if update.rounding is None else update.rounding / factor,
        auxiliary=None if update.auxiliary is None else update.auxiliary / factor,
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
