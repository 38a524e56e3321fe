"""Two training stages one after the other: the head alone, then everything with another optimizer."""

import slow
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from truth import truth


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = slow.Net(8, 8, forward=0.01, backward=0.015)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.body(x))


def train(model, loader, optimizer, epochs):
    for epoch in range(epochs):
        model.train()
        for inputs, targets in loader:
            truth.samples(len(inputs))
            with truth("forward"):
                output = model(inputs)
            loss = F.cross_entropy(slow.through(output, 0.0, 0.012), targets)
            optimizer.zero_grad()
            with truth("backward"):
                loss.backward()
            with truth("optimizer"):
                optimizer.step()
            truth.step()
        print(epoch, f"{loss.item():.6f}")


@truth("evaluation")
def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        return sum((model(x).argmax(1) == y).sum().item() for x, y in loader)


torch.manual_seed(0)
model = Model()
for p in model.body.parameters():
    p.requires_grad = False
train(model, DataLoader(slow.Samples(12), batch_size=3), slow.SGD(model.head.parameters(), lr=0.1), 1)
print("stage 1", evaluate(model, DataLoader(slow.Samples(6), batch_size=3)))
for p in model.body.parameters():
    p.requires_grad = True
train(model, DataLoader(slow.Samples(14), batch_size=4), slow.AdamW(model.parameters(), lr=0.01), 2)
print("stage 2", evaluate(model, DataLoader(slow.Samples(6), batch_size=3)))
truth.inspect(model)
