"""Loader behind itertools.cycle, islice, enumerate and a progress bar as tqdm has it."""

import itertools
import sys
import time

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth


class Progress:
    """Draws a bar while it passes on what it iterates over."""

    def __init__(self, iterable, total):
        self.iterable = iterable
        self.total = total
        self.done = 0

    def __iter__(self):
        for item in self.iterable:
            yield item
            self.done += 1
            time.sleep(0.004)
            print(f"\r{self.done}/{self.total}", end="", file=sys.stderr)

    def set_postfix(self, **values):
        print(values)


torch.manual_seed(0)
model = slow.Net()
optimizer = slow.SGD(model.parameters(), lr=0.05)
loader = DataLoader(slow.Samples(12, seconds=0.01), batch_size=3, shuffle=True)
bar = Progress(itertools.islice(itertools.cycle(loader), 3), total=3)
for step, (inputs, targets) in enumerate(bar):
    truth.samples(len(inputs))
    with truth("forward"):
        output = model(inputs)
    loss = F.cross_entropy(output, targets)
    optimizer.zero_grad()
    with truth("backward"):
        loss.backward()
    with truth("optimizer"):
        optimizer.step()
    truth.step()
    bar.set_postfix(loss=f"{loss.item():.6f}")


def forever(loader):
    while True:
        yield from loader


bar = Progress(itertools.islice(forever(loader), 8), total=8)
for inputs, targets in bar:
    truth.samples(len(inputs))
    with truth("forward"):
        output = model(inputs)
    loss = F.cross_entropy(output, targets)
    optimizer.zero_grad()
    with truth("backward"):
        loss.backward()
    with truth("optimizer"):
        optimizer.step()
    truth.step()
print(f"{loss.item():.6f}")
truth.inspect(model)
