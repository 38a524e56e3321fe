"""Prefetcher as NVIDIA's examples have it: the next batch is loaded before the present one is returned."""

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth


class DataPrefetcher:
    def __init__(self, loader):
        self.loader = iter(loader)
        self.preload()

    def preload(self):
        try:
            self.next_input, self.next_target = next(self.loader)
        except StopIteration:
            self.next_input = self.next_target = None

    def next(self):
        input, target = self.next_input, self.next_target
        if input is not None:
            self.preload()
        return input, target


torch.manual_seed(0)
model = slow.Net()
optimizer = slow.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    prefetcher = DataPrefetcher(DataLoader(slow.Samples(10), batch_size=2, shuffle=True))
    input, target = prefetcher.next()
    while input is not None:
        truth.samples(len(input))
        with truth("forward"):
            output = model(input)
        loss = F.cross_entropy(output, target)
        optimizer.zero_grad()
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            optimizer.step()
        truth.step()
        input, target = prefetcher.next()
    print(epoch, f"{loss.item():.6f}")
truth.inspect(model)
