"""Batches from a pool of processes of concurrent.futures, without a loader."""

import collections
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor

import torch


def tokenize(seed):
    counts = collections.Counter()
    for number in range(seed, seed + 20_000):
        counts[number * 2654435761 % 64] += 1  # planted: data_wait
    return [counts[token] for token in range(64)]


class Stream:
    def __init__(self, pool):
        self.pool = pool
        self.futures = collections.deque(pool.submit(tokenize, seed) for seed in range(4))

    def next_batch(self):
        tokens = self.futures.popleft().result()
        self.futures.append(self.pool.submit(tokenize, len(self.futures)))
        return torch.tensor([tokens], dtype=torch.float32)


def main():
    end = time.monotonic() + float(os.environ["PROGRAM_SECONDS"])
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        model = torch.nn.Linear(64, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        stream = Stream(pool)
        while time.monotonic() < end:
            batch = stream.next_batch()
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()


if __name__ == "__main__":
    main()
