"""torch.compile of the model with the eager backend, with breaks in the graph, evaluated once in the loop."""

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth

through = torch.compiler.disable(slow.through)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.second = torch.nn.Linear(16, 4)

    def forward(self, x):
        return through(self.second(torch.relu(self.first(x))), 0.015, 0.025)


torch.manual_seed(0)
model = Model()
optimizer = slow.SGD(model.parameters(), lr=0.05)
compiled = torch.compile(model, backend="eager")
for epoch in range(2):
    compiled.train()
    for inputs, targets in DataLoader(slow.Samples(10), batch_size=2):
        truth.samples(len(inputs))
        with truth("forward"):
            output = compiled(inputs)
        loss = F.cross_entropy(output, targets)
        optimizer.zero_grad()
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            optimizer.step()
        truth.step()
    with truth("evaluation"), torch.no_grad():
        compiled.eval()
        total = sum(
            F.cross_entropy(compiled(inputs), targets).item()
            for inputs, targets in DataLoader(slow.Samples(4), batch_size=2)
        )
    print(epoch, f"{loss.item():.6f} {total:.6f}")
with truth("checkpoint"):
    torch.save(compiled.state_dict(), "compiled.pt")
counters = torch._dynamo.utils.counters
print(counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()))
truth.inspect(model)
