"""Batches of numpy made in the loop's body, and logging by a function that sleeps."""

import time

import numpy as np
import slow
import torch
import torch.nn.functional as F
from truth import truth

torch.manual_seed(0)


def log(loss):
    time.sleep(0.03)
    print(f"{loss.item():.6f}")


rng = np.random.default_rng(0)
model = slow.Net(forward=0.005, backward=0.005)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(25):
    x = torch.from_numpy(rng.standard_normal((8, 8)).astype(np.float32))
    y = torch.from_numpy(rng.integers(4, size=8))
    optimizer.zero_grad()
    with truth("forward"):
        output = model(x)
    loss = F.cross_entropy(output, y)
    with truth("backward"):
        loss.backward()
    with truth("optimizer"):
        optimizer.step()
    truth.step()
    log(loss)
