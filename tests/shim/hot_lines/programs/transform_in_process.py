"""Data set with an augmentation in pure Python, loaded in the training process."""

import os
import time

import torch
from torch.utils.data import DataLoader, Dataset


def gaussian_map(image, center):
    heat = torch.empty_like(image)
    for row in range(image.shape[0]):
        for column in range(image.shape[1]):
            heat[row, column] = 2.718 ** -((row - center) ** 2 + (column - center) ** 2)  # planted: data_wait
    return heat


class Images(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        image = torch.rand(12, 12)
        return (image + gaussian_map(image, 6)).flatten()


def main():
    end = time.monotonic() + float(os.environ["PROGRAM_SECONDS"])
    model = torch.nn.Linear(144, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in DataLoader(Images(), batch_size=8):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        if time.monotonic() > end:
            break


if __name__ == "__main__":
    main()
