"""A thread that prepares batches in a queue, and a pause in the loop's body."""

import queue
import threading
import time

import slow
import torch
import torch.nn.functional as F
from truth import truth

torch.manual_seed(0)


def produce():
    generator = torch.Generator().manual_seed(0)
    for _ in range(24):
        time.sleep(0.005)
        ready.put((torch.randn(8, 8, generator=generator), torch.randint(4, (8,), generator=generator)))


ready = queue.Queue(4)
threading.Thread(target=produce, daemon=True).start()
model = slow.Net(forward=0.004, backward=0.006)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(24):
    with truth("data_wait"):
        x, y = ready.get()
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
print(f"{loss.item():.6f}")
