"""Data set with an augmentation of NumPy, loaded by two forked workers."""

import os
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


def elastic_transform(image):
    noise = np.random.default_rng(0).normal(size=image.shape)
    for _ in range(40):
        noise = np.apply_along_axis(np.convolve, 0, noise, np.ones(5) / 5, "same")  # planted: data_wait
    return image + noise


class Images(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return torch.from_numpy(elastic_transform(np.zeros((16, 16)))).float().flatten()


def main():
    end = time.monotonic() + float(os.environ["PROGRAM_SECONDS"])
    model = torch.nn.Linear(256, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Images(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        if time.monotonic() > end:
            break


if __name__ == "__main__":
    main()
