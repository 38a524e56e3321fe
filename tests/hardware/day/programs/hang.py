"""Planted: after a quarter of the time the rank waits for a kernel that does not end, while the GPU is busy."""

from __future__ import annotations

import time

import torch
from torch.utils.data import DataLoader

from tests.hardware.day.programs.parts import BATCH, WIDTH, Tokens, Transformer, step
from tests.hardware.day.programs.truth import CUDA, DEVICE, Truth

_CYCLES_PER_SECOND = 2_000_000_000

loader = DataLoader(Tokens(), batch_size=BATCH, num_workers=2, pin_memory=CUDA)
model = Transformer(width=WIDTH // 2).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA)

truth = Truth()
began = time.monotonic()
for tokens in loader:
    truth.begin_step()
    step(model, optimizer, tokens)
    truth.end_step()
    if time.monotonic() - began > truth.seconds / 4:
        truth.more["hung_from"] = time.time()
        truth.write()  # nothing is written later: the day ends the program
        if CUDA:
            # Ends by itself after a minute or two, if the day itself was killed.
            torch.cuda._sleep(60 * _CYCLES_PER_SECOND)
            torch.cuda.synchronize()
        else:
            time.sleep(60)
        break
