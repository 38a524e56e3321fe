"""Batches indexed by a permutation of tensors in memory, with a pause before and after the optimizer's step."""

import time

import slow
import torch
import torch.nn.functional as F
from truth import truth

torch.manual_seed(0)

X, Y = torch.randn(200, 8), torch.randint(4, (200,))
model = slow.Net(forward=0.002, backward=0.003)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
order = torch.randperm(200)
for i in range(0, 200, 8):
    index = order[i : i + 8]
    x, y = X[index], Y[index]
    with truth("forward"):
        output = model(x)
    loss = F.cross_entropy(output, y)
    optimizer.zero_grad()
    with truth("backward"):
        loss.backward()
    time.sleep(0.01)
    with truth("optimizer"):
        optimizer.step()
    truth.step()
    time.sleep(0.03)
print(f"{loss.item():.6f}")
