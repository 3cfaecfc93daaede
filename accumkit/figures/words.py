"""Pictures in words: one sentence that says what a picture shows, with its numbers."""

from __future__ import annotations

from collections import Counter
from math import isfinite

from accumkit.audit.reading import tolerance_of
from accumkit.figures.bars import kind_of
from accumkit.figures.numbers import UNITS, counted, listed, number, spans, weight_text
from accumkit.trace.record import MicroBatch, Trace, Update

PHRASES = 4  # so many different windows are described each; of more, their range


def describe_weights(trace: Trace, up_to_scale: bool = False) -> str:
    """Say in a sentence what one example weighs in each update.

    The text twin of :func:`accumkit.figures.weights`, and the alternative text of its picture.

    Parameters
    ----------
    trace : Trace
    up_to_scale : bool
        Weights away from 1 are a constant chosen on purpose.

    Returns
    -------
    str

    Examples
    --------
    >>> from accumkit import figures
    >>> from accumkit.trace.record import MicroBatch, Trace, Update
    >>> micro = MicroBatch(0, 0, 4, 4, 1.0, 1.0, "kept", None)
    >>> figures.describe_weights(Trace(1, unit="examples", updates=[Update(0, 0, (micro,), 4)]))
    'Every example weighs 1, which is fair: 4 examples in update 1.'
    """
    if not trace.updates and not trace.lost:
        return "No micro-batch was seen, so there is nothing to weigh."
    one = UNITS.get(trace.unit or "examples", "unit")
    near = tolerance_of(trace)  # the audit's: a weight is fair where the audit says so
    said = [(update, _window(update, trace, near, one)) for update in trace.updates]
    if len({phrase for _, phrase in said} - {"fair"}) > 2:  # without the numbers of micro-batches some may be alike
        said = [(update, _window(update, trace, near, one, named=False)) for update in trace.updates]
    parts: list[str] = []
    if said and all(phrase == "fair" for _, phrase in said):
        which = f"every {one} in an update" if trace.lost else f"every {one}"
        parts.append(f"{which} weighs 1, which is fair: {_sizes(trace)}")
    elif said and len({phrase for _, phrase in said}) <= PHRASES:
        alike: dict[str, list[Update]] = {}
        for update, phrase in said:
            alike.setdefault(phrase, []).append(update)
        for phrase, updates in alike.items():
            where = _updates(updates)
            parts.append(f"in {where} " + (f"every {one} weighs 1, which is fair" if phrase == "fair" else phrase))
    elif said:
        parts.append(_overview(trace, [update for update, phrase in said if phrase != "fair"], one))
    if trace.lost:
        parts.append(_lost(trace))
    if up_to_scale:
        parts.append("the weights differ from 1 by a constant, not from each other")
    text = "; ".join(parts) + "."
    return text[0].upper() + text[1:]


def describe_timeline(trace: Trace) -> str:
    """Say in a sentence which events a trace holds, and where its windows end.

    The text twin of :func:`accumkit.figures.timeline`, and the alternative text of its picture.

    Parameters
    ----------
    trace : Trace

    Returns
    -------
    str

    Examples
    --------
    >>> from accumkit import figures
    >>> from accumkit.trace.record import Event, Trace
    >>> figures.describe_timeline(Trace(1, events=[Event("backward", 0, None)]))
    'Backward runs for 1 micro-batch, and no step follows.'
    """
    backwards = trace.count_of("backward")
    if not backwards:
        return "No backward was seen, so there is no timeline."
    text = f"Backward runs for {counted(backwards, 'micro-batches')}"
    text += _steps(trace.updates)
    others = []
    for kind, verb in OTHERS.items():
        if times := trace.count_of(kind):
            others.append(f"{verb} {_often(times)}")
        elif kind == "zero_grad" and len(trace.updates) > 1:
            others.append("zero_grad never runs")
    if others:
        text += f"; {listed(others, most=len(others))}"
    if trace.lost and trace.updates:
        text += f"; {_micros(trace.lost)} {'is' if len(trace.lost) == 1 else 'are'} in no update"
    return text + "."


OTHERS = {
    "zero_grad": "zero_grad runs",
    "unscale": "unscale runs",
    "clip": "clipping runs",
    "skipped step": "the scaler skips a step",
    "scaler update": "the scale is updated",
    "scheduler step": "the scheduler steps",
    "ema update": "the average is updated",
    "evaluation": "an evaluation forward runs",
    "state saved": "the state is saved",
}


def _steps(updates: list[Update]) -> str:
    """Say after which micro-batches the optimizer steps; of many steps, how many end windows of which size."""
    ends = [update.micro_batches[-1].index + 1 for update in updates if update.micro_batches]
    if not ends:
        return ", and no step follows"
    sizes = Counter(update.accumulated for update in updates)
    if len(ends) <= 6:
        text = f"; the optimizer steps after micro-batch{'es' if len(ends) > 1 else ''} {listed(ends)}"
        windows = [str(update.accumulated) for update in updates] if len(sizes) > 1 else [str(updates[0].accumulated)]
    else:
        text = f"; the optimizer steps {len(ends):,} times"
        windows = [f"{size} ({_often(times)})" for size, times in sizes.items()]
        windows = windows if len(sizes) > 1 else [str(updates[0].accumulated)]
    return text + f", at the end of {'windows' if len(ends) > 1 else 'a window'} of {listed(windows)}"


