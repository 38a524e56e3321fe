"""Frozen encoder in evaluation mode in front of a head that is trained."""

import slow
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from truth import truth

torch.manual_seed(0)
encoder = slow.Net(8, 16, forward=0.02)
for parameter in encoder.parameters():
    parameter.requires_grad_(False)
encoder.eval()


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 4)

    def forward(self, features):
        return slow.through(self.linear(features), 0.01, 0.015)


head = Head()
optimizer = slow.SGD(head.parameters(), lr=0.1)
for epoch in range(2):
    head.train()
    for inputs, targets in DataLoader(slow.Samples(12), batch_size=2):
        truth.samples(len(inputs))
        with torch.no_grad(), truth("forward"):
            features = encoder(inputs)
        with truth("forward"):
            output = head(features)
        loss = F.cross_entropy(output, targets)
        optimizer.zero_grad()
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            optimizer.step()
        truth.step()
    print(epoch, f"{loss.item():.6f}")
truth.inspect(head)
