"""Loop without a DataLoader: an iterator class with __iter__ and __next__, as Detectron-like trainers have it."""

import time

import slow
import torch
import torch.nn.functional as F
from truth import truth


class Batches:
    def __init__(self, length):
        self.length = length
        self.position = 0

    def __iter__(self):
        self.position = 0
        return self

    def __next__(self):
        if self.position >= self.length:
            raise StopIteration
        self.position += 1
        with truth("data_wait"):
            time.sleep(0.02)
            return {"image": torch.randn(4, 8), "label": torch.randint(4, (4,))}


torch.manual_seed(0)
model = slow.Net()
optimizer = slow.SGD(model.parameters(), lr=0.05)
loader = Batches(5)
for _ in range(2):
    for batch in loader:
        with truth("forward"):
            output = model(batch["image"])
        losses = {"classification": F.cross_entropy(output, batch["label"])}
        total = sum(losses.values())
        optimizer.zero_grad()
        with truth("backward"):
            total.backward()
        with truth("optimizer"):
            optimizer.step()
        truth.step()
    time.sleep(0.05)  # logging
    print(f"{total.item():.6f}")
truth.inspect(model)
