"""Batches that a thread prepares ahead, without a loader."""

import os
import queue
import threading
import time

import torch


def decode(index):
    data = [0] * 64
    for position in range(64):
        data[position] = sum(value ^ 0x5A for value in range(index, index + 200)) % 256  # planted: data_wait
    return torch.tensor(data, dtype=torch.float32)


class Prefetcher:
    def __init__(self, size):
        self.size = size
        self.batches = queue.Queue(2)
        threading.Thread(target=self.fill, daemon=True).start()

    def fill(self):
        index = 0
        while True:
            self.batches.put(torch.stack([decode(index + offset) for offset in range(self.size)]))
            index += self.size

    def next(self):
        return self.batches.get()


def main():
    end = time.monotonic() + float(os.environ["PROGRAM_SECONDS"])
    model = torch.nn.Linear(64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    prefetcher = Prefetcher(64)
    while time.monotonic() < end:
        batch = prefetcher.next()
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
