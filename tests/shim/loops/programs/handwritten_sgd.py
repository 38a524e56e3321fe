"""Hand-written SGD without a module: p -= lr * p.grad under no_grad, gradients set to None."""

import time

import slow
import torch
from truth import truth

torch.manual_seed(0)
w1 = torch.randn(8, 16, requires_grad=True)
w2 = torch.randn(16, 1, requires_grad=True)
parameters = [w1, w2]


def sample_batch():
    time.sleep(0.01)
    x = torch.randn(16, 8)
    return x, x.sum(1, keepdim=True)


def predict(x):
    return slow.through(torch.tanh(x @ w1) @ w2, 0.002, 0.03)


for step in range(12):
    # A loop without modules begins with its first gradients.
    with truth("data_wait" if step else "initialization"):
        x, y = sample_batch()
    with truth("forward" if step else "initialization"):
        loss = (predict(x) - y).pow(2).mean()
    with truth("backward"):
        loss.backward()
    with torch.no_grad():
        for p in parameters:
            p -= 0.01 * p.grad
            p.grad = None
    truth.step()
    if step % 3 == 0:
        print(step, f"{loss.item():.5f}")
with truth("checkpoint"):
    torch.save(parameters, "weights.pt")
