"""Planted: single precision without TF32, so that tensor cores have nothing to do."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from tests.hardware.day.programs.parts import BATCH, Tokens, Transformer
from tests.hardware.day.programs.truth import CUDA, DEVICE, Truth

torch.set_float32_matmul_precision("highest")
loader = DataLoader(Tokens(), batch_size=BATCH // 2, num_workers=2, pin_memory=CUDA)
model = Transformer().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA)

truth = Truth()
for tokens in loader:
    truth.begin_step()
    tokens = tokens.to(DEVICE, non_blocking=True)
    loss = model(tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if truth.end_step():
        break
truth.write()
