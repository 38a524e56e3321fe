"""Planted: a blocking checkpoint every few seconds."""

from __future__ import annotations

import tempfile
import time

import torch
from torch.utils.data import DataLoader

from tests.hardware.day.programs.parts import BATCH, WIDTH, Tokens, Transformer, step
from tests.hardware.day.programs.truth import CUDA, DEVICE, Truth

loader = DataLoader(Tokens(), batch_size=BATCH, num_workers=2, pin_memory=CUDA)
model = Transformer(width=WIDTH // 2).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA)
history = torch.zeros(0 if CUDA else 64 << 20)  # makes the tiny model's checkpoint take a while

truth = Truth()
interval = truth.seconds / 6
saved = time.monotonic()
saves = 0
with tempfile.TemporaryDirectory() as folder:
    for tokens in loader:
        truth.begin_step()
        step(model, optimizer, tokens)
        if time.monotonic() - saved > interval:
            with truth.planted_on_host():
                torch.save({"model": model.state_dict(), "history": history}, f"{folder}/checkpoint.pt")
            saved = time.monotonic()
            saves += 1
        if truth.end_step():
            break
truth.more["checkpoints"] = saves
truth.write(lost="planted")
