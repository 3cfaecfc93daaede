"""The right loop for a network with dropout: every micro-batch draws masks of its own."""

import torch
import torch.nn.functional as F
from torch import nn


def build():
    """Return a multilayer perceptron with dropout."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10))


def train(model, loader, optimizer, accumulation_steps, epochs):
    """Make one update from every `accumulation_steps` micro-batches."""
    torch.manual_seed(0)
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
