"""The right loop with a moving average of the model, taken once an update."""

import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def train(model, loader, optimizer, accumulation_steps, epochs):
    """Make one update from every `accumulation_steps` micro-batches."""
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
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
                average.update_parameters(model)
    return average
