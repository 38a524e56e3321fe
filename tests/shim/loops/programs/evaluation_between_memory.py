"""Batches in memory, an evaluation without a loader every ten steps, then a checkpoint, and a pause in each step."""

import time

import slow
import torch
import torch.nn.functional as F
from truth import truth

torch.manual_seed(0)

X, Y = torch.randn(240, 8), torch.randint(4, (240,))
model = slow.Net(forward=0.003, backward=0.004)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(30):
    i = 8 * step
    with truth("forward"):
        output = model(X[i : i + 8])
    loss = F.cross_entropy(output, Y[i : i + 8])
    optimizer.zero_grad()
    with truth("backward"):
        loss.backward()
    with truth("optimizer"):
        optimizer.step()
    truth.step()
    time.sleep(0.02)
    if step % 10 == 9:
        with truth("evaluation"):
            model.eval()
            with torch.no_grad():
                total = sum(F.cross_entropy(model(X[j : j + 8]), Y[j : j + 8]).item() for j in range(0, 160, 8))
            model.train()
        with truth("checkpoint"):
            torch.save(model.state_dict(), "model.pt")
            time.sleep(0.15)  # upload
        print(f"{total:.6f}")
