"""Planted: thousands of tiny kernels in each step."""

from __future__ import annotations

import torch
from torch import nn

from tests.hardware.day.programs.parts import Loss
from tests.hardware.day.programs.truth import CUDA, DEVICE, Truth

LAYERS = 500 if CUDA else 150
layers = [module for _ in range(LAYERS) for module in (nn.Linear(64, 64), nn.Tanh())]
model = nn.Sequential(*layers, Loss()).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, foreach=False)
samples = torch.rand(32, 64, device=DEVICE)

truth = Truth()
while True:
    truth.begin_step()
    loss = model(samples)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if truth.end_step():
        break
truth.write(lost="idle")
