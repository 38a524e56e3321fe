"""Loader with batch_size=None: the data set yields whole batches, the last of them partial."""

import time

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset
from truth import truth


class Batches(IterableDataset):
    def __init__(self, samples, size):
        self.samples = samples
        self.size = size

    def __iter__(self):
        for start in range(0, self.samples, self.size):
            with truth("data_wait"):
                time.sleep(0.02)
                count = min(self.size, self.samples - start)
                batch = torch.randn(count, 8), torch.randint(4, (count,))
            yield batch


torch.manual_seed(0)
model = slow.Net()
optimizer = slow.SGD(model.parameters(), lr=0.05)
loader = DataLoader(Batches(22, 4), batch_size=None)
for epoch in range(2):
    for inputs, targets in loader:
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
    print(epoch, f"{loss.item():.6f}")
truth.inspect(model)
