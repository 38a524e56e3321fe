"""Checkpoints of an object whose state is slow to collect."""

import os
import time

import torch
from torch.utils.data import DataLoader, TensorDataset


class Tracker:
    def __getstate__(self):
        return {"history": self.packed()}

    def packed(self):
        time.sleep(0.8)  # planted: checkpoint
        return [0]


def main():
    end = time.monotonic() + float(os.environ["PROGRAM_SECONDS"])
    model = torch.nn.Linear(40, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.ones(64, 40)), batch_size=8)
    tracker = Tracker()
    while time.monotonic() < end:
        for _ in range(4):
            for (batch,) in loader:
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()
        torch.save({"model": model.state_dict(), "tracker": tracker}, "last.pt")


if __name__ == "__main__":
    main()
