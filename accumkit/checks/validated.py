"""Where a training loop validated, and what exercise 03e says of places that are not those where it was due."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from torch import nn
from torch.optim import Optimizer

from accumkit.audit.findings import listed, several
from accumkit.checks.audited import CALLS


@dataclass(frozen=True)
class Plan:
    """How long a pass is, and after how many micro-batches a window is full and validation is due."""

    micro_batches: int
    steps: int
    every: int

    @property
    def ends(self) -> list[int]:
        """Micro-batches after which an update is made."""
        return [*range(self.steps, self.micro_batches, self.steps), self.micro_batches]

    @property
    def due(self) -> list[int]:
        """Micro-batches after which validation is due."""
        return [*range(self.every, self.micro_batches + 1, self.every)]

    @property
    def places(self) -> list[int]:
        """Micro-batches after which validation is to be made: the first window end at or after it is due."""
        return self.first(lambda end, last: any(last < due <= end for due in self.due))

    def first(self, due: Callable[[int, int], bool]) -> list[int]:
        """Return the window ends of which ``due(end, the end before)`` holds."""
        return [end for last, end in zip([0, *self.ends], self.ends, strict=False) if due(end, last)]


@dataclass
class Calls:
    """When a validation was called: after how many backwards and steps, and from which line.

    Examples
    --------
    >>> import torch
    >>> from accumkit.checks.validated import Calls
    >>> model = torch.nn.Linear(1, 1)
    >>> calls = Calls.of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> model(torch.ones(1, 1)).sum().backward()
    >>> calls.note("cell 3, line 7")
    >>> calls.after
    [(1, 0)]
    """

    backwards: int = 0  # so far
    steps: int = 0
    after: list[tuple[int, int]] = field(default_factory=list)  # backwards and steps when it was called
    lines: list[str | None] = field(default_factory=list)

    @classmethod
    def of(cls, model: nn.Module, optimizer: Optimizer) -> Calls:
        """Return a count of a model's backwards and an optimizer's steps, all still to come."""
        calls = cls()
        next(model.parameters()).register_post_accumulate_grad_hook(calls._ran)
        optimizer.register_step_post_hook(calls._stepped)
        return calls

    def note(self, line: str | None) -> None:
        """Note a call of the validation."""
        self.after.append((self.backwards, self.steps))
        self.lines.append(line)

    def _ran(self, *args: object) -> None:
        self.backwards += 1

    def _stepped(self, *args: object) -> None:
        self.steps += 1


def places(calls: Calls, plan: Plan, step: str | None) -> tuple[str, ...] | None:
    """Return what to say of validations that came elsewhere than they should; None where all are in their places.

    Parameters
    ----------
    calls : Calls
        Of a loop whose updates are right, two passes.
    plan : Plan
    step : str or None
        The line of an optimizer's step, to point at where nothing was validated.
    """
    made = len(plan.ends)
    expected = [(end + n * plan.micro_batches, plan.ends.index(end) + 1 + n * made)
                for n in range(CALLS) for end in plan.places]  # fmt: skip
    if calls.after == expected:
        return None
    due = f"It was due after {_micro_batches(plan.due)}, so at the window ends {listed(list(map(str, plan.places)))}"
    at = f", at {line}" if (line := next(iter(calls.lines), step)) else ""
    change = f"To change{at}: at every window end, ask whether it has become due since the window end before."
    if not calls.after:
        return "No validation (not-validated)", f"Measured: `validate` was never called. {due}.", change
    by_pass = [[(ran - n * plan.micro_batches, steps - n * made) for ran, steps in calls.after
                if n * plan.micro_batches < ran <= (n + 1) * plan.micro_batches] for n in range(CALLS)]  # fmt: skip
    if by_pass[0] != by_pass[1] or sum(map(len, by_pass)) < len(calls.after):
        found = f"{several(len(calls.after), 'call')} of `validate`, where {len(expected)} were due"
        return "Validations that were not due (validated-elsewhere)", f"Measured: {found}. {due}.", change
    came = [ran for ran, _ in by_pass[0]]
    measured = f"Measured: it was validated after {_micro_batches(came)}. {due}."
    inside = [ran for ran, steps in by_pass[0] if plan.ends[steps - 1 : steps] != [ran]]
    if inside:
        why = (
            f"After {_micro_batches(inside)} the step of the window was still to come: the gradients may be kept, "
            "but what is validated is the model of the window before."
        )
        later = f"To change{at}: remember that it is due, and validate after the step that ends the window."
        return "Validated inside a window (validated-inside)", measured, why, later
    for fault, those, why in _known(plan):
        if came == those:
            return f"Validations come at the wrong places ({fault})", measured, why, change
    return "Validations come at the wrong places (validated-elsewhere)", measured, change


def _known(plan: Plan) -> list[tuple[str, list[int], str]]:
    """Return the places that tell how they came about."""
    ends, last = plan.ends, plan.micro_batches
    since: list[int] = []
    for end in ends:
        if end - (since[-1] if since else 0) >= plan.every:
            since.append(end)
    return [
        ("validated-every-window", ends, "Every window end has one, due or not."),
        (
            "only-where-both-meet",
            plan.first(lambda end, before: end in plan.due),
            "Only where a window happens to end at the very micro-batch is it made; the others are left out.",
        ),
        ("validated-once-a-pass", [last], "It comes once, when the pass is over."),
        (
            "counted-in-updates",
            ends[plan.every - 1 :: plan.every],
            "`validate_every` counts micro-batches, and the loop counts updates.",
        ),
        (
            "counted-from-the-last",
            since,
            f"It is due every {plan.every} micro-batches from the beginning of the pass. A validation that came late "
            "does not put off the next one.",
        ),
        (
            "one-more-at-the-end",
            [*plan.places, last],
            "The end of the pass has one that was not due: is there a validation after the loop, or is the short last "
            "window counted as a full one?",
        ),
        (
            "a-window-late",
            [end for before, end in pairwise(ends) if before in plan.places],
            "Each comes a window late: what is compared is the number of micro-batches before this window.",
        ),
        (
            "due-for-ever",
            [end for end in ends if end >= plan.places[0]],
            "From the first one on, every window end has one: once it is validated, it is no longer due.",
        ),
    ]


def _micro_batches(numbers: Iterable[int]) -> str:
    said = list(map(str, numbers))
    return f"micro-batch{'es' * (len(said) > 1)} {listed(said)}"
