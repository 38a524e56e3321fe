"""Planted: a recurrent network with four samples in a step, which keep few of the GPU's multiprocessors busy."""

from __future__ import annotations

import torch
from torch import nn

from tests.hardware.day.programs.parts import Loss, train_again
from tests.hardware.day.programs.truth import CUDA, DEVICE

WIDTH, LENGTH = (512, 512) if CUDA else (128, 64)
model = nn.Sequential(nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True), Loss()).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
samples = torch.rand(4, LENGTH, WIDTH, device=DEVICE)

train_again(model, optimizer, samples)
