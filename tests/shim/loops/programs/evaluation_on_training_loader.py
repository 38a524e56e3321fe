"""Validation on the training loader under no_grad, with the model left in training mode."""

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth


@truth("evaluation")
def accuracy(model, loader):
    correct = 0
    with torch.no_grad():
        for inputs, targets in loader:
            correct += (model(inputs).argmax(1) == targets).sum().item()
    return correct / len(loader.dataset)


torch.manual_seed(0)
model = slow.Net()
optimizer = slow.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(slow.Samples(12), batch_size=4, shuffle=True)
print(f"before {accuracy(model, loader):.3f}")
for epoch in range(2):
    for inputs, targets in loader:
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
    print(epoch, f"{accuracy(model, loader):.3f}")
truth.inspect(model)
