"""Planted: activations that a list keeps, until half of the GPU's memory is full."""

from __future__ import annotations

import time

import torch
from torch.utils.data import DataLoader

from tests.hardware.day.programs.parts import BATCH, WIDTH, Tokens, Transformer, step
from tests.hardware.day.programs.truth import CUDA, DEVICE, Truth

loader = DataLoader(Tokens(), batch_size=BATCH, num_workers=2, pin_memory=CUDA)
model = Transformer(width=WIDTH // 2).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA)
kept = []

truth = Truth()
room = torch.cuda.mem_get_info()[0] // 2 if CUDA else 1 << 24
bytes_per_second = room / truth.seconds
grown = time.monotonic()
for tokens in loader:
    truth.begin_step()
    step(model, optimizer, tokens)
    now = time.monotonic()
    kept.append(torch.zeros(int(bytes_per_second * (now - grown)), dtype=torch.uint8, device=DEVICE))
    grown = now
    if truth.end_step():
        break
truth.more["leaked_bytes"] = sum(each.numel() for each in kept)
truth.more["leaked_bytes_per_second"] = bytes_per_second
truth.write()
