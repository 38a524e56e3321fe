"""A generator function that takes a while for each batch, and a pause after each step."""

import time

import slow
import torch
import torch.nn.functional as F
from truth import truth

torch.manual_seed(0)


def batches(number):
    for _ in range(number):
        with truth("data_wait"):
            time.sleep(0.012)
            batch = torch.randn(8, 8), torch.randint(4, (8,))
        yield batch


model = slow.Net(forward=0.005, backward=0.005)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for x, y in batches(25):
    optimizer.zero_grad()
    with truth("forward"):
        output = model(x)
    loss = F.cross_entropy(output, y)
    with truth("backward"):
        loss.backward()
    with truth("optimizer"):
        optimizer.step()
    truth.step()
    time.sleep(0.025)
print(f"{loss.item():.6f}")
