"""Collate function that pads token by token, in two workers."""

import os
import random
import time

import torch
from torch.utils.data import DataLoader


def pad(tokens, length):
    padded = torch.zeros(length, dtype=torch.long)
    for position, token in enumerate(tokens):
        padded[position] = token  # planted: data_wait
    return padded


def collate(samples):
    length = max(len(tokens) for tokens in samples)
    return torch.stack([pad(tokens, length) for tokens in samples])


def main():
    end = time.monotonic() + float(os.environ["PROGRAM_SECONDS"])
    texts = [[random.randrange(100) for _ in range(random.randrange(300, 400))] for _ in range(5000)]
    model = torch.nn.Sequential(torch.nn.Embedding(100, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(texts, batch_size=32, num_workers=2, collate_fn=collate, multiprocessing_context="fork")
    while True:
        for batch in loader:
            optimizer.zero_grad()
            model(batch[:, :8]).sum().backward()
            optimizer.step()
            if time.monotonic() > end:
                return


if __name__ == "__main__":
    main()
