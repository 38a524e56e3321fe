"""Planted: large batches in pageable memory, copied to the GPU before each step."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.hardware.day.programs.parts import burn
from tests.hardware.day.programs.truth import CUDA, DEVICE, Truth

IMAGES, SIDE = (256, 224) if CUDA else (8, 32)


class Prepared(Dataset[torch.Tensor]):
    """Four batches that are in memory already."""

    def __init__(self) -> None:
        self._batches = [torch.rand(IMAGES, 3, SIDE, SIDE) for _ in range(4)]

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._batches[index % len(self._batches)]


loader = DataLoader(Prepared(), batch_size=None)
model = nn.Sequential(
    nn.Conv2d(3, 64, 7, stride=4), nn.ReLU(), nn.Conv2d(64, 128, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

truth = Truth()
for images in loader:
    truth.begin_step()
    with truth.planted():
        images = images.to(DEVICE)
        if not CUDA:
            burn(0.01)  # there is nothing to copy
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = model(images).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if truth.end_step():
        break
truth.more["bytes_per_step"] = IMAGES * 3 * SIDE * SIDE * 4
truth.write(lost="planted")
