"""A generator wrapped by track(), a pause in the loop's body, and a checkpoint that is uploaded."""

import time

import slow
import torch
import torch.nn.functional as F
from truth import truth

import stallscope

torch.manual_seed(0)


def batches(number):
    for _ in range(number):
        with truth("data_wait"):
            time.sleep(0.01)
            batch = torch.randn(8, 8), torch.randint(4, (8,))
        yield batch


model = slow.Net(forward=0.004, backward=0.006)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
truth.rank(0)  # the run begins
for step, (x, y) in enumerate(stallscope.track(batches(24), run="loop"), start=1):
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
    if step % 8 == 0:
        with truth("checkpoint"):
            torch.save(model.state_dict(), "model.pt")
            time.sleep(0.2)  # upload
print(f"{loss.item():.6f}")
