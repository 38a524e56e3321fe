"""Training that ends with sys.exit(3) after a number of steps, while its loader has more batches."""

import sys

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth


def main():
    torch.manual_seed(0)
    model = slow.Net()
    optimizer = slow.SGD(model.parameters(), lr=0.05)
    for step, (inputs, targets) in enumerate(DataLoader(slow.Samples(40), batch_size=2), start=1):
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
        if step == 8:
            with truth("checkpoint"):
                torch.save(model, "model.pt")
            return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
