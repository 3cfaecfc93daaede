"""What exercise 02c says of a wrong loop over tokens: which tokens it counts, and which loss it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from accumkit import tasks
from accumkit.audit import Verdict
from accumkit.audit.findings import listed, number
from accumkit.audit.reading import tolerance_of
from accumkit.checks.another_n import OTHER_STEPS, only_with
from accumkit.checks.as_given import AsGiven
from accumkit.checks.audited import Setting, audited, in_micro_batches
from accumkit.checks.check_loop import ARGUMENTS
from accumkit.checks.divisors import divided_by, in_smaller_pieces, pure, uneven, windows_of
from accumkit.checks.loss_words import ALL_ELSE, Kind, another_loss, foreign, left_out
from accumkit.checks.outcome import RIGHT, Outcome, of_verdict
from accumkit.checks.values import shown
from accumkit.checks.window_ends import where_windows_end
from accumkit.checks.window_words import DIVISIONS, advise, divisor_of, fair, one_thing, remark
from accumkit.errors import AccumkitError
from accumkit.objective import Objective, next_token

SIZES = (3, 5, 2, 4, 1, 5)  # lines in the micro-batches: all 20, a full window of four and a tail of two
TOKENS = divisor_of("tokens with a target", "tokens", "all places of its own micro-batch, padding among them")

COUNTS = (
    Kind("padding-counted", "divided by all places of its micro-batches, padding among them",
         "count only the targets that are not -100: padding has no loss, so it must not be in the divisor",
         lambda tokens, labels: tokens.numel()),
    Kind("padding-counted", "divided by all places that are predicted, padding among them",
         "count only the targets that are not -100: padding has no loss, so it must not be in the divisor",
         lambda tokens, labels: labels[:, 1:].numel()),
    Kind("unshifted-count", "divided by all its tokens, the first of each line among them",
         "nothing predicts the first token of a line, so it is no target: count in `labels[:, 1:]`",
         lambda tokens, labels: (labels != tasks.IGNORED).sum().item()),
    Kind("lines-counted", "divided by its lines",
         "the losses that are summed are those of tokens: count the targets that are not -100",
         lambda tokens, labels: len(labels)),
    Kind("micro-batches-counted", "divided by the number of its micro-batches",
         "the losses that are summed are those of tokens: count the targets that are not -100",
         lambda tokens, labels: 1),
)  # fmt: skip

COUNT = next_token().count
CROSS_ENTROPY = (
    "sum `F.cross_entropy` of the scores as the model gives them, and nothing else: no softmax before it, no term "
    "beside it"
)
NEXT = "score position t against token t + 1: `model(tokens)[:, :-1]` against `labels[:, 1:]`"


def _sum(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum")


def _next_token(output: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    targets = batch[1][:, 1:]
    return _sum(output[:, : targets.shape[1]], targets)  # the last place has no score where it was not even fed


def _line_means(scores: Tensor, tokens: Tensor, labels: Tensor) -> Tensor:
    targets = labels[:, 1:]
    losses = F.cross_entropy(scores[:, :-1].transpose(1, 2), targets, reduction="none")
    return (losses.sum(1) / (targets != tasks.IGNORED).sum(1)).sum()


LOSSES = (
    Kind("unshifted-loss", "each position is scored against its own token, which the model has just seen", NEXT,
         lambda scores, tokens, labels: _sum(scores, labels)),
    Kind("unshifted-loss", "each position is scored against its own token, which the model has just seen", NEXT,
         lambda scores, tokens, labels: _sum(scores[:, :-1], labels[:, :-1])),
    Kind("shifted-the-other-way", "each position is scored against the token before it", NEXT,
         lambda scores, tokens, labels: _sum(scores[:, 1:], labels[:, :-1])),
    Kind("padding-learned", "the places that are filled up are learned too, as if they were text",
         "take the targets from `labels`, which are -100 there, and not from `tokens`",
         lambda scores, tokens, labels: _sum(scores[:, :-1], tokens[:, 1:])),
    Kind("softmax-before-cross-entropy", "the scores go through a softmax first, and `F.cross_entropy` takes another "
         "one by itself", "give the scores to `F.cross_entropy` as they are",
         lambda scores, tokens, labels: _sum(scores.softmax(-1)[:, :-1], labels[:, 1:])),
    Kind("line-means", "each line has a mean of its own, so a token in a short line weighs more",
         "sum over all tokens of the micro-batch, and do not divide by a line's length", _line_means),
)  # fmt: skip


def outcome_of(train: Callable, praise: str, accumulation_steps: int, seconds: float) -> Outcome:
    """Run a learner's loop on the lines of the Zen of Python, with two values of N, and return what is to be said."""
    if not callable(train):
        raise AccumkitError(f"the check needs a function train({', '.join(ARGUMENTS)}); given: {shown(train)}")
    outcome = _judged(train, praise, accumulation_steps, seconds)
    if outcome.status != RIGHT:
        return outcome
    again = _judged(train, praise, OTHER_STEPS, seconds)
    return outcome if again.status == RIGHT else only_with(accumulation_steps, OTHER_STEPS, len(SIZES), again)