def _window(update: Update, trace: Trace, near: float, one: str, named: bool = True) -> str:
    """Return "fair", or what one example weighs in this update."""
    groups: dict[str, list[MicroBatch]] = {}
    for micro in update.micro_batches:
        kind = kind_of(micro, near)
        groups.setdefault("unfair" if kind == "fair" else kind, []).append(micro)
    groups.pop("empty", None)
    kept = groups.get("unfair", [])
    phrases = []
    if "unmeasured" in groups:
        phrases.append("the weights were not measured" + (f" ({update.why})" if update.why else ""))
    over = update.carried > near
    if kept and not over and set(groups) == {"unfair"} and all(kind_of(micro, near) == "fair" for micro in kept):
        return "fair"
    if kept:
        phrases.append(_weighs(kept, near, one, named))
    if "leaked" in groups:
        micros = groups["leaked"]
        weights = sorted({weight_text(micro.weight) for micro in micros}, key=lambda text: float(text.replace(",", "")))
        which = "one" if len(weights) > 1 else "one of its" if len(micros) == 1 else "one of their"
        many = f"{trace.unit or 'examples'} " if len(weights) == 1 else f"{one} "
        phrases.append(
            f"{_micros(micros, named)} leaked in from the epoch before, {which} {many}weighing "
            + (weights[0] if len(weights) == 1 else f"{weights[0]} to {weights[-1]}")
        )
    if "erased" in groups:
        micros = groups["erased"]
        amount = counted(sum(_count(micro) for micro in micros), trace.unit or "examples")
        phrases.append(f"the {amount} of {_micros(micros, named)} are erased before the step and weigh 0")
    if over:
        phrases.append("a gradient left over from earlier updates is added")
    return ", and ".join(phrases) or "fair"


def _weighs(kept: list[MicroBatch], near: float, one: str, named: bool = True) -> str:
    texts = [weight_text(micro.weight, abs(micro.weight - 1) <= near) for micro in kept]
    by_count = {(text, number(_count(micro))) for text, micro in zip(texts, kept, strict=True)}
    if len(set(texts)) == 1:
        return f"one {one} weighs {texts[0]}" + ("" if texts[0] == "1" else " instead of 1")
    if len(set(texts)) == 2 and "0" in texts:
        parts = {text: [micro for micro, said in zip(kept, texts, strict=True) if said == text] for text in set(texts)}
        nothing, some = parts.pop("0"), parts.popitem()
        return f"one {one} weighs {some[0]} in {_micros(some[1], named)}, and 0 in {_micros(nothing, named)}"
    if len(by_count) <= 3 and len({count for _, count in by_count}) == len(by_count):
        pairs = dict(zip(texts, kept, strict=True))
        said = [f"{text} in a micro-batch of {number(_count(micro))}" for text, micro in pairs.items()]
        return f"one {one} weighs {listed(said)}"
    weights = [micro.weight for micro in kept]
    return f"one {one} weighs between {number(min(weights))} and {number(max(weights))}"


def _overview(trace: Trace, unfair: list[Update], one: str) -> str:
    weights = [m.weight for update in unfair for m in update.micro_batches if m.weight is not None]
    weights = [weight for weight in weights if isfinite(weight)]
    text = f"{len(trace.updates) - len(unfair):,} of {len(trace.updates):,} updates are fair"
    text += f"; in {_updates(unfair)} "
    if not weights:
        return text + "the weights were not measured"
    return text + f"one {one} weighs between {number(min(weights))} and {number(max(weights))}"


def _lost(trace: Trace) -> str:
    unit = trace.unit or "examples"
    lost = sum(_count(micro) for micro in trace.lost)
    total = sum(_count(micro) for micro in trace.micro_batches)
    are = "is lost: it is" if lost == 1 else "are lost: they are"
    return f"{number(lost)} of {counted(total, unit)} ({_micros(trace.lost)}) {are} in no update"


def _sizes(trace: Trace) -> str:
    unit = trace.unit or "examples"
    counts = [sum(_count(m) for m in update.micro_batches if m.fate != "leaked") for update in trace.updates]
    if len(set(counts)) == 1 and len(counts) > 1:
        return f"{counted(counts[0], unit)} in each of {len(counts):,} updates"
    if len(counts) <= PHRASES:
        said = [counted(counts[0], unit), *(number(count) for count in counts[1:])]
        return listed(
            [f"{text} in update {update.index + 1}" for text, update in zip(said, trace.updates, strict=True)]
        )
    low, high = min(counts), max(counts)
    return f"{number(low)} to {counted(high, unit)} in each of {len(counts):,} updates"


def _updates(updates: list[Update]) -> str:
    return f"update{'s' if len(updates) > 1 else ''} {spans([update.index + 1 for update in updates])}"


def _micros(micros: list[MicroBatch], named: bool = True) -> str:
    if not named:
        return counted(len(micros), "micro-batches")
    return f"micro-batch{'es' if len(micros) > 1 else ''} {spans([micro.index + 1 for micro in micros])}"


def _count(micro: MicroBatch) -> float:
    return micro.examples if micro.count is None else micro.count


def _often(times: int) -> str:
    return {1: "once", 2: "twice"}.get(times, f"{times:,} times")
