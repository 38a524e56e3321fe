"""Batches indexed by one permutation of tensors in memory, which takes time, and a metric that is indexed as well."""

import time

import slow
import torch
import torch.nn.functional as F
from clock import clock
from truth import truth

torch.manual_seed(0)

X, Y = torch.randn(200, 8), torch.randint(4, (200,))
model = slow.Net(forward=0.002, backward=0.003)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
history = torch.zeros(200)
order = torch.randperm(200)
for i in range(0, 200, 8):
    with truth("data_wait"):
        x = X[order[i : i + 8]]
        y = Y[order[i : i + 8]]
        clock.code += [0.02]
    optimizer.zero_grad()
    with truth("forward"):
        output = model(x)
    loss = F.cross_entropy(output, y)
    with truth("backward"):
        loss.backward()
    with truth("optimizer"):
        optimizer.step()
    truth.step()
    time.sleep(0.01)
    recent = history[order[i : i + 8]]
    clock.code += [0.015]
    if recent.isnan().any():
        break
print(f"{loss.item():.6f}")
