"""Loader iterated in a background thread that fills a queue."""

import queue
import threading
import time

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth


class Prefetcher:
    def __init__(self, loader, depth=2):
        self.loader = loader
        self.depth = depth

    def __iter__(self):
        batches = queue.Queue(self.depth)

        def fill():
            for batch in self.loader:
                batches.put(batch)
            batches.put(None)

        threading.Thread(target=fill, daemon=True).start()
        while True:
            with truth("data_wait"):
                batch = batches.get()
                time.sleep(0.025)  # the wait for the thread
            if batch is None:
                return
            yield batch


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.full((8,), float(index)), index % 4


torch.manual_seed(0)
model = slow.Net(forward=0.01, backward=0.015)
optimizer = slow.SGD(model.parameters(), lr=0.01)
for inputs, targets in Prefetcher(DataLoader(Data(), batch_size=2)):
    truth.samples(len(inputs))
    with truth("forward"):
        output = model(inputs)
    loss = F.cross_entropy(output, targets)
    with truth("backward"):
        loss.backward()
    with truth("optimizer"):
        optimizer.step()
    optimizer.zero_grad()
    truth.step()
print(f"{loss.item():.6f}")
truth.inspect(model)
