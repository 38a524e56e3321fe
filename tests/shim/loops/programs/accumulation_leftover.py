"""Gradient accumulation over three micro-batches, with micro-batches left over at the end of each epoch."""

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth

torch.manual_seed(0)
loader = DataLoader(slow.Samples(15, seconds=0.01), batch_size=2)
model = slow.Net()
optimizer = slow.SGD(model.parameters(), lr=0.05)
accumulate = 3
for epoch in range(2):
    optimizer.zero_grad()
    for number, (inputs, targets) in enumerate(loader, start=1):
        truth.samples(len(inputs))
        with truth("forward"):
            output = model(inputs)
        loss = F.cross_entropy(output, targets) / accumulate
        with truth("backward"):
            loss.backward()
        if number % accumulate == 0:
            with truth("optimizer"):
                optimizer.step()
            optimizer.zero_grad()
            truth.step()
    print(epoch, f"{loss.item():.6f}")
truth.inspect(model)
