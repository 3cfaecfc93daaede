"""The right loop with clipping: once an update, when the window's gradient is complete."""

import math
from itertools import islice

import torch.nn.functional as F
from torch.nn.utils import clip_grad_norm_


def train(model, loader, optimizer, accumulation_steps, epochs):
    """Make one update from every `accumulation_steps` micro-batches."""
    for _ in range(epochs):
        batches = iter(loader)
        for _ in range(math.ceil(len(loader) / accumulation_steps)):
            window = list(islice(batches, accumulation_steps))
            count = sum(len(labels) for _, labels in window)
            for images, labels in window:
                loss = F.cross_entropy(model(images), labels, reduction="sum") / count
                loss.backward()
            clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
