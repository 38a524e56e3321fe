"""Batches of torch.rand, and other work between the batch and the forward pass: a pause, and a metric of tensors."""

import time

import slow
import torch
import torch.nn.functional as F
from truth import truth

torch.manual_seed(0)


def moving_average(losses):
    time.sleep(0.01)
    return torch.tensor(losses).mean()


model = slow.Net(forward=0.005, backward=0.005)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses = [0.0]
for step in range(25):
    x = torch.rand(8, 8)
    y = torch.randint(4, (8,))
    time.sleep(0.02)
    average = moving_average(losses)
    optimizer.zero_grad()
    with truth("forward"):
        output = model(x)
    loss = F.cross_entropy(output, y)
    with truth("backward"):
        loss.backward()
    with truth("optimizer"):
        optimizer.step()
    truth.step()
    losses.append(loss.item())
print(f"{average:.4f}")
