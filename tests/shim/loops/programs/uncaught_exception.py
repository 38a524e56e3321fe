"""Training that ends with an uncaught exception inside a step."""

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth


class Trainer:
    def __init__(self):
        self.model = slow.Net()
        self.optimizer = slow.SGD(self.model.parameters(), lr=0.05)

    def fit(self, loader):
        for number, (inputs, targets) in enumerate(loader):
            truth.samples(len(inputs))
            self.step(inputs, targets)
            if number == 6:
                raise ValueError(f"loss is bad at batch {number}")

    def step(self, inputs, targets):
        self.optimizer.zero_grad()
        with truth("forward"):
            output = self.model(inputs)
        loss = F.cross_entropy(output, targets)
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            self.optimizer.step()
        truth.step()
        print(f"{loss.item():.6f}")


torch.manual_seed(0)
Trainer().fit(DataLoader(slow.Samples(20), batch_size=2))
