"""Evaluation after each pass, with a metric in pure Python."""

import os
import time

import torch
from torch.utils.data import DataLoader, TensorDataset


def edit_distance(left, right):
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        row, before = [i], row
        for j, b in enumerate(right, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b)))  # planted: evaluation
    return row[-1]


def evaluate(model, loader):
    model.eval()
    distance = 0
    with torch.no_grad():
        for (batch,) in loader:
            output = model(batch).argmax(dim=1).tolist()
            distance += edit_distance(200 * output, 200 * output[::-1])
    model.train()
    return distance


def main():
    end = time.monotonic() + float(os.environ["PROGRAM_SECONDS"])
    model = torch.nn.Linear(40, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.rand(400, 40)), batch_size=2, shuffle=True)
    validation = DataLoader(TensorDataset(torch.rand(4, 40)), batch_size=2)
    while time.monotonic() < end:
        for (batch,) in loader:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
        evaluate(model, validation)


if __name__ == "__main__":
    main()
