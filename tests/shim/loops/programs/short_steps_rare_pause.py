"""Short steps on batches of a function, of which few intervals are observed, with a rare long pause."""

import time

import slow
import torch
import torch.nn.functional as F
from truth import truth

torch.manual_seed(0)


@truth("data_wait")
def draw():
    return torch.rand(8, 8), torch.randint(4, (8,))


model = slow.Net(forward=0.001, backward=0.001)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(1, 501):
    x, y = draw()
    with truth("forward"):
        output = model(x)
    loss = F.cross_entropy(output, y)
    optimizer.zero_grad()
    with truth("backward"):
        loss.backward()
    with truth("optimizer"):
        optimizer.step()
    truth.step()
    if step % 71 == 0:
        time.sleep(0.2)
print(f"{loss.item():.6f}")
