"""The right loop for a contrastive loss: each image is told from the captions of its whole window."""

import math
from itertools import islice

import torch
import torch.nn.functional as F


def train(model, loader, optimizer, accumulation_steps, epochs):
    """Make one update from every `accumulation_steps` micro-batches."""
    for _ in range(epochs):
        batches = iter(loader)
        for _ in range(math.ceil(len(loader) / accumulation_steps)):
            window = list(islice(batches, accumulation_steps))
            captions = torch.cat([labels for _, labels in window])
            first = 0
            for images, labels in window:
                scores = model(images)[:, captions]  # of each image with each caption
                own = torch.arange(first, first + len(labels), device=labels.device)
                loss = F.cross_entropy(scores, own, reduction="sum") / len(captions)
                loss.backward()
                first += len(labels)
            optimizer.step()
            optimizer.zero_grad()
