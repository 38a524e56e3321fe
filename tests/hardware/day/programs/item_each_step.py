"""Planted: statistics of every parameter fetched with `.item()` after each step, for a log."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from tests.hardware.day.programs.parts import BATCH, WIDTH, Tokens, Transformer, burn
from tests.hardware.day.programs.truth import CUDA, DEVICE, Truth

loader = DataLoader(Tokens(), batch_size=BATCH // 2, num_workers=2, pin_memory=CUDA)
model = Transformer(width=WIDTH // 2).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA)

truth = Truth()
for tokens in loader:
    truth.begin_step()
    tokens = tokens.to(DEVICE, non_blocking=True)
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = model(tokens)
    loss.backward()
    optimizer.step()
    with truth.planted_on_host():
        log = {"loss": loss.item()}
        for name, parameter in model.named_parameters():
            log[name] = parameter.norm().item()
            log[f"{name}.mean"] = parameter.mean().item()
            log[f"{name}.grad"] = parameter.grad.norm().item()
        if not CUDA:
            burn(0.01)  # a CPU waits for nothing here
    optimizer.zero_grad()
    if truth.end_step():
        break
truth.write(lost="planted")
