"""The right loop with an evaluation after every third micro-batch, which leaves the gradients alone."""

import torch
import torch.nn.functional as F


def evaluate(model, images, labels):
    """Return how many of these images the model gets right."""
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).sum()
    model.train()
    return right


def train(model, loader, optimizer, accumulation_steps, epochs):
    """Make one update from every `accumulation_steps` micro-batches."""
    held_out = next(iter(loader))
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
            if i % 3 == 0:
                evaluate(model, *held_out)
