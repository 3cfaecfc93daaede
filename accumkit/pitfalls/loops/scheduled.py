"""The right loop with a learning rate that falls to zero over the run: planned in updates, stepped once an update."""

import math

import torch.nn.functional as F
from torch.optim.lr_scheduler import LinearLR


def train(model, loader, optimizer, accumulation_steps, epochs):
    """Make one update from every `accumulation_steps` micro-batches."""
    updates = epochs * math.ceil(len(loader) / accumulation_steps)
    scheduler = LinearLR(optimizer, start_factor=1.0, end_factor=0.0, total_iters=updates)
    for _ in range(epochs):
        count = 0
        for i, (images, labels) in enumerate(loader, 1):
            loss = F.cross_entropy(model(images), labels, reduction="sum")
            loss.backward()
            count += len(labels)
            if i % accumulation_steps == 0 or i == len(loader):
                for p in model.parameters():
                    p.grad /= count
                optimizer.step()
                optimizer.zero_grad()
                count = 0  # for the next window
                scheduler.step()
