"""What exercises 01a and 02a say of a wrong loop: the audit's findings in the exercises' own words."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from accumkit.audit import Finding, Verdict
from accumkit.audit.findings import listed, number
from accumkit.audit.reading import tolerance_of
from accumkit.checks.another_n import OTHER_STEPS, only_with
from accumkit.checks.as_given import AsGiven
from accumkit.checks.audited import Setting, audited
from accumkit.checks.check_loop import ARGUMENTS, setting_of, unequal
from accumkit.checks.divisors import Divided, divided_by, fair, in_smaller_pieces, pure, uneven, windows_of
from accumkit.checks.guarded import attribute
from accumkit.checks.loss_words import CROSS_ENTROPY, LOSSES, another_loss, foreign, left_out
from accumkit.checks.outcome import NOT_YET, RIGHT, Outcome, of_verdict
from accumkit.checks.values import shown
from accumkit.checks.window_ends import FAIR as ELSE
from accumkit.checks.window_ends import where_windows_end
from accumkit.errors import AccumkitError
from accumkit.objective import Objective
from accumkit.trace.record import Trace


@dataclass(frozen=True)
class Divisor:
    """What to say of the right divisor."""

    divide: str
    of_sums: str  # to a learner whose losses are sums, and are divided by something else
    of_means: str
    of_places: str  # to one whose losses come one by one, and are averaged by hand
    of_either: str  # to one whose lines name a sum and a mean: which of them ran is not known


def divisor_of(units: str, own: str, places: str) -> Divisor:
    """Return what to say of the right divisor where ``units`` are counted; ``own`` are a micro-batch's.

    ``places`` is what a mean over losses that come one by one divides by.
    """
    divide = (
        f"divide by the count of the whole window, `(loss / count).backward()`: all the {units} that the window holds; "
        "or divide every `p.grad` by it once, just before the step"
    )
    mean = f'`F.cross_entropy` divides by the {own} of its own micro-batch; let it sum, `reduction="sum"`, and {divide}'
    of_places = f"a mean of the losses divides by {places}; take `.sum()`, and {divide}"
    of_either = f'let the losses sum, `reduction="sum"`, and {divide}'
    return Divisor(divide, f"you divide each sum by its own micro-batch's {own}; {divide}", mean, of_places, of_either)


EXAMPLES = divisor_of("examples", "count", "the examples of its own micro-batch")
COUNTED_ON = "divided by all examples up to its end"
COUNT_ANEW = "count anew for each window: set the count back to 0 after the step, or before the first backward"
AS_THE_LAST = "divided as if all its micro-batches were as large as the last"
TAIL = (
    "make an update of what is left at the end of the pass too: with `enumerate(loader)`, add "
    "`or i + 1 == len(loader)` to the condition, with `enumerate(loader, 1)`, `or i == len(loader)`; an `islice` of an "
    "iterator gives the shorter last window by itself"
)
ADVICE = {
    "step-every-micro-batch": "step only where a window ends: after the loop over its micro-batches, or inside "
    "`if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):`, with `optimizer.zero_grad()` beside it",
    "zero-every-micro-batch": "clear the gradients once a window: `optimizer.zero_grad()` before its first backward, "
    "or right after the step",
    "stale-gradients": "clear the gradients once a window: `optimizer.zero_grad()` before its first backward, or "
    "right after the step",
    "off-by-one": "count from 1 in the condition: `(i + 1) % accumulation_steps == 0`, where i comes from "
    "`enumerate(loader)`, or `i + 1 == len(loader)` for the short last window",
    "tail-dropped": TAIL,
    "tail-leaked": TAIL,
    "data-reused": "each `islice(loader, ...)`, like each `iter(loader)`, starts the loader anew: make "
    "`micro_batches = iter(loader)` once, before the loop, and take every micro-batch from that",
}
LET_GO = (
    "leave out `retain_graph=True` if it is there, for no graph is needed twice; and where losses are added up to be "
    "shown, add numbers, `loss.item()`"
)
# Each mended by the one right divisor.
DIVISIONS = ("missing-division", "tail-divisor", "mean-of-means", "token-weighting")

ONE_OF_TWO = "leave out one of the two divisions, that of the losses or that of `p.grad` before the step"

# Where every bar in the picture is fair, and something is wrong all the same.
FAIR = {
    **dict.fromkeys(("off-by-one", "tail-leaked", "nested-accumulation", "zero-every-micro-batch"), ELSE),
    "double-division": "The picture is fair, for it shows the gradient as it was before the second division.",
    "step-every-micro-batch": "The picture is fair, for each micro-batch has an update to itself; it should share the "
    "update with the others of its window.",
    "tail-dropped": "The picture is fair, for it shows only what had a backward.",
    "data-reused": "The picture is fair, for each update is right by itself; but they all have the same examples.",
    "graph-kept": "The picture is fair, for it shows what examples weigh, not the memory that they need.",
}


def outcome_of(train: Callable, praise: str, accumulation_steps: int, seconds: float) -> Outcome:
    """Run a learner's window loop on unequal micro-batches, with two values of N, and return what is to be said."""
    if not callable(train):
        raise AccumkitError(f"the check needs a function train({', '.join(ARGUMENTS)}); given: {shown(train)}")
    outcome = _judged(train, praise, accumulation_steps, unequal(accumulation_steps), seconds)
    if outcome.status != RIGHT:
        return outcome
    again = _judged(train, praise, OTHER_STEPS, unequal(accumulation_steps)[: 3 * OTHER_STEPS], seconds)
    return outcome if again.status == RIGHT else only_with(accumulation_steps, OTHER_STEPS, 3 * OTHER_STEPS, again)


