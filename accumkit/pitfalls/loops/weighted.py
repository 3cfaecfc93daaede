"""The right loop for class weights: losses are summed and divided by the weights of their classes."""

import torch
import torch.nn.functional as F


def train(model, loader, optimizer, accumulation_steps, epochs):
    """Make one update from every `accumulation_steps` micro-batches."""
    weight = torch.linspace(0.5, 2.0, 10).to(next(model.parameters()))  # of the ten classes
    for _ in range(epochs):
        count = 0
        for i, (images, labels) in enumerate(loader, 1):
            loss = F.cross_entropy(model(images), labels, weight, reduction="sum")
            loss.backward()
            count += weight[labels].sum()
            if i % accumulation_steps == 0 or i == len(loader):
                for p in model.parameters():
                    p.grad /= count
                optimizer.step()
                optimizer.zero_grad()
                count = 0  # for the next window
