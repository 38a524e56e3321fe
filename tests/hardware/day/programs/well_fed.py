"""A well-fed transformer in bfloat16: nothing is planted."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from tests.hardware.day.programs.parts import BATCH, Tokens, Transformer
from tests.hardware.day.programs.truth import CUDA, DEVICE, Truth

loader = DataLoader(Tokens(), batch_size=BATCH, num_workers=2, pin_memory=CUDA)
model = Transformer().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA)

truth = Truth()
for tokens in loader:
    truth.begin_step()
    tokens = tokens.to(DEVICE, non_blocking=True)
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = model(tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if truth.end_step():
        break
truth.write(lost="idle" if CUDA else "waited")