def _judged(train: Callable, praise: str, steps: int, sizes: list[int], seconds: float) -> Outcome:
    """Return what is to be said of two passes over micro-batches of these sizes."""
    setting = setting_of(steps, sizes)
    given = AsGiven(setting.model, setting.arguments["optimizer"])
    with given.seen():
        verdict = audited(train, setting, seconds)
    windows = [sizes[i : i + steps] for i in range(0, len(sizes), steps)]
    if verdict.ok or in_smaller_pieces(verdict, windows):
        item = left_out(verdict, sizes) or given.wrong
        return one_thing(item, verdict.trace) if item else Outcome(RIGHT, praise, trace=verdict.trace)
    if (ends := where_windows_end(verdict, train)) is not None:
        return ends
    if not verdict.findings and fair(verdict.trace):
        verdict = replace(verdict, trace=None)  # a fair picture of half a run would contradict the words
    if (item := _why(train, verdict, sizes, partial(setting_of, steps, sizes), seconds)) is not None:
        return item
    return of_verdict(verdict, praise, advise(train), remark=remark(verdict.trace))


def one_thing(item: tuple[str, ...], trace: Trace | None) -> Outcome:
    """Return the outcome that one thing to mend amounts to."""
    return Outcome(NOT_YET, "there is one thing to mend.", (item,), trace=trace)


def advise(train: Callable, right: Divisor = EXAMPLES) -> Callable[[Finding], str]:
    """Return what to change for each finding, in words that fit the exercise and what the learner wrote."""
    words = _words(train)
    named = words & {"sum", "mean", "none"}
    sums = named == {"sum"}
    by_name = {"sum": right.of_sums, "none": right.of_places, "mean": right.of_means}
    otherwise = right.of_either if len(named) > 1 else by_name[next(iter(named), "mean")]

    def said(finding: Finding) -> str:
        if finding.pitfall in DIVISIONS:
            return otherwise
        if finding.pitfall == "double-division":
            by_hand = "before every step" in finding.evidence
            return ONE_OF_TWO if by_hand else f"once is enough: {right.divide if sums else otherwise}"
        if finding.pitfall == "graph-kept" and "retain_graph" in finding.fix:
            return LET_GO
        return ADVICE.get(finding.pitfall) or _without_the_kit(finding.fix)

    return said


