"""Loop without a DataLoader: a generator yields the batches."""

import time

import slow
import torch
import torch.nn.functional as F
from truth import truth


def batches(count, size):
    for _ in range(count):
        with truth("data_wait"):
            time.sleep(0.02)
            x = torch.randn(size, 8)
            y = x.argmax(1) % 4
        yield x, y


torch.manual_seed(0)
model = slow.Net()
optimizer = slow.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for x, y in batches(6, 4):
        with truth("forward"):
            output = model(x)
        loss = F.cross_entropy(output, y)
        optimizer.zero_grad()
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            optimizer.step()
        truth.step()
        time.sleep(0.008)
    print(epoch, f"{loss.item():.6f}")
truth.inspect(model)
