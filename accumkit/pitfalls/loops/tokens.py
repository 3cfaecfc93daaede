"""The right loop for tokens: losses are summed over the tokens that have a target, and divided by their number."""

import torch.nn.functional as F


def train(model, loader, optimizer, accumulation_steps, epochs):
    """Make one update from every `accumulation_steps` micro-batches."""
    for _ in range(epochs):
        count = 0
        for i, (tokens, labels) in enumerate(loader, 1):
            scores, targets = model(tokens)[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
            valid = (targets != -100).sum()
            loss = F.cross_entropy(scores, targets, reduction="sum")
            loss.backward()
            count += valid
            if i % accumulation_steps == 0 or i == len(loader):
                for p in model.parameters():
                    p.grad /= count
                optimizer.step()
                optimizer.zero_grad()
                count = 0  # for the next window
