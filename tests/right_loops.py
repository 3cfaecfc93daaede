"""Loops that are right, or mean something else on purpose, and look odd: an audit must accuse none of them.

Each takes (model, loader, optimizer, steps, scheduler), like those of faulty_loops.
"""

from __future__ import annotations

import copy
from itertools import islice

import torch
import torch.nn.functional as F
from torch import nn

import accumkit as ak

PASSES = 2


def six_lines(model, loader, optimizer, steps, scheduler):
    objective = ak.classification()
    for _ in range(PASSES):
        for window in ak.windows(loader, steps, objective):
            optimizer.zero_grad()
            for batch in window:
                (objective.total(model, batch) / window.count).backward()
            optimizer.step()
            scheduler.step()


def train_epoch(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        ak.train_epoch(model, loader, optimizer, ak.classification(), accumulation_steps=steps)


def unbuffered(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        ak.train_epoch(model, loader, optimizer, ak.classification(), accumulation_steps=steps, buffered=False)


def collected(model, loader, optimizer, steps, scheduler):
    """Windows collected in a list first; autograd.backward, and gradients set to None by hand."""
    for _ in range(PASSES):
        batches = iter(loader)
        while window := list(islice(batches, steps)):
            count = sum(len(labels) for _, labels in window)
            for p in model.parameters():
                p.grad = None
            for images, labels in window:
                torch.autograd.backward(F.cross_entropy(model(images), labels, reduction="sum") / count)
            optimizer.step()
            scheduler.step()


def running_mean(model, loader, optimizer, steps, scheduler):
    """Keeps the mean of the window so far in .grad, as optax does: earlier gradients shrink at each backward."""
    for _ in range(PASSES):
        done = 0
        for i, (images, labels) in enumerate(loader, 1):
            done += len(labels)
            for p in model.parameters():
                if p.grad is not None:
                    p.grad *= (done - len(labels)) / done
            (F.cross_entropy(model(images), labels) * len(labels) / done).backward()
            if i % steps == 0 or i == len(loader):
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad(set_to_none=False)
                done = 0


def augmented(model, loader, optimizer, steps, scheduler):
    """Noise added after the loader, and clipping of the finished gradient by a function imported by name."""
    from torch.nn.utils import clip_grad_norm_

    for _ in range(PASSES):
        count = 0
        for i, (images, labels) in enumerate(loader, 1):
            noisy = images + 0.1 * torch.randn_like(images)
            F.cross_entropy(model(noisy), labels, reduction="sum").backward()
            count += len(labels)
            if i % steps == 0 or i == len(loader):
                for p in model.parameters():
                    p.grad /= count
                clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                count = 0


def clipped_by_hand(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        batches = iter(loader)
        while window := list(islice(batches, steps)):
            count = sum(len(labels) for _, labels in window)
            optimizer.zero_grad()
            for images, labels in window:
                (F.cross_entropy(model(images), labels, reduction="sum") / count).backward()
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            for p in model.parameters():
                p.grad.mul_((0.05 / norm).clamp(max=1.0))
            optimizer.step()
            scheduler.step()


def averaged_and_evaluated(model, loader, optimizer, steps, scheduler):
    """An average of the model once an update, an evaluation once a pass, a scheduler that counts passes."""
    average = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(PASSES):
        for window in ak.windows(loader, steps, ak.classification()):
            optimizer.zero_grad()
            for images, labels in window:
                (F.cross_entropy(model(images), labels, reduction="sum") / window.count).backward()
            optimizer.step()
            average.update_parameters(model)
        scheduler.step()
        with torch.no_grad():
            for images, _ in loader:
                model(images)


def scaled(model, loader, optimizer, steps, scheduler):
    """A GradScaler whose first steps are skipped while it looks for a scale."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**21, growth_interval=10**6)
    for _ in range(PASSES):
        for window in ak.windows(loader, steps, ak.classification()):
            optimizer.zero_grad()
            for images, labels in window:
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = F.cross_entropy(model(images), labels, reduction="sum") / window.count
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()


def straddling(model, loader, optimizer, steps, scheduler):
    """Windows go on across the end of a pass; the counter is never reset."""
    seen = count = 0
    for _ in range(3):
        for images, labels in loader:
            F.cross_entropy(model(images), labels, reduction="sum").backward()
            seen, count = seen + 1, count + len(labels)
            if seen % steps == 0:
                for p in model.parameters():
                    p.grad /= count
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                count = 0


def straddling_means(model, loader, optimizer, steps, scheduler):
    seen = 0
    for _ in range(PASSES):
        for images, labels in loader:
            (F.cross_entropy(model(images), labels) / steps).backward()
            seen += 1
            if seen % steps == 0:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


def warm_up(model, loader, optimizer, steps, scheduler):
    """Windows grow from 1 micro-batch to N."""
    wanted, window = 1, []
    for _ in range(3):
        for images, labels in loader:
            window.append(len(labels))
            F.cross_entropy(model(images), labels, reduction="sum").backward()
            if len(window) >= wanted:
                for p in model.parameters():
                    p.grad /= sum(window)
                optimizer.step()
                optimizer.zero_grad()
                window, wanted = [], min(steps, wanted + 1)


def summed(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for i, (images, labels) in enumerate(loader, 1):
            F.cross_entropy(model(images), labels, reduction="sum").backward()
            if i % steps == 0 or i == len(loader):
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


def third_of_a_loss(model, loader, optimizer, steps, scheduler):
    """A loss that counts 0.3 times, on purpose."""
    for _ in range(PASSES):
        for window in ak.windows(loader, steps, ak.classification()):
            optimizer.zero_grad()
            for images, labels in window:
                (0.3 * F.cross_entropy(model(images), labels, reduction="sum") / window.count).backward()
            optimizer.step()


def other_loss(model, loader, optimizer, steps, scheduler):
    """Label smoothing, which the declared objective does not have."""
    for _ in range(PASSES):
        for window in ak.windows(loader, steps, ak.classification()):
            optimizer.zero_grad()
            for images, labels in window:
                loss = F.cross_entropy(model(images), labels, reduction="sum", label_smoothing=0.2)
                (loss / window.count).backward()
            optimizer.step()


def closure(model, loader, optimizer, steps, scheduler):
    """L-BFGS evaluates a window several times a step."""
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    for _ in range(PASSES):
        for window in ak.windows(loader, steps, ak.classification()):
            batches = list(window)

            def evaluate(batches=batches, count=window.count):
                optimizer.zero_grad()
                total = 0.0
                for images, labels in batches:
                    loss = F.cross_entropy(model(images), labels, reduction="sum") / count
                    loss.backward()
                    total += loss.detach()
                return total

            optimizer.step(evaluate)


def adversary(model, loader, optimizer, steps, scheduler):
    """A GAN: the watched discriminator also gets gradients of the generator's turn, and clears them."""
    generator = nn.Linear(4, 64, dtype=torch.float64)
    other = torch.optim.SGD(generator.parameters(), lr=0.01)
    for _ in range(PASSES):
        for images, _ in loader:
            fake = generator(torch.randn(len(images), 4, dtype=torch.float64)).view(-1, 1, 8, 8)
            other.zero_grad()
            (-F.logsigmoid(model(fake)[:, 0]).mean()).backward()
            other.step()
            optimizer.zero_grad()
            real = -F.logsigmoid(model(images)[:, 0]).mean()
            false = -F.logsigmoid(-model(fake.detach())[:, 0]).mean()
            (real + false).backward()
            optimizer.step()


def two_optimizers(model, loader, optimizer, steps, scheduler):
    """One optimizer for each half of the model, both stepped at the boundary."""
    layers = [m for m in model if list(m.parameters())]
    pair = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in layers]
    for _ in range(PASSES):
        for window in ak.windows(loader, steps, ak.classification()):
            for o in pair:
                o.zero_grad()
            for images, labels in window:
                (F.cross_entropy(model(images), labels, reduction="sum") / window.count).backward()
            for o in pair:
                o.step()


def flushed_once_more(model, loader, optimizer, steps, scheduler):
    """An unconditional step after each pass, on gradients that are None already."""
    for _ in range(PASSES):
        for window in ak.windows(loader, steps, ak.classification()):
            for images, labels in window:
                (F.cross_entropy(model(images), labels, reduction="sum") / window.count).backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.step()
        optimizer.zero_grad()


def full_windows_only(model, loader, optimizer, steps, scheduler):
    """Drops the tail; right where tail="drop" is declared."""
    for _ in range(PASSES):
        optimizer.zero_grad()
        for i, (images, labels) in enumerate(loader, 1):
            (F.cross_entropy(model(images), labels) / steps).backward()
            if i % steps == 0:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


def watched_copy(model, loader, optimizer, steps, scheduler):
    """Trains a copy beside the model in the same way; only the model counts."""
    twin = copy.deepcopy(model)
    second = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(PASSES):
        for window in ak.windows(loader, steps, ak.classification()):
            optimizer.zero_grad()
            for images, labels in window:
                (F.cross_entropy(model(images), labels, reduction="sum") / window.count).backward()
                F.cross_entropy(twin(images), labels).backward()
                second.step()
                second.zero_grad()
            optimizer.step()


def broken_off(model, loader, optimizer, steps, scheduler):
    """Stops in the middle of the second pass, at the end of a window."""
    for epoch in range(2):
        for number, window in enumerate(ak.windows(loader, steps, ak.classification())):
            optimizer.zero_grad()
            for images, labels in window:
                (F.cross_entropy(model(images), labels, reduction="sum") / window.count).backward()
            optimizer.step()
            if epoch == 1 and number == 0:
                return


# beside faults that have to do with data, evaluations, schedules and memory
def evaluated_inside(model, loader, optimizer, steps, scheduler):
    """An evaluation in the middle of windows, one between them that clears, and one of every micro-batch's output."""
    for _ in range(PASSES):
        for window in ak.windows(loader, steps, ak.classification()):
            for images, labels in window:
                (F.cross_entropy(model(images), labels, reduction="sum") / window.count).backward()
                with torch.no_grad():
                    model(images)
            optimizer.step()
            optimizer.zero_grad()
            model.eval()
            model.zero_grad()
            model(images)
            model.train()


def leaving_out(model, loader, optimizer, steps, scheduler):
    """Leaves some micro-batches out and does not count them; the boundary counts what was fetched."""
    for _ in range(PASSES):
        count = 0
        for i, (images, labels) in enumerate(loader, 1):
            if i % 3 != 2 or steps == 1:
                F.cross_entropy(model(images), labels, reduction="sum").backward()
                count += len(labels)
            if i % steps == 0 or i == len(loader):
                if count:
                    for p in model.parameters():
                        p.grad /= count
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                count = 0


def leaving_out_of_windows(model, loader, optimizer, steps, scheduler):
    """Leaves some out before its windows are made, so that each has N; fetches one batch ahead, as some tools do."""
    for _ in range(PASSES):
        batches, done, count = iter(loader), 0, 0
        ahead = next(batches, None)
        for i in range(len(loader)):
            (images, labels), ahead = ahead, next(batches, None)
            if i % 3 != 1:
                F.cross_entropy(model(images), labels, reduction="sum").backward()
                done, count = done + 1, count + len(labels)
            if count and (done == steps or ahead is None):
                for p in model.parameters():
                    p.grad /= count
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                done = count = 0


def every_fourth_to_evaluate(model, loader, optimizer, steps, scheduler):
    """Every fourth micro-batch is evaluated and not trained on."""
    for _ in range(PASSES):
        count = done = 0
        for i, (images, labels) in enumerate(loader, 1):
            if i % 4 == 0:
                with torch.no_grad():
                    model(images)
            else:
                F.cross_entropy(model(images), labels, reduction="sum").backward()
                count, done = count + len(labels), done + 1
            if count and (done == steps or i == len(loader)):
                for p in model.parameters():
                    p.grad /= count
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                count = done = 0


def scheduled_in_micro_batches(model, loader, optimizer, steps, scheduler):
    """A schedule that is planned in micro-batches and stepped at each: its end comes when it should."""
    own = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=PASSES * len(loader))
    for _ in range(PASSES):
        for window in ak.windows(loader, steps, ak.classification()):
            optimizer.zero_grad()
            for number, (images, labels) in enumerate(window, 1):
                (F.cross_entropy(model(images), labels, reduction="sum") / window.count).backward()
                if number == len(window):
                    optimizer.step()
                own.step()


def first_of_many_passes(model, loader, optimizer, steps, scheduler):
    """A schedule of N passes, planned in updates, of which one pass is run."""
    windows = -(-len(loader) // steps)
    own = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps * windows)
    for window in ak.windows(loader, steps, ak.classification()):
        optimizer.zero_grad()
        for images, labels in window:
            (F.cross_entropy(model(images), labels, reduction="sum") / window.count).backward()
        optimizer.step()
        own.step()


def drawn_anew(model, loader, optimizer, steps, scheduler):
    """Each micro-batch is the first of a loader that shuffles: other data every time."""
    shuffled = torch.utils.data.DataLoader(loader.dataset, 3, shuffle=True)
    for _ in range(3):
        batches = [next(iter(shuffled)) for _ in range(steps)]
        optimizer.zero_grad()
        for images, labels in batches:
            (F.cross_entropy(model(images), labels) / steps).backward()
        optimizer.step()
        scheduler.step()


def more_steps_than_data(model, loader, optimizer, steps, scheduler):
    """Windows of more micro-batches than the data have: they go round."""
    few = torch.utils.data.DataLoader(torch.utils.data.Subset(loader.dataset, range(6)), 3)
    seen = 0
    for _ in range(2 * steps):
        for images, labels in few:
            (F.cross_entropy(model(images), labels) / steps).backward()
            seen += 1
            if seen % steps == 0:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


def duplicates(model, loader, optimizer, steps, scheduler):
    """Data that hold the same batch again and again, as a quick test has them."""
    batch = next(iter(loader))
    for _ in range(PASSES):
        ak.train_epoch(model, [batch] * 7, optimizer, ak.classification(), accumulation_steps=steps)


def sharpness_aware(model, loader, optimizer, steps, scheduler):
    """SAM: each batch twice, the second time at parameters moved uphill; no accumulation."""
    for images, labels in loader:
        F.cross_entropy(model(images), labels).backward()
        moved = []
        with torch.no_grad():
            for p in model.parameters():
                moved.append(0.01 * p.grad)
                p += moved[-1]
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        with torch.no_grad():
            for p, step in zip(model.parameters(), moved, strict=True):
                p -= step
        optimizer.step()
        optimizer.zero_grad()


def two_heads(model, loader, optimizer, steps, scheduler):
    """Each micro-batch goes forward twice, for two losses."""
    for _ in range(PASSES):
        for i, (images, labels) in enumerate(loader, 1):
            (0.5 * F.cross_entropy(model(images), labels) / steps).backward()
            (0.5 * F.cross_entropy(model(images), labels, label_smoothing=0.1) / steps).backward()
            if i % steps == 0 or i == len(loader):
                optimizer.step()
                optimizer.zero_grad()


def two_backwards(model, loader, optimizer, steps, scheduler):
    """A graph that is kept because a second backward goes through it; losses that are kept as long as their window."""
    for _ in range(PASSES):
        for window in ak.windows(loader, steps, ak.classification()):
            optimizer.zero_grad()
            losses = []
            for images, labels in window:
                loss = F.cross_entropy(model(images), labels, reduction="sum") / window.count
                (0.25 * loss).backward(retain_graph=True)
                (0.75 * loss).backward()
                losses.append(loss)
            optimizer.step()


def penalised(model, loader, optimizer, steps, scheduler):
    """A penalty once an update."""
    for _ in range(PASSES):
        for window in ak.windows(loader, steps, ak.classification()):
            optimizer.zero_grad()
            for images, labels in window:
                (F.cross_entropy(model(images), labels, reduction="sum") / window.count).backward()
            (0.01 * sum(p.square().sum() for p in model.parameters())).backward()
            optimizer.step()


def penalised_in_parts(model, loader, optimizer, steps, scheduler):
    """The same penalty, a part of it with every micro-batch."""
    for _ in range(PASSES):
        for window in ak.windows(loader, steps, ak.classification()):
            optimizer.zero_grad()
            for images, labels in window:
                loss = F.cross_entropy(model(images), labels, reduction="sum") / window.count
                (loss + 0.01 * sum(p.square().sum() for p in model.parameters()) / len(window)).backward()
            optimizer.step()


def whole_passes(model, loader, optimizer, steps, scheduler):
    """One update a pass, whatever N was declared."""
    for _ in range(PASSES):
        optimizer.zero_grad()
        for images, labels in loader:
            (F.cross_entropy(model(images), labels) / len(loader)).backward()
        optimizer.step()
        scheduler.step()


def first_windows(model, loader, optimizer, steps, scheduler):
    """Two short passes, as a quick test makes them: one window each."""
    for _ in range(PASSES):
        optimizer.zero_grad()
        for images, labels in islice(loader, steps):
            (F.cross_entropy(model(images), labels) / steps).backward()
        optimizer.step()


def evaluated_adversary(model, loader, optimizer, steps, scheduler):
    """A GAN: the discriminator is looked at between the generator's turn and its own, and clears what that left."""
    generator = nn.Linear(4, 64, dtype=torch.float64)
    other = torch.optim.SGD(generator.parameters(), lr=0.01)
    for _ in range(PASSES):
        for images, _ in loader:
            fake = generator(torch.randn(len(images), 4, dtype=torch.float64)).view(-1, 1, 8, 8)
            other.zero_grad()
            (-F.logsigmoid(model(fake)[:, 0]).mean()).backward()
            other.step()
            with torch.no_grad():
                model(fake)
            optimizer.zero_grad()
            real = -F.logsigmoid(model(images)[:, 0]).mean()
            (real - F.logsigmoid(-model(fake.detach())[:, 0]).mean()).backward()
            optimizer.step()


def first_losses_kept(model, loader, optimizer, steps, scheduler):
    """Holds on to the first loss of each pass, to compare others with."""
    first = []
    for _ in range(PASSES):
        for number, window in enumerate(ak.windows(loader, steps, ak.classification())):
            optimizer.zero_grad()
            for place, (images, labels) in enumerate(window):
                loss = F.cross_entropy(model(images), labels, reduction="sum") / window.count
                loss.backward()
                if number == place == 0:
                    first.append(loss)
            optimizer.step()
