"""Planted: a search for the largest batch, which fills the GPU and catches the error every few seconds."""

from __future__ import annotations

import time

import torch
from torch.utils.data import DataLoader

from tests.hardware.day.programs.parts import BATCH, WIDTH, Tokens, Transformer, step
from tests.hardware.day.programs.truth import CUDA, DEVICE, Truth

loader = DataLoader(Tokens(), batch_size=BATCH, num_workers=2, pin_memory=CUDA)
model = Transformer(width=WIDTH // 2).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA)

truth = Truth()
caught = 0
tried = time.monotonic()
for tokens in loader:
    truth.begin_step()
    step(model, optimizer, tokens)
    if time.monotonic() - tried > truth.seconds / 8:
        blocks = []
        try:
            while CUDA:
                blocks.append(torch.empty(1 << 30, dtype=torch.uint8, device=DEVICE))
        except torch.cuda.OutOfMemoryError:
            caught += 1
        del blocks
        tried = time.monotonic()
    if truth.end_step():
        break
truth.more["out_of_memory"] = caught
truth.write()
