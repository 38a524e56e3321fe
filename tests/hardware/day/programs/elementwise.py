"""Planted: elementwise operations on large tensors, which memory bandwidth limits."""

from __future__ import annotations

import torch

from tests.hardware.day.programs.truth import CUDA, DEVICE, Truth

SIZE = 64 << 20 if CUDA else 1 << 16
scale = torch.nn.Parameter(torch.ones(SIZE, device=DEVICE))
offset = torch.nn.Parameter(torch.zeros(SIZE, device=DEVICE))
optimizer = torch.optim.SGD([scale, offset], lr=1e-4)
values = torch.rand(SIZE, device=DEVICE)

truth = Truth()
while True:
    truth.begin_step()
    output = values
    for _ in range(8):
        output = torch.relu(output * scale + offset)
    loss = output.mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if truth.end_step():
        break
truth.write()
