"""Moving average of the weights after each step, evaluated in place of the model."""

import copy
import time

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth

torch.manual_seed(0)
model = slow.Net()
ema = copy.deepcopy(model).eval()
optimizer = slow.AdamW(model.parameters(), lr=1e-2)


@torch.no_grad()
def update_ema(decay=0.9):
    time.sleep(0.008)
    averaged, current = dict(ema.named_parameters()), dict(model.named_parameters())
    for name in current:
        averaged[name].mul_(decay).add_(current[name].data, alpha=1 - decay)


for epoch in range(2):
    for inputs, targets in DataLoader(slow.Samples(10), batch_size=2):
        truth.samples(len(inputs))
        with truth("forward"):
            output = model(inputs)
        loss = F.cross_entropy(output, targets)
        optimizer.zero_grad()
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            optimizer.step()
        truth.step()
        update_ema()
    with truth("evaluation"), torch.no_grad():
        total = 0.0
        for inputs, targets in DataLoader(slow.Samples(4), batch_size=2):
            total += F.cross_entropy(ema(inputs), targets).item()
    print(epoch, f"{loss.item():.6f} {total:.6f}")
truth.inspect(model)
truth.inspect(ema, "ema")
