"""Evaluation every three steps under no_grad, left early by break."""

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth

torch.manual_seed(0)
model = slow.Net()
optimizer = slow.SGD(model.parameters(), lr=0.05)
train_loader = DataLoader(slow.Samples(18), batch_size=2, shuffle=True)
val_loader = DataLoader(slow.Samples(40), batch_size=4)
for step, (inputs, targets) in enumerate(train_loader, start=1):
    truth.samples(len(inputs))
    model.train()
    with truth("forward"):
        output = model(inputs)
    loss = F.cross_entropy(output, targets)
    optimizer.zero_grad()
    with truth("backward"):
        loss.backward()
    with truth("optimizer"):
        optimizer.step()
    truth.step()
    if step % 3 == 0:
        with truth("evaluation"):
            model.eval()
            total = 0.0
            with torch.no_grad():
                for number, (val_inputs, val_targets) in enumerate(val_loader):
                    total += F.cross_entropy(model(val_inputs), val_targets).item()
                    if number == 1:
                        break
        print(f"step {step} validation {total / 2:.6f}")
truth.inspect(model)
