"""What exercise 02c says of a wrong loop over tokens: which tokens it counts, and which loss it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accumkit import tasks
from accumkit.audit import Verdict
from accumkit.audit.findings import listed, number
from accumkit.audit.reading import tolerance_of
from accumkit.checks.audited import Setting, audited, in_micro_batches
from accumkit.checks.check_loop import ARGUMENTS
from accumkit.checks.divisors import divided_by, in_smaller_pieces, pure, uneven, windows_of
from accumkit.checks.outcome import NOT_YET, RIGHT, Outcome, of_verdict
from accumkit.checks.window_words import advise, divisor_of, fair, remark
from accumkit.objective import Objective, next_token

SIZES = (3, 5, 2, 4, 1, 5)  # lines in the micro-batches: all 20, a full window of four and a tail of two
TOKENS = divisor_of("tokens with a target", "tokens")
ALL_ELSE = 0.01  # of a gradient that is no multiple of the objective's: then the loss is another one


class Kind(NamedTuple):
    """A way to count a window, or another loss, and what to say of it."""

    slip: str
    seen: str
    change: str
    of: Callable[..., Any]  # a count of (tokens, labels), or a summed loss of (scores, tokens, labels)


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
    Kind("shifted-the-other-way", "each position is scored against the token before it", NEXT,
         lambda scores, tokens, labels: _sum(scores[:, 1:], labels[:, :-1])),
    Kind("padding-learned", "the places that are filled up are learned too, as if they were text",
         "take the targets from `labels`, which are -100 there, and not from `tokens`",
         lambda scores, tokens, labels: _sum(scores[:, :-1], tokens[:, 1:])),
    Kind("line-means", "each line has a mean of its own, so a token in a short line weighs more",
         "sum over all tokens of the micro-batch, and do not divide by a line's length", _line_means),
)  # fmt: skip


def outcome_of(train: Callable, praise: str, accumulation_steps: int, seconds: float) -> Outcome:
    """Run a learner's loop on the lines of the Zen of Python, and return what is to be said of it."""
    verdict = audited(train, _setting(accumulation_steps, Objective(_next_token, COUNT, unit="tokens")), seconds)
    if verdict.ok or verdict.trace is None or not verdict.trace.updates:
        return of_verdict(verdict, praise)
    if in_smaller_pieces(verdict, [[COUNT(batch) for batch in window] for window in _batches(accumulation_steps)]):
        return Outcome(RIGHT, praise, trace=verdict.trace)
    explained = _explained(verdict)
    if explained:
        item = _counted(verdict, accumulation_steps)
        if item is None and not verdict.findings:
            item = uneven(windows_of(verdict.trace), tolerance_of(verdict.trace), "token")
    else:
        item = _another_loss(train, verdict, accumulation_steps, seconds)
    if item is not None:
        measured = verdict.trace if explained else None  # weights of another loss would say nothing
        return Outcome(NOT_YET, "there is one thing to mend.", (item,), trace=measured)
    contradicts = not verdict.findings and fair(verdict.trace)  # a fair picture of half a run
    outcome = of_verdict(verdict, praise, advise(train, TOKENS), remark=remark(verdict.trace))
    return Outcome(outcome.status, outcome.lead, outcome.items) if contradicts else outcome


def _setting(steps: int, objective: Objective) -> Setting:
    lines = tasks.zen()
    model = tasks.next_token_model(dtype=torch.float64, hidden=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = in_micro_batches(lines, SIZES, lines.collate)
    return Setting(
        model, objective, loader, dict(zip(ARGUMENTS, (model, loader, optimizer, steps), strict=True)), steps
    )


def _explained(verdict: Verdict) -> bool:
    """Return whether the loop's gradients are made of those of the objective."""
    return all((update.unexplained or 0) < ALL_ELSE for update in verdict.trace.updates)


def _another_loss(train: Callable, verdict: Verdict, steps: int, seconds: float) -> tuple[str, ...] | None:
    """Say which other loss a loop takes, where it is a known one."""
    for kind in LOSSES:
        if _takes(train, kind, steps, seconds):
            at = next((m.location for m in verdict.trace.micro_batches if m.location), "the line with `backward()`")
            return (
                f"The loss is another one ({kind.slip})",
                f"Measured: {kind.seen}.",
                f"To change, before {at}: {kind.change}.",
            )
    return None


def _takes(train: Callable, kind: Kind, steps: int, seconds: float) -> bool:
    def total(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return kind.of(model(batch[0]), *batch)

    objective = Objective(total_loss=total, count=lambda batch: len(batch[1]))
    verdict = audited(train, _setting(steps, objective), seconds)
    return bool(verdict.trace and verdict.trace.updates) and _explained(verdict)


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
    return None


def _batches(steps: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Yield the windows of a pass."""
    lines = tasks.zen()
    batches = list(in_micro_batches(lines, SIZES, lines.collate))
    for i in range(0, len(batches), steps):
        yield batches[i : i + steps]
