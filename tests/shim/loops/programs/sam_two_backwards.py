"""Sharpness-aware minimization: two forward and backward passes for each step."""

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, {"rho": rho, **kwargs})
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups
        self.old = {}

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm() for group in self.param_groups for p in group["params"]]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                self.old[p] = p.data.clone()
                p.add_(p.grad * group["rho"] / (norm + 1e-12))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for p, value in self.old.items():
            p.data = value
        self.base_optimizer.step()
        self.zero_grad()


torch.manual_seed(0)
model = slow.Net()
optimizer = SAM(model.parameters(), slow.SGD, lr=0.1)
for inputs, targets in DataLoader(slow.Samples(18), batch_size=2):
    truth.samples(len(inputs))
    with truth("forward"):
        output = model(inputs)
    loss = F.cross_entropy(output, targets)
    with truth("backward"):
        loss.backward()
    optimizer.first_step()
    with truth("forward"):
        output = model(inputs)
    second = F.cross_entropy(output, targets)
    with truth("backward"):
        second.backward()
    with truth("optimizer"):
        optimizer.second_step()
    truth.step()
    print(f"{loss.item():.6f}")
truth.inspect(model)
