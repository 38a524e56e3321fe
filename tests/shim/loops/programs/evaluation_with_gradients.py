"""Evaluation with model.eval() and gradients still on."""

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth

torch.manual_seed(0)
model = slow.Net()
optimizer = slow.SGD(model.parameters(), lr=0.05)
train_loader = DataLoader(slow.Samples(12), batch_size=3, shuffle=True)
test_loader = DataLoader(slow.Samples(9), batch_size=3)
for epoch in range(2):
    model.train()
    for inputs, targets in train_loader:
        truth.samples(len(inputs))
        optimizer.zero_grad()
        with truth("forward"):
            output = model(inputs)
        loss = F.cross_entropy(output, targets)
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            optimizer.step()
        truth.step()
    with truth("evaluation"):
        model.eval()
        correct = 0
        for inputs, targets in test_loader:
            output = model(inputs)
            correct += (output.argmax(1) == targets).sum().item()
    print(epoch, correct)
truth.inspect(model)
