"""Gradient scaler, accumulation over batches in memory, clipping, and a pause every second step."""

import time

import slow
import torch
import torch.nn.functional as F
from truth import truth

torch.manual_seed(0)

X, Y = torch.randn(320, 8), torch.randint(4, (320,))
model = slow.Net(forward=0.003, backward=0.004)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu", enabled=False)
for step in range(20):
    for micro in range(2):
        i = (2 * step + micro) * 8
        with torch.autocast("cpu", enabled=False):
            with truth("forward"):
                output = model(X[i : i + 8])
            loss = F.cross_entropy(output, Y[i : i + 8]) / 2
        with truth("backward"):
            scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with truth("optimizer"):
        scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    truth.step()
    if step % 2:
        time.sleep(0.06)
print(f"{loss.item():.6f}")
