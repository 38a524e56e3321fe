"""Data set that reads slowly, loaded by two spawned workers."""

import os
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Files(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return self.read(index)

    def read(self, index):
        time.sleep(0.02)  # planted: data_wait
        return torch.full((8,), index / 100_000)


def main():
    end = time.monotonic() + 10 + float(os.environ["PROGRAM_SECONDS"])  # the workers import PyTorch
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Files(), batch_size=4, num_workers=2, multiprocessing_context="spawn")
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        if time.monotonic() > end:
            break


if __name__ == "__main__":
    main()
