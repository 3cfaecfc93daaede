"""A scheduler that steps more often than there are updates, inside windows or at their ends."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.optim import lr_scheduler

import accumkit as ak
from tests.problems import images

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")


def run(at_update=lambda members: None, at_micro_batch=lambda i: None, at_pass=lambda: None, passes=2):
    """Return the right loop, with something done after each update, micro-batch or pass."""

    def loop(model, loader, optimizer, steps, scheduler):
        at = 0
        for _ in range(passes):
            for window in ak.windows(loader, steps, ak.classification()):
                optimizer.zero_grad()
                for pixels, labels in window:
                    (F.cross_entropy(model(pixels), labels, reduction="sum") / window.count).backward()
                    at += 1
                    if len(window) > 1:
                        at_micro_batch(at)
                optimizer.step()
                at_update(len(window))
            at_pass()

    return loop


def audited(schedule, *others, steps=3, **how):
    """Watch a loop that steps schedulers; ``how`` says where, by their number."""
    data = images(48)  # 12 micro-batches
    optimizer = torch.optim.SGD(data.model.parameters(), lr=0.05)
    made = [kind(optimizer) for kind in (schedule, *others)]
    return ak.audit(data.watch(run(**{name: act(made) for name, act in how.items()}), steps, optimizer=optimizer))


def exponential(optimizer):
    return lr_scheduler.ExponentialLR(optimizer, 0.9)


def as_often_as_micro_batches(made):
    def step(members):
        for _ in range(members):
            made[0].step()

    return step


def twice(made):
    def step(members):
        made[0].step()
        made[0].step()

    return step


def twice_in_a_loop(made):
    return lambda members: [made[0].step() for _ in range(2)]


def test_n_steps_at_the_boundary_are_named():
    verdict = audited(exponential, at_update=as_often_as_micro_batches)
    (finding,) = verdict.findings
    assert finding.pitfall == "scheduler-every-micro-batch"
    assert finding.evidence.startswith("24 scheduler steps for 8 updates: as many as micro-batches, so a schedule of 3")
    assert finding.location.startswith("test_schedule_rules.py:")
    assert verdict.status == "not equivalent"


def test_two_steps_an_update_are_said():
    verdict = audited(exponential, at_update=twice_in_a_loop)
    assert verdict.findings == ()
    assert "There were 16 scheduler steps at test_schedule_rules.py:" in verdict.reason
    assert "for 8 updates: if they are of one scheduler, a schedule planned in updates is run through 2 times" in (
        verdict.reason
    )
    verdict = audited(exponential, steps=4, at_micro_batch=lambda made: lambda i: i % 2 == 0 and made[0].step())
    assert verdict.findings == ()
    assert "There were 12 scheduler steps" in verdict.reason


def one_line_each(made):
    def step(members):
        made[0].step()
        made[1].step()

    return step


def planned_twice_as_long(optimizer):
    return lr_scheduler.LinearLR(optimizer, total_iters=16)


def planned_in_micro_batches(optimizer):
    return lr_scheduler.LinearLR(optimizer, total_iters=24)


@pytest.mark.parametrize(
    ("schedulers", "how"),
    [
        ([exponential], {"at_update": lambda made: lambda members: made[0].step()}),
        ([exponential], {"at_pass": lambda made: made[0].step}),
        ([exponential, exponential], {"at_update": one_line_each}),
        ([exponential, lambda o: lr_scheduler.LinearLR(o, total_iters=8)],
         {"at_update": lambda made: lambda members: [scheduler.step() for scheduler in made]}),
        ([exponential, exponential],
         {"at_update": lambda made: lambda members: made[0].step(), "at_pass": lambda made: made[1].step}),
        ([planned_twice_as_long], {"at_update": twice_in_a_loop}),
        ([planned_in_micro_batches], {"at_update": as_often_as_micro_batches}),
        ([lambda o: lr_scheduler.ChainedScheduler([exponential(o), exponential(o)])],
         {"at_update": lambda made: lambda members: made[0].step()}),
    ],
    ids=["update", "pass", "two", "two in one line", "both", "planned so", "in micro-batches", "chained"],
)  # fmt: skip
def test_schedules_that_are_followed_as_planned(schedulers, how):
    verdict = audited(*schedulers, **how)
    assert verdict.findings == ()
    assert "scheduler" not in verdict.reason


def test_two_lines_of_one_scheduler_cannot_be_told_from_two_schedulers():
    assert audited(exponential, at_update=twice).findings == ()
