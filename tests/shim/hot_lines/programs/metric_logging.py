"""Metrics that are written to a slow disk every five steps."""

import json
import os
import time

import torch
from torch.utils.data import DataLoader, TensorDataset


class Log:
    def __init__(self, file):
        self.file = file

    def write(self, **values):
        self.file.write(json.dumps(values) + "\n")
        self.flush()

    def flush(self):
        self.file.flush()
        time.sleep(0.2)  # planted: other


def main():
    end = time.monotonic() + float(os.environ["PROGRAM_SECONDS"])
    model = torch.nn.Linear(400, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.ones(64, 400)), batch_size=8)
    step = 0
    with open("metrics.jsonl", "w") as file:
        log = Log(file)
        while time.monotonic() < end:
            for (batch,) in loader:
                optimizer.zero_grad()
                loss = model(batch).sum()
                loss.backward()
                optimizer.step()
                step += 1
                if step % 5 == 0:
                    log.write(step=step, loss=loss.item())


if __name__ == "__main__":
    main()
