"""A training loop that runs a block of steps for each line of its input, and answers with the seconds of a step.

`python -m tests.hardware.day.shim_loop STEPS`, or the same under `stallscope run`. Two such processes take turns, so
that other load of the machine affects both.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.hardware.day.programs.truth import CUDA, DEVICE

WIDTH, BATCH = (2048, 1024) if CUDA else (256, 64)


def turns(steps: int) -> Iterator[torch.Tensor]:
    """Yield batches: a block for each line, and nothing after the last line."""
    batch = torch.rand(BATCH, WIDTH)
    for _ in sys.stdin:
        _synchronise()
        began = time.perf_counter()
        for _ in range(steps):
            yield batch
        _synchronise()
        print((time.perf_counter() - began) / steps, flush=True)


class Batches(torch.utils.data.IterableDataset[torch.Tensor]):
    """The batches, for a loader in this process."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return turns(int(sys.argv[1]))


def _synchronise() -> None:
    if CUDA:
        torch.cuda.synchronize()


def main() -> None:
    """Train until the input ends."""
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8))).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for batch in DataLoader(Batches(), batch_size=None):
        loss = model(batch.to(DEVICE)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
