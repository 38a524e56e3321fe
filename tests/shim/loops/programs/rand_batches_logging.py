"""Batches of torch.rand, with a pause for logging in the loop's body, and a checkpoint that is uploaded."""

import time

import slow
import torch
import torch.nn.functional as F
from truth import truth

torch.manual_seed(0)

model = slow.Net(forward=0.004, backward=0.006)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(1, 31):
    x = torch.rand(8, 8)
    y = torch.randint(4, (8,))
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
    last = loss.item()
    if step % 10 == 0:
        with truth("checkpoint"):
            torch.save(model.state_dict(), "model.pt")
            time.sleep(0.2)  # upload
print(f"{last:.6f}")
