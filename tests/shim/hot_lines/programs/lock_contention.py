"""Cache whose lock a thread in the background holds most of the time."""

import os
import threading
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Cache:
    def __init__(self):
        self.lock = threading.Lock()
        self.items = {}

    def get(self, key):
        with self.lock:  # planted: data_wait
            return self.items.setdefault(key, torch.ones(8))


class Cached(Dataset):
    def __init__(self, cache):
        self.cache = cache

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return self.cache.get(index % 100)


def clean(cache, end):
    while time.monotonic() < end:
        with cache.lock:
            time.sleep(0.05)
        time.sleep(0.001)


def main():
    end = time.monotonic() + float(os.environ["PROGRAM_SECONDS"])
    cache = Cache()
    threading.Thread(target=clean, args=(cache, end), daemon=True).start()
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in DataLoader(Cached(cache), batch_size=2):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        if time.monotonic() > end:
            break


if __name__ == "__main__":
    main()
