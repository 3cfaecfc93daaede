"""The right use of a tool that accumulates by itself: it is called after every micro-batch, and counts and divides."""

import torch.nn.functional as F


class Accumulator:
    """Such a tool: its `step` waits until it was called often enough, then divides and updates."""

    def __init__(self, optimizer, accumulation_steps):
        self.optimizer, self.accumulation_steps = optimizer, accumulation_steps
        self.calls = self.count = 0

    def step(self, count, last):
        """Count a micro-batch; make the update when it is the window's last one, or the last of all."""
        self.calls, self.count = self.calls + 1, self.count + count
        if self.calls == self.accumulation_steps or last:
            for group in self.optimizer.param_groups:
                for p in group["params"]:
                    p.grad /= self.count
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.calls = self.count = 0


def train(model, loader, optimizer, accumulation_steps, epochs):
    """Make one update from every `accumulation_steps` micro-batches."""
    tool = Accumulator(optimizer, accumulation_steps)
    for _ in range(epochs):
        for i, (images, labels) in enumerate(loader, 1):
            loss = F.cross_entropy(model(images), labels, reduction="sum")
            loss.backward()
            tool.step(len(labels), last=i == len(loader))
