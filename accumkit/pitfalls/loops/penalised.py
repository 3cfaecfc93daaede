"""The right loop with a penalty on the weights: the losses count once an example, the penalty once an update."""

import math
from itertools import islice

import torch.nn.functional as F


def penalty(model):
    """Return a hundredth of the sum of the squared weights."""
    return 0.01 * sum(p.square().sum() for p in model.parameters())


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
            penalty(model).backward()
            optimizer.step()
            optimizer.zero_grad()
