"""model.compile() in place with the aot_eager backend: one graph, forward and backward made by AOTAutograd."""

import time

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth


@torch.library.custom_op("loops::wait", mutates_args=())
def wait(x: torch.Tensor, forward: float, backward: float) -> torch.Tensor:
    time.sleep(forward)
    return x.clone()


@wait.register_fake
def _(x, forward, backward):
    time.sleep(0.05)  # while it is compiled
    return torch.empty_like(x)


def setup_context(ctx, inputs, output):
    ctx.seconds = inputs[2]


def gradient(ctx, grad):
    return wait(grad, ctx.seconds, 0.0), None, None


wait.register_autograd(gradient, setup_context=setup_context)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.second = torch.nn.Linear(16, 4)

    def forward(self, x):
        return wait(self.second(torch.relu(self.first(x))), 0.015, 0.025)


torch.manual_seed(0)
model = Model()
model.compile(backend="aot_eager", fullgraph=True)
optimizer = slow.AdamW(model.parameters(), lr=1e-2)
for epoch in range(2):
    for inputs, targets in DataLoader(slow.Samples(10), batch_size=2):
        truth.samples(len(inputs))
        with truth("forward"):
            output = model(inputs)
        loss = F.cross_entropy(output, targets)
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            optimizer.step()
        optimizer.zero_grad()
        truth.step()
    print(epoch, f"{loss.item():.6f}")
print(torch._dynamo.utils.counters["stats"]["unique_graphs"])
truth.inspect(model)
