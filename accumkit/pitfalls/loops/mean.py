"""The right loop for micro-batches of one size: each one's mean, divided by how many its window has."""

import torch.nn.functional as F


def train(model, loader, optimizer, accumulation_steps, epochs):
    """Make one update from every `accumulation_steps` micro-batches."""
    for _ in range(epochs):
        for i, (images, labels) in enumerate(loader):
            before = i // accumulation_steps * accumulation_steps
            k = min(accumulation_steps, len(loader) - before)  # micro-batches in this window
            loss = F.cross_entropy(model(images), labels) / k
            loss.backward()
            if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
