"""Training loops with scalers, clipping and low-precision sums; the line at fault ends in the mark ``# HERE``.

Each takes (model, loader, optimizer, steps, scheduler), as those of faulty_loops do.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

PASSES = 2
SCALE = 65536.0


def scaler_of(**options):
    return torch.amp.GradScaler("cpu", **{"init_scale": SCALE, **options})


def windows(loader, steps):
    """Yield (batch, micro-batches in its window, is it the last of its window)."""
    for i, batch in enumerate(loader):
        size = min(steps, len(loader) - i // steps * steps)
        yield batch, size, (i + 1) % steps == 0 or i + 1 == len(loader)


def norm_of(model):
    return torch.stack([p.grad.norm() for p in model.parameters()]).norm()


# right ones
def amp(model, loader, optimizer, steps, scheduler):
    scaler = scaler_of()
    for _ in range(PASSES):
        for (x, y), size, last in windows(loader, steps):
            scaler.scale(F.cross_entropy(model(x), y) / size).backward()
            if last:
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 0.25)
                scaler.step(optimizer)
                scaler.update()
                scheduler.step()
                optimizer.zero_grad()


def amp_summed(model, loader, optimizer, steps, scheduler):
    scaler = scaler_of()
    for _ in range(PASSES):
        count = 0
        for (x, y), _, last in windows(loader, steps):
            scaler.scale(F.cross_entropy(model(x), y, reduction="sum")).backward()
            count += len(y)
            if last:
                scaler.unscale_(optimizer)
                for p in model.parameters():
                    p.grad /= count
                clip_grad_norm_(model.parameters(), 0.25)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                count = 0


def divided_while_scaled(model, loader, optimizer, steps, scheduler):
    scaler = scaler_of()
    for _ in range(PASSES):
        count = 0
        for (x, y), _, last in windows(loader, steps):
            scaler.scale(F.cross_entropy(model(x), y, reduction="sum")).backward()
            count += len(y)
            if last:
                for p in model.parameters():
                    p.grad /= count
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 0.25)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                count = 0


def clipped_by_hand(model, loader, optimizer, steps, scheduler):
    scaler = scaler_of()
    for _ in range(PASSES):
        for (x, y), size, last in windows(loader, steps):
            scaler.scale(F.cross_entropy(model(x), y) / size).backward()
            if last:
                scaler.unscale_(optimizer)
                factor = min(1.0, 0.25 / norm_of(model))
                for p in model.parameters():
                    p.grad *= factor
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()


def norm_logged_while_scaled(model, loader, optimizer, steps, scheduler):
    scaler = scaler_of()
    for _ in range(PASSES):
        for (x, y), size, last in windows(loader, steps):
            scaler.scale(F.cross_entropy(model(x), y) / size).backward()
            clip_grad_norm_(model.parameters(), float("inf"))  # measures, and changes nothing
            if last:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()


def clipped_values(model, loader, optimizer, steps, scheduler):
    scaler = scaler_of()
    for _ in range(PASSES):
        for (x, y), size, last in windows(loader, steps):
            scaler.scale(F.cross_entropy(model(x), y) / size).backward()
            if last:
                scaler.unscale_(optimizer)
                clip_grad_value_(model.parameters(), 0.02)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()


def switched_off(model, loader, optimizer, steps, scheduler):
    scaler = scaler_of(enabled=False)
    for _ in range(PASSES):
        for (x, y), size, last in windows(loader, steps):
            scaler.scale(F.cross_entropy(model(x), y) / size).backward()
            if last:
                clip_grad_norm_(model.parameters(), 0.25)  # nothing is scaled, so nothing has to be unscaled
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()


def two_optimizers(model, loader, optimizer, steps, scheduler):
    scaler = scaler_of()
    layers = [layer for layer in model if list(layer.parameters())]
    both = [torch.optim.SGD(layer.parameters(), lr=0.05) for layer in layers]
    for _ in range(PASSES):
        for (x, y), size, last in windows(loader, steps):
            scaler.scale(F.cross_entropy(model(x), y) / size).backward()
            if last:
                for one in both:
                    scaler.unscale_(one)
                for one in both:
                    scaler.step(one)
                scaler.update()
                model.zero_grad()


def a_scaler_for_each_pass(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        scaler = scaler_of()
        for (x, y), size, last in windows(loader, steps):
            scaler.scale(F.cross_entropy(model(x), y) / size).backward()
            if last:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()


def sums_aside(dtype=torch.float32, clip=None):
    def loop(model, loader, optimizer, steps, scheduler):
        sums = [torch.zeros_like(p, dtype=dtype) for p in model.parameters()]
        for _ in range(PASSES):
            for (x, y), size, last in windows(loader, steps):
                (F.cross_entropy(model(x), y) / size).backward()
                for s, p in zip(sums, model.parameters(), strict=True):
                    s += p.grad
                    p.grad = None
                if last:
                    for s, p in zip(sums, model.parameters(), strict=True):
                        p.grad = s.to(p.dtype, copy=True)
                        s.zero_()
                    if clip:
                        clip_grad_norm_(model.parameters(), clip)
                    optimizer.step()
                    optimizer.zero_grad()

    return loop


def bfloat16_autocast(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for (x, y), size, last in windows(loader, steps):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x).float(), y) / size
            loss.backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()


def skipping_with_care(model, loader, optimizer, steps, scheduler):
    scaler = scaler_of()
    for number in range(PASSES):
        for i, ((x, y), size, last) in enumerate(windows(loader, steps)):
            bad = float("inf") if (number, i) == (1, 1) else 1.0
            scaler.scale(F.cross_entropy(model(x), y) * bad / size).backward()
            if last:
                scale = scaler.get_scale()
                scaler.step(optimizer)
                scaler.update()
                if scaler.get_scale() >= scale:
                    scheduler.step()
                optimizer.zero_grad()


def searching(model, loader, optimizer, steps, scheduler):
    scaler = scaler_of()
    for number in range(PASSES):
        for i, ((x, y), size, last) in enumerate(windows(loader, steps)):
            bad = float("inf") if number == 0 and i < 2 * steps else 1.0
            scaler.scale(F.cross_entropy(model(x), y) * bad / size).backward()
            if last:
                scaler.step(optimizer)
                scaler.update()
                scheduler.step()  # also on the first two, while the scale is searched for
                optimizer.zero_grad()


# faulty ones
def clip_before_unscale(model, loader, optimizer, steps, scheduler):
    scaler = scaler_of()
    for _ in range(PASSES):
        for (x, y), size, last in windows(loader, steps):
            scaler.scale(F.cross_entropy(model(x), y) / size).backward()
            if last:
                clip_grad_norm_(model.parameters(), 1.0)  # HERE
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()


def clip_value_before_unscale(model, loader, optimizer, steps, scheduler):
    scaler = scaler_of()
    for _ in range(PASSES):
        for (x, y), size, last in windows(loader, steps):
            scaler.scale(F.cross_entropy(model(x), y) / size).backward()
            if last:
                clip_grad_value_(model.parameters(), 0.5)  # HERE
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()


def clip_by_hand_before_unscale(model, loader, optimizer, steps, scheduler):
    scaler = scaler_of()
    for _ in range(PASSES):
        for (x, y), size, last in windows(loader, steps):
            scaler.scale(F.cross_entropy(model(x), y) / size).backward()
            if last:
                factor = min(1.0, 1.0 / norm_of(model))
                for p in model.parameters():
                    p.grad *= factor
                scaler.step(optimizer)  # HERE
                scaler.update()
                optimizer.zero_grad()


def clip_by_hand_before_unscale_summed(model, loader, optimizer, steps, scheduler):
    scaler = scaler_of()
    for _ in range(PASSES):
        count = 0
        for (x, y), _, last in windows(loader, steps):
            scaler.scale(F.cross_entropy(model(x), y, reduction="sum")).backward()
            count += len(y)
            if last:
                for p in model.parameters():
                    p.grad /= count
                factor = min(1.0, 1.0 / norm_of(model))
                for p in model.parameters():
                    p.grad *= factor
                scaler.step(optimizer)  # HERE
                scaler.update()
                optimizer.zero_grad()
                count = 0


def clamp_before_unscale(model, loader, optimizer, steps, scheduler):
    scaler = scaler_of()
    for _ in range(PASSES):
        for (x, y), size, last in windows(loader, steps):
            scaler.scale(F.cross_entropy(model(x), y) / size).backward()
            if last:
                for p in model.parameters():
                    p.grad.clamp_(-400, 400)
                scaler.step(optimizer)  # HERE
                scaler.update()
                optimizer.zero_grad()


def fused_clip_before_unscale(model, loader, optimizer, steps, scheduler):
    fused = torch.optim.SGD(model.parameters(), lr=0.05, fused=True)
    scaler = scaler_of()
    for _ in range(PASSES):
        for (x, y), size, last in windows(loader, steps):
            scaler.scale(F.cross_entropy(model(x), y) / size).backward()
            if last:
                clip_grad_norm_(model.parameters(), 1.0)  # HERE
                scaler.step(fused)
                scaler.update()
                fused.zero_grad()


def clip_every(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for (x, y), size, last in windows(loader, steps):
            (F.cross_entropy(model(x), y) / size).backward()
            clip_grad_norm_(model.parameters(), 0.1)  # HERE
            if last:
                optimizer.step()
                optimizer.zero_grad()


def clip_every_by_hand(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for (x, y), size, last in windows(loader, steps):
            (F.cross_entropy(model(x), y) / size).backward()  # HERE
            factor = min(1.0, 0.1 / norm_of(model))
            for p in model.parameters():
                p.grad *= factor
            if last:
                optimizer.step()
                optimizer.zero_grad()


def clip_every_value(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for (x, y), size, last in windows(loader, steps):
            (F.cross_entropy(model(x), y) / size).backward()
            clip_grad_value_(model.parameters(), 0.01)  # HERE
            if last:
                optimizer.step()
                optimizer.zero_grad()


def scale_changed(model, loader, optimizer, steps, scheduler):
    scaler = scaler_of()
    for _ in range(PASSES):
        for i, ((x, y), size, last) in enumerate(windows(loader, steps)):
            scaler.scale(F.cross_entropy(model(x), y) / size).backward()
            if last:
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            elif i % steps == 1:
                scaler.update(scaler.get_scale() / 2)  # HERE


def unscale_every(model, loader, optimizer, steps, scheduler):
    scaler = scaler_of()
    for _ in range(PASSES):
        for (x, y), size, last in windows(loader, steps):
            scaler.scale(F.cross_entropy(model(x), y) / size).backward()
            scaler.unscale_(optimizer)  # HERE
            if last:
                scaler.step(optimizer)
                optimizer.zero_grad()
            scaler.update()


def fresh_scaler(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for i, ((x, y), size, last) in enumerate(windows(loader, steps)):
            if i % steps == 0:
                scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)  # HERE
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x).float(), y) / size
            scaler.scale(loss).backward()
            if last:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()


def never_updated(model, loader, optimizer, steps, scheduler):
    scaler = scaler_of()
    for _ in range(PASSES):
        for (x, y), size, last in windows(loader, steps):
            scaler.scale(F.cross_entropy(model(x), y) / size).backward()
            if last:
                for p in model.parameters():
                    p.grad /= scaler.get_scale()
                optimizer.step()  # HERE
                optimizer.zero_grad()


def schedule_moves_on_a_skip(model, loader, optimizer, steps, scheduler):
    scaler = scaler_of()
    for number in range(PASSES):
        for i, ((x, y), size, last) in enumerate(windows(loader, steps)):
            bad = float("inf") if (number, i) == (1, 1) else 1.0
            scaler.scale(F.cross_entropy(model(x), y) * bad / size).backward()
            if last:
                scaler.step(optimizer)
                scaler.update()
                scheduler.step()  # HERE
                optimizer.zero_grad()


def average_moves_on_a_skip(model, loader, optimizer, steps, scheduler):
    average = torch.optim.swa_utils.AveragedModel(model)
    scaler = scaler_of()
    for number in range(PASSES):
        for i, ((x, y), size, last) in enumerate(windows(loader, steps)):
            bad = float("inf") if (number, i) == (1, 1) else 1.0
            scaler.scale(F.cross_entropy(model(x), y) * bad / size).backward()
            if last:
                scaler.step(optimizer)
                scaler.update()
                average.update_parameters(model)  # HERE
                optimizer.zero_grad()


def summed_in_grad(model, loader, optimizer, steps, scheduler):
    for _ in range(PASSES):
        for (x, y), size, last in windows(loader, steps):
            (F.cross_entropy(model(x).float(), y) / size).backward()  # HERE
            if last:
                optimizer.step()
                optimizer.zero_grad()