def _judged(train: Callable, praise: str, steps: int, seconds: float) -> Outcome:
    """Return what is to be said of two passes, with one N."""
    setting = _setting(steps, Objective(_next_token, COUNT, unit="tokens"))
    given = AsGiven(setting.model, setting.arguments["optimizer"])
    with given.seen():
        verdict = audited(train, setting, seconds)
    windows = [[COUNT(batch) for batch in window] for window in _batches(steps)]
    if verdict.ok or in_smaller_pieces(verdict, windows):
        item = left_out(verdict, SIZES, "line") or given.wrong
        return one_thing(item, verdict.trace) if item else Outcome(RIGHT, praise, trace=verdict.trace)
    if (ends := where_windows_end(verdict, train)) is not None:
        return ends
    if verdict.trace is None or not verdict.trace.updates:
        return of_verdict(verdict, praise)
    explained = not foreign(verdict, ALL_ELSE)
    if (item := _why(train, verdict, steps, seconds, explained)) is not None:
        return one_thing(item, verdict.trace if explained else None)  # weights of another loss would say nothing
    contradicts = not verdict.findings and fair(verdict.trace)  # a fair picture of half a run
    outcome = of_verdict(_in_tokens(verdict), praise, advise(train, TOKENS), remark=remark(verdict.trace))
    return Outcome(outcome.status, outcome.lead, outcome.items) if contradicts else outcome


def _why(train: Callable, verdict: Verdict, steps: int, seconds: float, explained: bool) -> tuple[str, ...] | None:
    """Return heading and sentences where the exercise knows more than the audit."""
    if not {finding.pitfall for finding in verdict.findings} - {"double-division", *DIVISIONS}:
        if (item := left_out(verdict, SIZES, "line")) is not None:
            return item
    if not explained:
        otherwise = None if verdict.findings else CROSS_ENTROPY
        return another_loss(train, verdict, LOSSES, partial(_setting, steps), seconds, otherwise)
    item = _counted(verdict, steps)
    if item is None and not verdict.findings:
        return uneven(windows_of(verdict.trace), tolerance_of(verdict.trace), "token")
    return item


def _in_tokens(verdict: Verdict) -> Verdict:
    """Return a verdict whose evidence speaks of tokens where a divisor counts them."""
    said, meant = "divided by the examples of", "divided by the tokens of"
    findings = [replace(one, evidence=one.evidence.replace(said, meant)) for one in verdict.findings]
    return replace(verdict, findings=tuple(findings))


def _setting(steps: int, objective: Objective) -> Setting:
    lines = tasks.zen()
    model = tasks.next_token_model(dtype=torch.float64, hidden=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = in_micro_batches(lines, SIZES, lines.collate)
    return Setting(
        model, objective, loader, dict(zip(ARGUMENTS, (model, loader, optimizer, steps), strict=True)), steps
    )


def _counted(verdict: Verdict, steps: int) -> tuple[str, ...] | None:
    """Say what the sums of each window were divided by, where that is one number and a known one."""
    windows, near = windows_of(verdict.trace), tolerance_of(verdict.trace)
    batches = list(_batches(steps))
    passes, rest = divmod(len(verdict.trace.updates), len(batches))
    if rest or len(windows) != len(verdict.trace.updates) or not pure(windows, near):
        return None
    if not windows or not all(window.even(near) for window in windows):
        return None
    first = windows[0].divisor
    fixed = Kind("fixed-divisor", f"divided by {number(first)}, whatever it holds", TOKENS.divide, lambda *batch: first)
    never = Kind("never-divided", "never divided", TOKENS.divide, lambda *batch: 1.0)
    for kind in (never, *COUNTS, fixed):
        added = sum if kind in COUNTS else max
        totals = [added(kind.of(*batch) for batch in window) for window in batches] * passes
        if divided_by(windows, totals, near):
            there = [f"by {number(n)} where there are {number(w.count)}" for n, w in zip(totals, windows, strict=True)]
            weigh = [number(w.weights[0]) for w in windows]
            return (
                f"The divisor of a window is not its count ({kind.slip})",
                f"Measured: the losses of a window are summed and {kind.seen}, {listed(there[: len(batches)])} tokens "
                f"with a target: one token weighs {listed(weigh[: len(batches)])}, and should weigh 1.",
                f"To change, at {windows[0].location}: {kind.change}.",
            )
    if not any(finding.pitfall == "token-weighting" for finding in verdict.findings):
        return None
    there = [f"by {number(w.divisor)} where there are {number(w.count)}" for w in windows[: len(batches)]]
    return (
        "The divisor of a window is not its count (wrong-divisor)",
        f"Measured: the losses of a window are summed and divided by one number, {listed(there)} tokens with a target.",
        f"To change, at {windows[0].location}: {TOKENS.divide}.",
    )


def _batches(steps: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Yield the windows of a pass."""
    lines = tasks.zen()
    batches = list(in_micro_batches(lines, SIZES, lines.collate))
    for i in range(0, len(batches), steps):
        yield batches[i : i + steps]
