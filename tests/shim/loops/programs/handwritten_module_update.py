"""A module updated by hand: p.data.sub_() and grad.zero_() after each backward pass, no optimizer."""

import time

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth

torch.manual_seed(0)
model = slow.Net()
rate = 0.05
for epoch in range(2):
    for inputs, targets in DataLoader(slow.Samples(12), batch_size=2, shuffle=True):
        truth.samples(len(inputs))
        with truth("forward"):
            output = model(inputs)
        loss = F.cross_entropy(output, targets)
        with truth("backward"):
            loss.backward()
        for parameter in model.parameters():
            parameter.data.sub_(rate * parameter.grad.data)
            parameter.grad.data.zero_()
        truth.step()
        time.sleep(0.005)
    with truth("evaluation"), torch.no_grad():
        total = sum(F.cross_entropy(model(x), y).item() for x, y in DataLoader(slow.Samples(4), batch_size=2))
    print(epoch, f"{loss.item():.6f} {total:.6f}")
with truth("checkpoint"):
    torch.save(model.state_dict(), "model.pt")
truth.inspect(model)
