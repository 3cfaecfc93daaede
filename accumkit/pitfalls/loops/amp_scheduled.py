"""The right loop in mixed precision with a learning rate that falls: a step that was skipped moves no schedule on."""

import math

import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import LinearLR


def train(model, loader, optimizer, accumulation_steps, epochs):
    """Make one update from every `accumulation_steps` micro-batches."""
    device = next(model.parameters()).device.type
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    updates = epochs * math.ceil(len(loader) / accumulation_steps)
    scheduler = LinearLR(optimizer, start_factor=1.0, end_factor=0.0, total_iters=updates)
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
                scale = scaler.get_scale()
                scaler.step(optimizer)
                scaler.update()
                if scaler.get_scale() >= scale:  # a scaler that skipped the step lowers its scale
                    scheduler.step()
                optimizer.zero_grad()
                count = 0  # for the next window
