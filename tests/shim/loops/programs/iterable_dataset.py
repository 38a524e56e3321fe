"""IterableDataset with a partial last batch, and named tuples as batches."""

import time
from collections import namedtuple

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset
from truth import truth

Example = namedtuple("Example", ["features", "target"])


class Stream(IterableDataset):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        generator = torch.Generator().manual_seed(5)
        for index in range(self.length):
            with truth("data_wait"):
                time.sleep(0.008)
                example = Example(torch.randn(8, generator=generator), index % 4)
            yield example


torch.manual_seed(0)
model = slow.Net()
optimizer = slow.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for batch in DataLoader(Stream(13), batch_size=3):
        truth.samples(len(batch.features))
        with truth("forward"):
            output = model(batch.features)
        loss = F.cross_entropy(output, batch.target)
        optimizer.zero_grad()
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            optimizer.step()
        truth.step()
    print(epoch, f"{loss.item():.6f}")
truth.inspect(model)
