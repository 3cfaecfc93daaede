"""The right loop in mixed precision with a scale that begins too high: one step is skipped, and the scale adapts."""

import torch
import torch.nn.functional as F


def train(model, loader, optimizer, accumulation_steps, epochs):
    """Make one update from every `accumulation_steps` micro-batches."""
    device = next(model.parameters()).device.type
    scaler = torch.amp.GradScaler(device, init_scale=2.0**30, backoff_factor=2.0**-20)
    for _ in range(epochs):
        count = 0
        for i, (images, labels) in enumerate(loader, 1):
            with torch.autocast(device, dtype=torch.float16):
                loss = F.cross_entropy(model(images), labels, reduction="sum")
            scaler.scale(loss).backward()
            count += len(labels)
            if i % accumulation_steps == 0 or i == len(loader):
                scaler.unscale_(optimizer)
                for p in model.parameters():
                    p.grad /= count
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                count = 0  # for the next window
