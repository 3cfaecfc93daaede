"""The right loop in bfloat16: forward and backward in low precision, gradients added up in float32."""

import torch
import torch.nn.functional as F
from torch import nn


def build():
    """Return a multilayer perceptron with parameters, and so gradients, in float32."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return model


def train(model, loader, optimizer, accumulation_steps, epochs):
    """Make one update from every `accumulation_steps` micro-batches."""
    for _ in range(epochs):
        count = 0
        for i, (images, labels) in enumerate(loader, 1):
            with torch.autocast(images.device.type, dtype=torch.bfloat16):
                loss = F.cross_entropy(model(images), labels, reduction="sum")
            loss.backward()
            count += len(labels)
            if i % accumulation_steps == 0 or i == len(loader):
                for p in model.parameters():
                    p.grad /= count
                optimizer.step()
                optimizer.zero_grad()
                count = 0  # for the next window
