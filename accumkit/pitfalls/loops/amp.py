"""The right loop in mixed precision: one scale for the whole window, then unscale, divide, clip, step and update."""

import torch
import torch.nn.functional as F
from torch.nn.utils import clip_grad_norm_


def train(model, loader, optimizer, accumulation_steps, epochs):
    """Make one update from every `accumulation_steps` micro-batches."""
    device = next(model.parameters()).device.type
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
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
                clip_grad_norm_(model.parameters(), 0.1)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                count = 0  # for the next window
