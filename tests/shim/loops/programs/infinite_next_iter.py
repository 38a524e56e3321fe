"""While loop with next() on an infinite iterator, whose next batch is fetched before the step is logged."""

import time

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth


def infinite(loader):
    while True:
        yield from loader


torch.manual_seed(0)
model = slow.Net()
optimizer = slow.SGD(model.parameters(), lr=0.05)
batches = iter(infinite(DataLoader(slow.Samples(9), batch_size=3, shuffle=True)))
inputs, targets = next(batches)
truth.samples(len(inputs))
step = 0
while step < 10:
    with truth("forward"):
        output = model(inputs)
    loss = F.cross_entropy(output, targets)
    optimizer.zero_grad()
    with truth("backward"):
        loss.backward()
    with truth("optimizer"):
        optimizer.step()
    truth.step()
    step += 1
    if step < 10:
        inputs, targets = next(batches)
        truth.samples(len(inputs))
    time.sleep(0.008)
    print(f"{step} {loss.item():.6f}")
truth.inspect(model)
