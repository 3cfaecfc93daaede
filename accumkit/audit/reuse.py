"""The rule about data that come again: the same micro-batch inside a window, or the same window again and again."""

from __future__ import annotations

from accumkit.audit.findings import Finding, number, several
from accumkit.audit.reading import Case, near
from accumkit.audit.saying import indices, line_of, which
from accumkit.trace.record import MicroBatch, Update


def data_reused(case: Case) -> Finding | None:
    """A window holds one batch several times, or the loader is begun anew for every window."""
    repeated = [u for u in _several(case) if _fetched_once(case, u) and not _meant(case, u)]
    if repeated and 2 * len(repeated) >= len(_several(case)):
        return _inside(repeated)
    if case.steps > 1 and begun_anew(case, 2 * case.steps) and _same_windows(case):
        passes = case.boundary.passes
        if len(passes) * case.steps >= passes[0].size:  # as many updates as a whole pass makes, or more
            return _across(case)
    return None


def perhaps_reused(case: Case) -> str | None:
    """Return what a reader should know of data that come again where that may be meant."""
    if data_reused(case):
        return None
    if begun_anew(case, case.steps + 1) and _same_windows(case) is not False:
        size, first = case.boundary.passes[0].size, f"first {case.steps}" if case.steps > 1 else "first one"
        return (
            f"The loader was begun {len(case.boundary.passes)} times and gave the {first} of its {size} micro-batches "
            "each time. If it does not shuffle, and that was to be one pass, every window has the same data "
            "(data-reused)."
        )
    windows = _several(case)
    meant = [u for u in windows if _fetched_once(case, u) and _meant(case, u)]
    if meant and 2 * len(meant) >= len(windows):
        return (
            f"In {which(meant)} several backward calls were for one batch: right for one call a task, or for several "
            "random draws (dropout) of the same batch. If a new batch was meant each time, every window has too few "
            "data (data-reused)."
        )
    if windows and not case.trace.count_of("batch") and all(_all_the_same(u) for u in windows):
        return (
            "All micro-batches of a window had the same inputs. No loader was seen, so it cannot be told whether the "
            "data are that few or one batch was used again and again (data-reused)."
        )
    return None


def _same_windows(case: Case) -> bool | None:
    """Whether every window was fed the same inputs; False where a loader that shuffles gave others, None: not known."""
    fed = [u.fed_again for u in case.boundary.windows[1:]]
    return False if False in fed else True if fed and None not in fed else None


def _meant(case: Case, update: Update) -> bool:
    """Whether each batch of a window is used several times on purpose, and counts in the update what it should."""
    calls: dict[int, list[MicroBatch]] = {}  # by the first micro-batch with the same inputs
    for m in update.micro_batches:
        calls.setdefault(m.index if m.repeats is None else m.repeats, []).append(m)
    if len({len(own) for own in calls.values()}) > 1:
        return False
    if update.drew == update.accumulated and not update.masks_repeated:
        return True  # each time with other random masks
    if len(calls) == 1 and case.steps > 1:
        return False  # one batch, where windows of several were declared
    counts = [own[0].count for own in calls.values()]
    if None in counts or any(m.share is None for m in update.micro_batches) or not sum(counts):
        return True  # nothing tells
    fair = [count / sum(counts) for count in counts]
    return near([sum(m.share for m in own) for own in calls.values()], fair, case.tolerance)


def begun_anew(case: Case, least: int) -> bool:
    """Whether every pass took one window of N micro-batches out of a loader that holds at least ``least``."""
    passes, ran = case.boundary.passes, case.trace.epoch_sizes
    if len(passes) < 2 or len(case.boundary.windows) != len(passes):
        return False
    counts = {tuple(m.count for m in p.micro_batches) for p in passes}
    return len(counts) == 1 and all(
        ran[p.epoch] == case.steps
        and case.trace.loader_sizes[p.epoch] >= least
        and p.ends == (case.steps,)
        and p.fetched <= case.steps + 1  # a loop may look at the next one before it stops
        for p in passes
    )


def _across(case: Case) -> Finding:
    windows = case.boundary.windows
    size = case.boundary.passes[0].size
    return Finding(
        "data-reused",
        f"the loader was begun {len(windows)} times, once for every update, and only its first {case.steps} of {size} "
        f"micro-batches were taken each time: every window had the same data, and the other {size - case.steps} never "
        "train",
        line_of(case, "batch", {m.index for u in windows for m in u.micro_batches}),
        "make one iterator a pass, `batches = iter(loader)`, and take every window from it",
        "update",
        indices(windows),
    )


def _inside(updates: list[Update]) -> Finding:
    first = updates[0]
    again = [m for m in first.micro_batches if m.repeats is not None]
    whole = sum(m.repeats is not None for u in updates for m in u.micro_batches)
    return Finding(
        "data-reused",
        f"{several(whole, 'micro-batch')} had the inputs of an earlier one of their window: in update "
        f"{first.index + 1}, {len(again)} of {number(first.accumulated)}. In {which(updates)}",
        again[0].location,
        "take a new batch for every micro-batch: `for batch in loader:` with the boundary inside it, or "
        "`batch = next(batches)` inside the loop over a window, from one iterator a pass",
        "update",
        indices(updates),
    )


def _several(case: Case) -> list[Update]:
    return [u for u in case.boundary.windows if u.accumulated > 1]


def _all_the_same(update: Update) -> bool:
    first = update.micro_batches[0]
    return all(_again(m, first) for m in update.micro_batches[1:])


def _again(m: MicroBatch, first: MicroBatch) -> bool:
    """Whether a micro-batch repeats another one for the same purpose: both count, and one line made both."""
    return m.repeats == first.index and m.location == first.location and "erased" not in (m.fate, first.fate)


def _fetched_once(case: Case, update: Update) -> bool:
    """Whether at least half of a window are repeats, and not because the data hold the same batch again."""
    members = {m.index: m for m in update.micro_batches}
    again = [m for m in update.micro_batches if m.repeats is not None and _again(m, members[m.repeats])]
    if 2 * len(again) < update.accumulated:
        return False
    trace = case.trace
    for m in again:
        epoch = members[m.repeats].epoch
        fetched, size = trace.fetched_sizes[epoch], trace.loader_sizes[epoch]
        if m.epoch == epoch and not 0 < fetched < trace.epoch_sizes[epoch]:
            return False  # each was fetched by itself, or no loader was seen
        if m.epoch != epoch and not 0 < fetched < size:
            return False  # begun again when the data were over
    return True