def _why(
    train: Callable, verdict: Verdict, sizes: list[int], setting_with: Callable[[Objective], Setting], seconds: float
) -> Outcome | None:
    """Return in plain words why a loop is not right, where the audit has no finding, or one that says less."""
    trace = verdict.trace
    if trace is None or not trace.updates or {f.pitfall for f in verdict.findings} - {"double-division", *DIVISIONS}:
        return None
    if (item := left_out(verdict, sizes)) is not None:
        return one_thing(item, trace)
    if verdict.findings:
        return None
    if foreign(verdict):  # weights of another loss would say nothing
        item = another_loss(train, verdict, LOSSES, setting_with, seconds, CROSS_ENTROPY)
        return one_thing(item, None) if item else None
    near, windows = tolerance_of(trace), windows_of(trace)
    item = uneven(windows, near, "example")
    if item is None and windows and pure(windows, near):
        item = _one_divisor(windows, trace.accumulation_steps, near)
    return one_thing(item, trace) if item else None


def remark(trace: Trace | None) -> Callable[[Finding], str | None]:
    """Return what to say of a picture that is fair although there is a finding."""
    return lambda finding: FAIR.get(finding.pitfall) if fair(trace) else None


def _one_divisor(windows: list[Divided], steps: int, near: float) -> tuple[str, ...] | None:
    """Say what the sums of each window were divided by, where that is one number that is not its count."""
    first, many, sizes = windows[0], len(windows), [len(w.members) for w in windows]
    last = [w.members[-1].count for w in windows]
    in_pass = [sum(v.count for v in windows[: i + 1] if v.update.epoch == w.update.epoch)
               for i, w in enumerate(windows)]  # fmt: skip
    known = (
        ("never-divided", "never divided", [1.0] * many),
        ("fixed-divisor", f"divided by {number(first.divisor)}, whatever it holds", [first.divisor] * many),
        ("micro-batches-counted", "divided by the number of its micro-batches", sizes),
        ("count-not-reset", COUNTED_ON, in_pass),
        ("count-not-reset", COUNTED_ON, [sum(v.count for v in windows[: i + 1]) for i in range(many)]),
        ("last-size-for-all", AS_THE_LAST, [n * k for n, k in zip(last, sizes, strict=True)]),
        ("last-size-for-all", AS_THE_LAST, [n * steps for n in last]),
    )
    if divided_by(windows, [w.count for w in windows], near):
        return None
    found = (one for one in known if divided_by(windows, one[2], near))
    slip, how, _ = next(found, ("wrong-divisor", "divided by something else than its count", None))
    change = COUNT_ANEW if slip == "count-not-reset" else EXAMPLES.divide
    said = dict.fromkeys(f"{number(w.weights[0])} in a window of {number(w.count)}" for w in windows)
    return (
        f"The divisor of a window is not its count ({slip})",
        f"Measured: the losses of a window are summed and {how}: one example weighs {listed(list(said)[:3])} examples, "
        "and should weigh 1 in each.",
        f"To change, at {first.location}: {change}.",
    )


def _words(train: Callable) -> set[Any]:
    """Return the texts in a function's lines, and those that stand behind the names it uses and its defaults."""
    code = attribute(train, "__code__")
    if not isinstance(train, FunctionType):
        return _constants(code)
    behind = [train.__globals__.get(name) for name in code.co_names]
    defaults = [*(train.__defaults__ or ()), *(train.__kwdefaults__ or {}).values()]
    return _constants(code) | {text for text in (*behind, *defaults) if type(text) is str}


def _constants(code: CodeType | None) -> set[Any]:
    """Return the words that a function's code mentions, those of functions inside it among them."""
    if not isinstance(code, CodeType):
        return set()
    words = {constant for constant in code.co_consts if isinstance(constant, str)}
    return words.union(*(_constants(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _without_the_kit(fix: str) -> str:
    """Return advice without the parts of the kit that the exercise does without."""
    fix = fix.replace(", with ak.windows", "").replace("window.count", "count")
    return re.sub(r'[;,][^;]*tail="drop"[^;]*', "", fix)
