"""L-BFGS with a closure, batches of torch.rand, and a pause after each step."""

import time

import slow
import torch
import torch.nn.functional as F
from truth import truth

torch.manual_seed(0)

model = slow.Net(forward=0.002, backward=0.003)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
for step in range(20):
    x, y = torch.rand(8, 8), torch.randint(4, (8,))

    def closure():
        optimizer.zero_grad()
        with truth("forward"):
            output = model(x)
        loss = F.cross_entropy(output, y)
        with truth("backward"):
            loss.backward()
        return loss

    with truth("optimizer"):
        loss = optimizer.step(closure)
    truth.step()
    time.sleep(0.03)
print(f"{loss.item():.4f}")
