"""A model of functions and plain tensors, with an optimizer, a loader, and a pause in the loop's body."""

import time

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth

torch.manual_seed(0)

weights = [torch.randn(8, 16, requires_grad=True), torch.randn(16, 4, requires_grad=True)]
optimizer = slow.AdamW(weights, lr=0.05)


def predict(x):
    return slow.through(torch.relu(x @ weights[0]) @ weights[1], 0.01, 0.02)


phase = "forward or other"  # of the first step: whether there are modules is not known yet
for epoch in range(3):
    for x, y in DataLoader(slow.Samples(24, seconds=0.002), batch_size=4):
        with truth(phase):
            loss = F.cross_entropy(predict(x), y)
        optimizer.zero_grad()
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            optimizer.step()
        truth.step()
        phase = "forward"
        time.sleep(0.03)
print(f"{loss.item():.6f}")
