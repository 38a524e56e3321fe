"""Callback after each step that computes a statistic of the weights in pure Python."""

import os
import time

import torch
from torch.utils.data import DataLoader, TensorDataset


class Histogram:
    def __init__(self, bins):
        self.counts = [0] * bins

    def on_step_end(self, model):
        for value in model.weight.flatten().tolist():
            self.counts[min(int(abs(value) * 100), len(self.counts) - 1)] += 1  # planted: other


def main():
    end = time.monotonic() + float(os.environ["PROGRAM_SECONDS"])
    model = torch.nn.Linear(400, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.ones(64, 400)), batch_size=8)
    callback = Histogram(100)
    while time.monotonic() < end:
        for (batch,) in loader:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            callback.on_step_end(model)


if __name__ == "__main__":
    main()
