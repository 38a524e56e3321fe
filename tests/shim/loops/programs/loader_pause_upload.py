"""A loader, a pause in the loop's body, and checkpoints that are uploaded between steps and between epochs."""

import time

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth

torch.manual_seed(0)
model = slow.Net(forward=0.004, backward=0.006)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for step, (x, y) in enumerate(DataLoader(slow.Samples(48, seconds=0.002), batch_size=4), start=1):
        truth.samples(len(x))
        optimizer.zero_grad()
        with truth("forward"):
            output = model(x)
        loss = F.cross_entropy(output, y)
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            optimizer.step()
        truth.step()
        time.sleep(0.03)
        if step == 6:
            with truth("checkpoint"):
                torch.save(model.state_dict(), "step.pt")
                time.sleep(0.25)  # upload
    with truth("checkpoint"):
        torch.save(model.state_dict(), "epoch.pt")
        time.sleep(0.25)  # upload
print(f"{loss.item():.6f}")
