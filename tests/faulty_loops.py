"""Training loops as people write them, wrong in one way each; the line at fault ends in the mark ``# HERE``.

Two idioms: a *plain* loop sums losses, counts as it goes and divides the gradients at the boundary; its *mean* twin
divides each micro-batch's mean by the number of micro-batches in the window. Each fault is a line or two of one of
them changed. Every loop takes (model, loader, optimizer, steps, scheduler) and makes two passes over its data.
"""

from __future__ import annotations

from itertools import islice

import torch
import torch.nn.functional as F

PASSES = 2


def plain(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        count = 0
        for i, (images, labels) in enumerate(loader, 1):
            F.cross_entropy(model(images), labels, reduction="sum").backward()
            count += len(labels)
            if i % steps == 0 or i == len(loader):
                for p in model.parameters():
                    p.grad /= count
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                count = 0


def mean(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for i, (images, labels) in enumerate(loader):
            window = min(steps, len(loader) - i // steps * steps)
            (F.cross_entropy(model(images), labels) / window).backward()
            if (i + 1) % steps == 0 or i + 1 == len(loader):
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


def missing_division(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for i, (images, labels) in enumerate(loader):
            F.cross_entropy(model(images), labels).backward()  # HERE
            if (i + 1) % steps == 0 or i + 1 == len(loader):
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


def divided_by_window_twice(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for i, (images, labels) in enumerate(loader):
            window = min(steps, len(loader) - i // steps * steps)
            loss = F.cross_entropy(model(images), labels) / window
            (loss / steps).backward()  # HERE
            if (i + 1) % steps == 0 or i + 1 == len(loader):
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


def divided_mean_by_count(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        count = 0
        for i, (images, labels) in enumerate(loader, 1):
            F.cross_entropy(model(images), labels).backward()  # HERE
            count += len(labels)
            if i % steps == 0 or i == len(loader):
                for p in model.parameters():
                    p.grad /= count
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                count = 0


def divided_by_hand_again(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for i, (images, labels) in enumerate(loader):
            window = min(steps, len(loader) - i // steps * steps)
            (F.cross_entropy(model(images), labels) / window).backward()
            if (i + 1) % steps == 0 or i + 1 == len(loader):
                for p in model.parameters():
                    p.grad /= steps
                optimizer.step()  # HERE
                scheduler.step()
                optimizer.zero_grad()


def tail_divisor(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for i, (images, labels) in enumerate(loader):
            (F.cross_entropy(model(images), labels) / steps).backward()  # HERE
            if (i + 1) % steps == 0 or i + 1 == len(loader):
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


def tail_divisor_of_sums(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for i, (images, labels) in enumerate(loader):
            (F.cross_entropy(model(images), labels, reduction="sum") / (steps * loader.batch_size)).backward()  # HERE
            if (i + 1) % steps == 0 or i + 1 == len(loader):
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


def tail_cleared(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        optimizer.zero_grad()
        count = 0
        for i, (images, labels) in enumerate(loader, 1):
            F.cross_entropy(model(images), labels, reduction="sum").backward()
            count += len(labels)
            if i % steps == 0:
                for p in model.parameters():
                    p.grad /= count
                optimizer.step()  # HERE
                scheduler.step()
                optimizer.zero_grad()
                count = 0


def tail_never_run(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        batches = iter(loader)
        for _ in range(len(loader) // steps):
            for _ in range(steps):
                images, labels = next(batches)
                (F.cross_entropy(model(images), labels) / steps).backward()
            optimizer.step()  # HERE
            scheduler.step()
            optimizer.zero_grad()


def tail_leaked(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for i, (images, labels) in enumerate(loader):
            (F.cross_entropy(model(images), labels) / steps).backward()
            if (i + 1) % steps == 0:
                optimizer.step()  # HERE
                scheduler.step()
                optimizer.zero_grad()


def off_by_one(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        count = 0
        for i, (images, labels) in enumerate(loader):
            F.cross_entropy(model(images), labels, reduction="sum").backward()
            count += len(labels)
            if i % steps == 0 or i + 1 == len(loader):
                for p in model.parameters():
                    p.grad /= count
                optimizer.step()  # HERE
                scheduler.step()
                optimizer.zero_grad()
                count = 0


def one_too_many(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        count = waiting = 0
        for images, labels in loader:
            F.cross_entropy(model(images), labels, reduction="sum").backward()
            count += len(labels)
            waiting += 1
            if waiting > steps:
                for p in model.parameters():
                    p.grad /= count
                optimizer.step()  # HERE
                scheduler.step()
                optimizer.zero_grad()
                count = waiting = 0
        if waiting:
            for p in model.parameters():
                p.grad /= count
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()


def inverted(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        count = 0
        for i, (images, labels) in enumerate(loader):
            F.cross_entropy(model(images), labels, reduction="sum").backward()
            count += len(labels)
            if (i + 1) % steps != 0 or i + 1 == len(loader):
                for p in model.parameters():
                    p.grad /= count
                optimizer.step()  # HERE
                scheduler.step()
                optimizer.zero_grad()
                count = 0


def first_batch_alone(model, loader, optimizer, steps, scheduler):
    """As LLM tutorials had it: steps on the first micro-batch, and loses the last ones."""
    for _ in range(PASSES):
        for i, (images, labels) in enumerate(loader):
            (F.cross_entropy(model(images), labels) / steps).backward()
            if i % steps == 0:
                optimizer.step()  # HERE
                scheduler.step()
                optimizer.zero_grad()


def as_in_a_manual(model, loader, optimizer, steps, scheduler):
    for i, (images, labels) in enumerate(loader):
        accumulating = i % steps != 0
        F.cross_entropy(model(images), labels).backward()
        if not accumulating:
            optimizer.step()
            optimizer.zero_grad()


def step_every(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for images, labels in loader:
            (F.cross_entropy(model(images), labels) / steps).backward()
            optimizer.step()  # HERE
            scheduler.step()
            optimizer.zero_grad()


def step_every_zero_once(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for i, (images, labels) in enumerate(loader):
            if i % steps == 0:
                optimizer.zero_grad()
            window = min(steps, len(loader) - i // steps * steps)
            (F.cross_entropy(model(images), labels) / window).backward()
            optimizer.step()  # HERE
            scheduler.step()


def zero_every(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for i, (images, labels) in enumerate(loader):
            window = min(steps, len(loader) - i // steps * steps)
            optimizer.zero_grad()  # HERE
            (F.cross_entropy(model(images), labels) / window).backward()
            if (i + 1) % steps == 0 or i + 1 == len(loader):
                optimizer.step()
                scheduler.step()


def zero_every_by_hand(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        count = 0
        for i, (images, labels) in enumerate(loader, 1):
            F.cross_entropy(model(images), labels, reduction="sum").backward()
            count += len(labels)
            if i % steps == 0 or i == len(loader):
                for p in model.parameters():
                    p.grad /= count
                optimizer.step()
                scheduler.step()
                count = 0
            for p in model.parameters():
                p.grad = None


def zero_before_step(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for i, (images, labels) in enumerate(loader):
            window = min(steps, len(loader) - i // steps * steps)
            (F.cross_entropy(model(images), labels) / window).backward()
            if (i + 1) % steps == 0 or i + 1 == len(loader):
                optimizer.zero_grad()  # HERE
                optimizer.step()
                scheduler.step()


def stale(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for i, (images, labels) in enumerate(loader):
            window = min(steps, len(loader) - i // steps * steps)
            (F.cross_entropy(model(images), labels) / window).backward()
            if (i + 1) % steps == 0 or i + 1 == len(loader):
                optimizer.step()  # HERE
                scheduler.step()


def stale_within_a_pass(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        optimizer.zero_grad()
        for i, (images, labels) in enumerate(loader):
            window = min(steps, len(loader) - i // steps * steps)
            (F.cross_entropy(model(images), labels) / window).backward()
            if (i + 1) % steps == 0 or i + 1 == len(loader):
                optimizer.step()  # HERE
                scheduler.step()


def scheduler_every(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        count = 0
        for i, (images, labels) in enumerate(loader, 1):
            F.cross_entropy(model(images), labels, reduction="sum").backward()
            count += len(labels)
            if i % steps == 0 or i == len(loader):
                for p in model.parameters():
                    p.grad /= count
                optimizer.step()
                optimizer.zero_grad()
                count = 0
            scheduler.step()  # HERE


def mean_of_means(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for i, (images, labels) in enumerate(loader):
            window = min(steps, len(loader) - i // steps * steps)
            (F.cross_entropy(model(images), labels) / window).backward()  # HERE
            if (i + 1) % steps == 0 or i + 1 == len(loader):
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


def mean_of_token_means(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for i, (tokens, labels) in enumerate(loader):
            window = min(steps, len(loader) - i // steps * steps)
            loss = F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
            (loss / window).backward()  # HERE
            if (i + 1) % steps == 0 or i + 1 == len(loader):
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


def tokens_with_padding(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        count = 0
        for i, (tokens, labels) in enumerate(loader, 1):
            scores, targets = model(tokens)[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
            F.cross_entropy(scores, targets, reduction="sum").backward()  # HERE
            count += targets.numel()
            if i % steps == 0 or i == len(loader):
                for p in model.parameters():
                    p.grad /= count
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                count = 0


def tokens_with_padding_each(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for i, (tokens, labels) in enumerate(loader):
            window = min(steps, len(loader) - i // steps * steps)
            scores, targets = model(tokens)[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
            loss = F.cross_entropy(scores, targets, reduction="sum") / targets.numel()
            (loss / window).backward()  # HERE
            if (i + 1) % steps == 0 or i + 1 == len(loader):
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


def tokens_by_lines(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        count = 0
        for i, (tokens, labels) in enumerate(loader, 1):
            loss = F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
            (loss * len(tokens)).backward()  # HERE
            count += len(tokens)
            if i % steps == 0 or i == len(loader):
                for p in model.parameters():
                    p.grad /= count
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                count = 0


def mean_of_class_means(class_weight):
    def loop(model, loader, optimizer, steps, scheduler):
        for _ in range(PASSES):
            for i, (images, labels) in enumerate(loader):
                window = min(steps, len(loader) - i // steps * steps)
                (F.cross_entropy(model(images), labels, class_weight) / window).backward()  # HERE
                if (i + 1) % steps == 0 or i + 1 == len(loader):
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()

    return loop


def classes_by_examples(class_weight):
    def loop(model, loader, optimizer, steps, scheduler):
        for _ in range(PASSES):
            count = 0
            for i, (images, labels) in enumerate(loader, 1):
                F.cross_entropy(model(images), labels, class_weight, reduction="sum").backward()  # HERE
                count += len(labels)
                if i % steps == 0 or i == len(loader):
                    for p in model.parameters():
                        p.grad /= count
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                    count = 0

    return loop


def evaluation_clears(model, loader, optimizer, steps, scheduler):
    """Evaluates after every fourth micro-batch, and begins with clear gradients."""
    for _ in range(PASSES):
        for i, (images, labels) in enumerate(loader):
            window = min(steps, len(loader) - i // steps * steps)
            (F.cross_entropy(model(images), labels) / window).backward()
            if (i + 1) % steps == 0 or i + 1 == len(loader):
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if (i + 1) % 4 == 0:
                model.zero_grad()  # HERE
                with torch.no_grad():
                    model(images)


def evaluation_clears_afterwards(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        count = 0
        for i, (images, labels) in enumerate(loader, 1):
            F.cross_entropy(model(images), labels, reduction="sum").backward()
            count += len(labels)
            if i % steps == 0 or i == len(loader):
                for p in model.parameters():
                    p.grad /= count
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                count = 0
            if i % 4 == 0:
                model.eval()
                model(images)
                model.train()
                optimizer.zero_grad()  # HERE


def penalty(model):
    return 0.01 * sum(p.square().sum() for p in model.parameters())


def penalty_in_each_loss(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for i, (images, labels) in enumerate(loader):
            window = min(steps, len(loader) - i // steps * steps)
            (F.cross_entropy(model(images), labels) / window + penalty(model)).backward()  # HERE
            if (i + 1) % steps == 0 or i + 1 == len(loader):
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


def penalty_by_itself(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for i, (images, labels) in enumerate(loader):
            window = min(steps, len(loader) - i // steps * steps)
            (F.cross_entropy(model(images), labels) / window).backward()
            penalty(model).backward()  # HERE
            if (i + 1) % steps == 0 or i + 1 == len(loader):
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


def broken(i):
    """Whether a micro-batch, from 1, is taken to be broken: the second, the fifth, the eighth."""
    return i % 3 == 2


def left_out_and_counted(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        count = 0
        for i, (images, labels) in enumerate(loader, 1):
            count += len(labels)
            if not broken(i):
                F.cross_entropy(model(images), labels, reduction="sum").backward()  # HERE
            if i % steps == 0 or i == len(loader):
                for p in model.parameters():
                    p.grad /= count
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                count = 0


def left_out_of_means(model, loader, optimizer, steps, scheduler):
    """Means, divided by the micro-batches of the window, those included that had no backward."""
    for _ in range(PASSES):
        for i, (images, labels) in enumerate(loader):
            window = min(steps, len(loader) - i // steps * steps)
            loss = F.cross_entropy(model(images), labels)
            if not broken(i + 1):
                (loss / window).backward()  # HERE
            if (i + 1) % steps == 0 or i + 1 == len(loader):
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


def means_of_nothing(model, loader, optimizer, steps, scheduler):
    """A mean over a mask by hand: 0/0 where a micro-batch has no target, and NaN for ever."""
    for _ in range(PASSES):
        count = 0
        for i, (tokens, labels) in enumerate(loader, 1):
            targets = labels[:, 1:]
            mask = targets != -100
            chosen = model(tokens)[:, :-1].log_softmax(2).gather(2, targets.clamp(min=0)[:, :, None])[:, :, 0]
            (-(chosen * mask).sum() / mask.sum() * mask.sum()).backward()  # HERE
            count += mask.sum()
            if i % steps == 0 or i == len(loader):
                for p in model.parameters():
                    p.grad /= count
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                count = 0


def average_every(model, loader, optimizer, steps, scheduler):
    average = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(PASSES):
        for i, (images, labels) in enumerate(loader):
            window = min(steps, len(loader) - i // steps * steps)
            (F.cross_entropy(model(images), labels) / window).backward()
            if (i + 1) % steps == 0 or i + 1 == len(loader):
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            average.update_parameters(model)  # HERE


def planned_in_micro_batches(model, loader, optimizer, steps, scheduler):
    own = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=PASSES * len(loader))
    for _ in range(PASSES):
        for i, (images, labels) in enumerate(loader):
            window = min(steps, len(loader) - i // steps * steps)
            (F.cross_entropy(model(images), labels) / window).backward()
            if (i + 1) % steps == 0 or i + 1 == len(loader):
                optimizer.step()
                own.step()  # HERE
                optimizer.zero_grad()


def same_batch_again(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for images, labels in loader:
            for _ in range(steps):
                (F.cross_entropy(model(images), labels) / steps).backward()  # HERE
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()


def first_batch_again(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES * len(loader) // steps):
        for _ in range(steps):
            images, labels = next(iter(loader))
            (F.cross_entropy(model(images), labels) / steps).backward()  # HERE
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


def first_window_again(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES * len(loader) // steps):
        for images, labels in islice(loader, steps):  # HERE
            (F.cross_entropy(model(images), labels) / steps).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


def losses_kept(model, loader, optimizer, steps, scheduler):
    total = 0.0
    for _ in range(PASSES):
        for i, (images, labels) in enumerate(loader):
            window = min(steps, len(loader) - i // steps * steps)
            loss = F.cross_entropy(model(images), labels) / window
            loss.backward()  # HERE
            total += loss
            if (i + 1) % steps == 0 or i + 1 == len(loader):
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


def graphs_retained(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for i, (images, labels) in enumerate(loader):
            window = min(steps, len(loader) - i // steps * steps)
            (F.cross_entropy(model(images), labels) / window).backward(retain_graph=True)  # HERE
            if (i + 1) % steps == 0 or i + 1 == len(loader):
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


def nested(model, loader, optimizer, steps, scheduler):
    """Its own division and boundary, around a tool that counts its calls, and divides by them."""
    calls = 0
    for _ in range(PASSES):
        for i, (images, labels) in enumerate(loader, 1):
            (F.cross_entropy(model(images), labels) / steps).backward()
            if i % steps == 0 or i == len(loader):
                calls += 1
                if calls == steps or i == len(loader):
                    for p in model.parameters():
                        p.grad /= calls
                    optimizer.step()  # HERE
                    scheduler.step()
                    optimizer.zero_grad()
                    calls = 0
