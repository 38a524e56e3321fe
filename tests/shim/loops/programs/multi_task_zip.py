"""Two loaders zipped for two tasks that share a trunk, and one evaluation for both."""

import slow
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from truth import truth


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(8, 8)
        self.heads = nn.ModuleDict({"first": nn.Linear(8, 4), "second": nn.Linear(8, 4)})

    def forward(self, inputs, task):
        return slow.through(self.heads[task](torch.relu(self.trunk(inputs))), 0.01, 0.02)


torch.manual_seed(0)
model = Shared()
optimizer = slow.SGD(model.parameters(), lr=0.05)
first = DataLoader(slow.Samples(18, seconds=0.006), batch_size=2, shuffle=True)
second = DataLoader(slow.Samples(27, seconds=0.006), batch_size=3)
for (x1, y1), (x2, y2) in zip(first, second):
    truth.samples(len(x1) + len(x2))
    with truth("forward"):
        output = model(x1, "first")
    loss = F.cross_entropy(output, y1)
    with truth("forward"):
        output = model(x2, "second")
    loss = loss + F.cross_entropy(output, y2)
    optimizer.zero_grad()
    with truth("backward"):
        loss.backward()
    with truth("optimizer"):
        optimizer.step()
    truth.step()
    print(f"{loss.item():.6f}")
with truth("evaluation"), torch.no_grad():
    model.eval()
    for inputs, targets in DataLoader(slow.Samples(6), batch_size=3):
        print(f"{F.cross_entropy(model(inputs, 'first'), targets).item():.6f}")
truth.inspect(model)
