"""Exercise 04a: which models give the big batch's gradient, and which do not, whatever the loop does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accumkit import tasks
from accumkit.checks.outcome import Outcome
from accumkit.checks.problem import Problem, WrongAnswer
from accumkit.checks.questions import Question, Slip, judged
from accumkit.checks.stubs import solved
from accumkit.checks.values import plain, shown
from accumkit.studies.nets import calibrate, one_thread, seeded

WINDOW, MICRO_BATCH = 32, 8
DRAWS = 12  # of dropout's masks
EXACT, AVERAGE, NO = CHOICES = ("exact", "on average", "no")
SAID = {
    "yes": EXACT, "true": EXACT, "exactly": EXACT, "average": AVERAGE, "on-average": AVERAGE, "on_average": AVERAGE,
    "false": NO, "never": NO,
}  # fmt: skip

ANSWER = """\
### BEGIN SOLUTION
answer = dict(
    no_norm="exact",  # each: "exact", "on average" or "no"
    batchnorm="no",
    batchnorm_eval="exact",
    batchnorm_untrained="no",
    groupnorm="exact",
    layernorm="exact",
    instancenorm="exact",
    dropout="on average",
)
### INSTEAD OF
# answer = dict(
#     no_norm=...,  # each: "exact", "on average" or "no"
#     batchnorm=...,
#     batchnorm_eval=...,
#     batchnorm_untrained=...,
#     groupnorm=...,
#     layernorm=...,
#     instancenorm=...,
#     dropout=...,
# )
### END SOLUTION
"""

HINTS = (
    "Ask one thing of each model: does the output for an example depend on which *other* examples are in the "
    "micro-batch? Where it does not, losses add up, and so do gradients.",
    "A norm takes a mean and a variance. Say over which values: those of one example, those of all examples at hand, "
    "or fixed ones from earlier. `requires_grad=False` says whether weight and bias learn, not where mean and "
    "variance come from.",
    "Only two of the eight take statistics over the micro-batch at hand. And one of the eight is random: for it, "
    "compare one draw, and then the mean of many draws.",
)


@dataclass(frozen=True)
class Found:
    """How far the accumulated gradient is from the big batch's, in parts of the big batch's length."""

    once: float  # in one run, with the same seed before both
    many: float  # the mean of DRAWS runs against the mean of as many; the same as `once` where nothing is random

    @property
    def right(self) -> str:
        """The right answer."""
        if self.once < 1e-9:
            return EXACT
        return AVERAGE if self.many < self.once / 2 else NO


@functools.cache
def measured() -> dict[str, Found]:
    """Run each model on a window at once, and on the same window in micro-batches."""
    images, labels = tasks.digits(WINDOW, torch.float64).tensors
    found = {}
    with one_thread(), seeded(0):
        for name, model in _models(images).items():
            big, small = _gradients(model, images, labels, WINDOW), _gradients(model, images, labels, MICRO_BATCH)
            draws = DRAWS if any(isinstance(layer, nn.Dropout) for layer in model.modules()) else 1
            pairs = [(big(seed), small(seed)) for seed in range(draws)]
            means = [torch.stack(side).mean(0) for side in zip(*pairs, strict=True)]
            found[name] = Found(_apart(*pairs[0]), _apart(*means))
    return found


def _models(images: Tensor) -> dict[str, nn.Module]:
    norms: dict[str, Any] = {
        "no_norm": None,
        "batchnorm": "batch",
        "batchnorm_eval": "batch",
        "batchnorm_untrained": "batch",
        "groupnorm": "group",
        "layernorm": "layer",
        "instancenorm": lambda channels: nn.InstanceNorm2d(channels, affine=True),
        "dropout": lambda channels: nn.Dropout(0.2),
    }
    models = {name: tasks.cnn(norm=norm, dtype=torch.float64) for name, norm in norms.items()}
    calibrate(models["batchnorm_eval"], images)  # as earlier training would have left it
    for layer in models["batchnorm_eval"].modules():
        layer.train(not isinstance(layer, nn.BatchNorm2d))
    for layer in models["batchnorm_untrained"].modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.requires_grad_(False)
    return models


def _gradients(model: nn.Module, images: Tensor, labels: Tensor, size: int) -> Callable[[int], Tensor]:
    def gradient(seed: int) -> Tensor:
        torch.default_generator.manual_seed(seed)
        model.zero_grad()
        for x, y in zip(images.split(size), labels.split(size), strict=True):
            (F.cross_entropy(model(x), y, reduction="sum") / len(labels)).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    return gradient


def _apart(big: Tensor, small: Tensor) -> float:
    return float((small - big).norm() / big.norm())


def _judge(attempt: Any) -> Outcome:
    read = ""
    if isinstance(attempt, dict):
        given, attempt = attempt, {name: _plain(value) for name, value in attempt.items()}
        read = _read(given, attempt)
    found = measured()
    questions = [Question(name, f.right, "", _slips(name, f), choices=CHOICES) for name, f in found.items()]
    off = found["batchnorm"].once
    praise = (
        f"measured on {WINDOW} digits in micro-batches of {MICRO_BATCH}: five gradients are the big batch's up to "
        f"rounding; with BatchNorm it is off by {off:.2f} of its length, whether or not weight and bias are trained; "
        f"with dropout it is off too, but in the mean of {DRAWS} draws by less than half as much as in one."
    )
    outcome = judged(attempt, questions, praise)
    return replace(outcome, lead=f"{outcome.lead}{read}")


def _read(given: dict, attempt: dict) -> str:
    """Say in which of the exercise's words an answer in others was read."""
    pairs = [(shown(value), attempt[name]) for name, value in given.items() if isinstance(attempt[name], str)]
    others = dict.fromkeys(f"{said} as {word!r}" for said, word in pairs
                           if word in CHOICES and said.strip("'\" ").lower() != word)  # fmt: skip
    return f" (Read: {', '.join(others)}.)" if others else ""


