"""Planted: thousands of tiny kernels in each step."""

from __future__ import annotations

import torch
from torch import nn

from tests.hardware.day.programs.parts import Loss, train_again
from tests.hardware.day.programs.truth import CUDA, DEVICE

LAYERS = 500 if CUDA else 150
layers = [module for _ in range(LAYERS) for module in (nn.Linear(64, 64), nn.Tanh())]
model = nn.Sequential(*layers, Loss()).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, foreach=False)
samples = torch.rand(32, 64, device=DEVICE)

train_again(model, optimizer, samples, lost="idle")
