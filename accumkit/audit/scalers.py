"""Rules about gradient scalers: one scale for a whole window, one scaler for a whole run, and steps that it skips."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from accumkit.audit.findings import Finding, number, several
from accumkit.audit.reading import Case
from accumkit.audit.saying import ORDER, SAME, indices, inner_of, line_of, weights_of, which
from accumkit.trace.record import Update

MOVES = {"scheduler step": "the schedule", "ema update": "the average"}


def scale_changed_in_window(case: Case) -> Finding | None:
    """Gradients of one window were added up under different scales."""
    changed = [u for u in case.boundary.windows if _differ([m.scale for m in u.micro_batches])]
    inner = inner_of(case)
    unscaled = [e for e in case.trace.events if e.kind == "unscale" and e.micro_batch in inner]
    if not changed and not unscaled:
        return None
    if unscaled:
        at = {e.micro_batch for e in unscaled}
        changed = [u for u in case.boundary.windows if at & {m.index for m in u.micro_batches[:-1]}]
        seen = (
            f"{several(len(unscaled), 'time')} the gradients were unscaled before the last backward of their window, "
            "so that scaled ones were added to unscaled ones"
        )
        line = Counter(e.location for e in unscaled).most_common(1)[0][0]
    else:
        first = changed[0]
        scales = " and ".join(
            number(s) for s in dict.fromkeys(1.0 if m.scale is None else m.scale for m in first.micro_batches)
        )
        seen = f"in update {first.index + 1} the micro-batches were scaled by {scales}, and divided by one of them"
        line = line_of(case, "scaler update", inner) or first.micro_batches[0].location
    return Finding(
        "scale-changed-in-window",
        f"{seen}{weights_of(changed)}. In {which(changed)}",
        line,
        f"keep one scale for a whole window: {ORDER}, each once, after the window's last backward",
        "gradient",
        indices(changed),
    )


def _differ(scales: list[float | None]) -> bool:
    known = [1.0 if scale is None else scale for scale in scales]
    return any(scale is not None for scale in scales) and max(known) - min(known) > SAME * max(known)


def missing_scaler_update(case: Case) -> Finding | None:
    """Scalers that never learn from their steps: a new one each time, or calls of update left out."""
    windows = case.boundary.windows
    fresh = _fresh(windows)
    silent = _without_update(case)
    if not fresh and not silent:
        return None
    skipped = sum(u.skipped for u in windows)
    lost = (
        f"; {several(skipped, 'step')} of {len(windows)} {'was' if skipped == 1 else 'were'} skipped" if skipped else ""
    )
    if fresh:
        numbers = {u.scaler for u in fresh}
        lines = [case.trace.scalers[n] for n in sorted(numbers) if case.trace.scalers[n]]
        seen = f"{several(len(numbers), 'scaler')} for {several(len(fresh), 'step')}: each begins with its first scale"
        line = Counter(lines).most_common(1)[0][0] if lines else fresh[0].location
    else:
        seen = f"losses were scaled, and scaler.update() did not follow on {which(silent)}: the scale cannot adapt"
        line = silent[0].location
    return Finding(
        "missing-scaler-update",
        seen + lost,
        line,
        "make one scaler before the first pass, and call its `scaler.update()` once an update, after `scaler.step`",
        "update" if skipped or silent else "record",
        indices(u for u in windows if u.skipped),
    )


def _fresh(windows: tuple[Update, ...]) -> list[Update]:
    """Return the updates of scalers that change inside a pass, or from one update to the next throughout."""
    stepped = [u for u in windows if u.scaler is not None]
    inside = any(a.scaler != b.scaler and a.epoch == b.epoch for a, b in pairwise(stepped))
    each = len(stepped) > 1 and len({u.scaler for u in stepped}) == len(stepped)
    alternating = len({u.scaler for u in stepped}) < len(stepped) / 2  # a few scalers in turn, each kept
    return stepped if (inside and not alternating) or each else []


def _without_update(case: Case) -> list[Update]:
    """Return the updates with scaled losses after which no scaler update came before the next one began."""
    events = [e.kind for e in case.trace.events]
    found, windows = [], [u for u in case.boundary.windows if any(m.scale not in (None, 1.0) for m in u.micro_batches)]
    steps = [i for i, kind in enumerate(events) if kind in ("step", "skipped step")]
    places = {}  # by micro-batch: where the step behind it stands
    for i in steps:
        places.setdefault(case.trace.events[i].micro_batch, i)
    for update in windows:
        start = places.get(update.micro_batches[-1].index)
        following = next((i for i in range(start + 1, len(events)) if events[i] == "backward"), None) if start else None
        if following is not None and "scaler update" not in events[start:following]:
            found.append(update)
    return found


def skipped_update(case: Case) -> Finding | None:
    """A schedule or an average moved on although the scaler had skipped the step."""
    windows = case.boundary.windows
    # at first a scaler looks for a scale that fits, and skips until it has one
    search = next((i for i, u in enumerate(windows) if not u.skipped), len(windows))
    last = {u.micro_batches[-1].index: u for u in windows[search:] if u.skipped}
    skips = {}  # by micro-batch: where its skipped step stands among the events
    after = []
    for i, event in enumerate(case.trace.events):
        if event.kind == "skipped step":
            skips[event.micro_batch] = i
        elif event.kind in MOVES and event.micro_batch in last and event.micro_batch in skips:
            after.append(event)
    if not after:
        return None
    updates = [last[m] for m in dict.fromkeys(e.micro_batch for e in after)]
    what = " and ".join(dict.fromkeys(MOVES[e.kind] for e in after))
    made = sum(not u.skipped for u in windows)
    return Finding(
        "skipped-update",
        f"{several(len(updates), 'step')} ({which(updates)}) changed nothing, as the scaler skipped "
        f"{'it' if len(updates) == 1 else 'them'}, but {what} moved on: {several(len(windows), 'window')}, "
        f"{several(made, 'update')}",
        Counter(e.location for e in after).most_common(1)[0][0],
        "move on only where the step was made: `scale = scaler.get_scale()` before `scaler.update()`, and "
        "`if scaler.get_scale() >= scale: scheduler.step()` after it, since a scaler lowers its scale when it skipped",
        "update",
        indices(updates),
    )
