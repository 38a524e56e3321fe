"""A dataset indexed by hand and stacked in the loop's body, and a pause after each step."""

import time

import slow
import torch
import torch.nn.functional as F
from truth import truth

torch.manual_seed(0)

samples = slow.Samples(48, seconds=0.003)
model = slow.Net(forward=0.005, backward=0.005)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for i in range(0, 48, 4):
    items = [samples[j] for j in range(i, i + 4)]
    x = torch.stack([item[0] for item in items])
    y = torch.stack([item[1] for item in items])
    optimizer.zero_grad()
    with truth("forward"):
        output = model(x)
    loss = F.cross_entropy(output, y)
    with truth("backward"):
        loss.backward()
    with truth("optimizer"):
        optimizer.step()
    truth.step()
    time.sleep(0.03)
print(f"{loss.item():.6f}")
