"""Loop without a loader: a function draws each batch, and a callback sleeps after the optimizer's step."""

import time

import slow
import torch
import torch.nn.functional as F
from truth import truth

torch.manual_seed(0)
features = torch.randn(64, 8)
classes = torch.randint(4, (64,))


@truth("data_wait")
def draw(size):
    time.sleep(0.02)
    chosen = torch.randint(64, (size,))
    return features[chosen], classes[chosen]


def on_step_end(step, loss):
    time.sleep(0.015)
    print(f"step {step} loss {loss.item():.6f}")


model = slow.Net()
optimizer = slow.AdamW(model.parameters(), lr=1e-2)
for step in range(10):
    x, y = draw(8)
    optimizer.zero_grad()
    with truth("forward"):
        output = model(x)
    loss = F.cross_entropy(output, y)
    with truth("backward"):
        loss.backward()
    with truth("optimizer"):
        optimizer.step()
    truth.step()
    on_step_end(step, loss)
truth.inspect(model)