def _plain(value: Any) -> Any:
    """Return an answer to yes or no in the exercise's own words."""
    value = plain(value)
    return SAID.get(str(value).strip().lower(), value) if isinstance(value, bool | str) else value


def _slips(name: str, found: Found) -> list[Slip]:
    """Return what each wrong answer about a model confuses, with what was measured."""
    off = f"Measured: the accumulated gradient is off by {found.once:.2f} of the big batch's length"
    exact = "Measured: accumulated and big-batch gradient differ by rounding alone"
    fixed = "nothing in it is random, so a mean over many runs is the same as one run"
    says = {
        "no_norm": {NO: ("sums-disbelieved", f"{exact}. Its loss is a sum over examples; what could be lost?")},
        "batchnorm": {
            EXACT: ("batchnorm-statistics", f"{off}. Over which examples does it take mean and variance?"),
            AVERAGE: ("statistics-as-chance", f"{off}, in every run: {fixed}."),
        },
        "batchnorm_eval": {
            NO: (
                "eval-still-mixes",
                f"{exact}. In evaluation mode BatchNorm does not look at the batch at hand. What does it use instead?",
            )
        },
        "batchnorm_untrained": {
            EXACT: (
                "frozen-weights-only",
                f"{off}. `requires_grad=False` stops weight and bias from learning. Where do mean and variance come "
                "from, in training mode?",
            ),
            AVERAGE: ("untrained-as-chance", f"{off}, in every run: {fixed}."),
        },
        "groupnorm": {
            NO: ("groupnorm-as-batchnorm", f"{exact}. Groups of what does GroupNorm form: of examples, or of channels?")
        },
        "layernorm": {
            NO: ("layernorm-as-batchnorm", f"{exact}. Over which values of one example does it take its mean?")
        },
        "instancenorm": {
            NO: ("instancenorm-as-batchnorm", f"{exact}. An instance is one example. Does it look at any other?")
        },
        "dropout": {
            EXACT: (
                "same-masks-expected",
                "Measured: the two gradients differ, even with the same seed before both. One big pass draws its masks "
                f"in another order than {WINDOW // MICRO_BATCH} small ones.",
            ),
            NO: (
                "chance-as-fault",
                f"Measured: the two gradients differ in one run. But in the mean of {DRAWS} runs they differ by less "
                "than half as much. What does that tell you about the difference?",
            ),
        },
    }
    says = {AVERAGE: ("rounding-as-chance", f"{exact}, in every run: {fixed}."), **says[name]}
    return [Slip(value, fault, text) for value, (fault, text) in says.items() if value != found.right]


def _with(name: str, value: str) -> str:
    return f'{solved(ANSWER)}answer["{name}"] = "{value}"\n'


WRONG_ANSWERS = (
    # accumulation is said to simulate the large batch, whatever the model
    WrongAnswer("batchnorm-statistics", _with("batchnorm", "exact")),
    WrongAnswer("frozen-weights-only", _with("batchnorm_untrained", "exact")),
    WrongAnswer("eval-still-mixes", _with("batchnorm_eval", "no")),
    WrongAnswer("groupnorm-as-batchnorm", _with("groupnorm", "no")),
    WrongAnswer("layernorm-as-batchnorm", _with("layernorm", "no")),
    WrongAnswer("instancenorm-as-batchnorm", _with("instancenorm", "no")),
    WrongAnswer("same-masks-expected", _with("dropout", "exact")),
    WrongAnswer("chance-as-fault", _with("dropout", "no")),
)

PROBLEM = Problem(
    id="04a",
    title="Exact, or not",
    kind="predict",
    minutes=8,
    difficulty="easy",
    asks="answer",
    answer=ANSWER,
    hints=HINTS,
    judge=_judge,
    wrong_answers=WRONG_ANSWERS,
)

check, hint, solution = PROBLEM.check, PROBLEM.hint, PROBLEM.solution
