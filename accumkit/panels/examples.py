"""Which examples a micro-batch of a simulation had: the digits or lines themselves, and what became of them."""

from __future__ import annotations

from functools import lru_cache

from accumkit import tasks
from accumkit.audit.reading import tolerance_of
from accumkit.figures.bars import kind_of
from accumkit.figures.digits import digits_html, lines_html
from accumkit.figures.numbers import UNITS, counted, weight_text
from accumkit.pitfalls.bases import BASES
from accumkit.pitfalls.data import loader_of
from accumkit.pitfalls.settings import Settings
from accumkit.pitfalls.simulation import Simulation
from accumkit.trace.record import MicroBatch, Trace


def examples_html(simulation: Simulation, trace: Trace, index: int) -> str:
    """Return the examples of one micro-batch as HTML, under a sentence that says what became of them.

    Parameters
    ----------
    simulation : Simulation
    trace : Trace
        One of its two.
    index : int
        Of the micro-batch in the trace.

    Returns
    -------
    str

    Examples
    --------
    >>> from accumkit import pitfalls
    >>> from accumkit.panels.examples import examples_html
    >>> simulation = pitfalls.simulate("tail-dropped")
    >>> html = examples_html(simulation, simulation.trace, 4)
    >>> html.count("<img"), "lost" in html
    (3, True)
    """
    micro = next(m for m in trace.micro_batches if m.index == index)
    batch = _batches(simulation.settings, simulation.base)[place_of(trace, micro)]
    sentence = describe(trace, micro)
    lost = micro.fate in ("lost", "erased")
    if BASES[simulation.base].task == "tokens":
        zen = tasks.zen()
        return lines_html([zen.decode(line[line != tasks.PADDING]) for line in batch[0].cpu()], sentence, lost)
    return digits_html(batch[0].cpu(), batch[1].cpu(), sentence, lost)


def describe(trace: Trace, micro: MicroBatch) -> str:
    """Say where a micro-batch went and what one of its examples weighs there.

    Examples
    --------
    >>> from accumkit import pitfalls
    >>> from accumkit.panels.examples import describe
    >>> trace = pitfalls.simulate("missing-division").trace
    >>> describe(trace, trace.micro_batches[0])
    'Micro-batch 1, in update 1: 4 examples, and one example weighs 4 instead of 1.'
    """
    near, unit = tolerance_of(trace), trace.unit or "examples"
    update = next((u for u in trace.updates if any(m.index == micro.index for m in u.micro_batches)), None)
    what, one = counted(micro.examples if micro.count is None else micro.count, unit), UNITS.get(unit, "unit")
    if unit == "class weights":
        what, one = f"{counted(micro.examples, 'examples')} (class weights {what.split()[0]} in all)", "unit of them"
    head = f"Micro-batch {micro.index + 1}" + (f" (epoch {micro.epoch + 1})" if len(trace.epoch_sizes) > 1 else "")
    kind = kind_of(micro, near)
    if update is None:
        return f"{head} is lost: its {what} are in no update and weigh 0."
    head += f", in update {update.index + 1}: {what}"
    if update.skipped:
        return f"{head}, and the scaler skipped this step: they weigh 0."
    if kind == "erased":
        return f"{head}, erased before the step: they weigh 0."
    if kind == "empty":
        return f"{head}, which count for nothing."
    if kind == "unmeasured":
        return f"{head}; what one weighs was not measured."
    text = weight_text(micro.weight, kind == "fair")
    if kind == "leaked":
        return f"{head}, leaked in from the epoch before, where they belong; here one {one} weighs {text}."
    return f"{head}, and one {one} weighs {text}" + (", which is fair." if kind == "fair" else " instead of 1.")


def place_of(trace: Trace, micro: MicroBatch) -> int:
    """Return which batch of its pass a micro-batch is, from 0."""
    fetched, used = trace.fetched_sizes, trace.epoch_sizes
    if micro.epoch >= len(fetched) or fetched[micro.epoch] == used[micro.epoch]:  # each batch fetched was trained on
        same = [m.index for m in trace.micro_batches if m.epoch == micro.epoch]
        return same.index(micro.index)
    # Some were left out: count the fetches up to its own. (Loops that fetch ahead leave none out.)
    before = 0
    for event in trace.events:
        before += event.kind == "batch"
        if event.kind == "forward" and event.micro_batch == micro.index:
            break
    return before - sum(fetched[: micro.epoch]) - 1


@lru_cache(maxsize=8)
def _batches(settings: Settings, base: str) -> list:
    return list(loader_of(settings, BASES[base]))
