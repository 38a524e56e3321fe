"""A list of batches as the loader, with plain Python before each forward pass, and a pause in the loop's body."""

import time

import slow
import torch
import torch.nn.functional as F
from clock import clock
from truth import truth

torch.manual_seed(0)

batches = [(torch.randn(8, 8), torch.randint(4, (8,))) for _ in range(10)]
model = slow.Net(forward=0.002, backward=0.003)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
code = clock.code
for epoch in range(3):
    for x, y in batches:
        code += [0.02]
        optimizer.zero_grad()
        with truth("forward"):
            output = model(x)
        loss = F.cross_entropy(output, y)
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            optimizer.step()
        truth.step()
        time.sleep(0.03)
    time.sleep(0.1)
print(f"{loss.item():.6f}")
