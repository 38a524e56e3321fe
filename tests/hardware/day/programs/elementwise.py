"""Planted: elementwise operations on large tensors, which memory bandwidth limits."""

from __future__ import annotations

import torch
from torch import nn

from tests.hardware.day.programs.parts import train_again
from tests.hardware.day.programs.truth import CUDA, DEVICE

SIZE = 64 << 20 if CUDA else 1 << 19


class Scales(nn.Module):
    """Scales, shifts and clips its input several times."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(SIZE))
        self.offset = nn.Parameter(torch.zeros(SIZE))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            values = torch.relu(values * self.scale + self.offset)
        return values.mean()


model = Scales().to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
values = torch.rand(SIZE, device=DEVICE)

train_again(model, optimizer, values)
