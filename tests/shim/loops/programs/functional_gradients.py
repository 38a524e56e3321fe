"""Gradients by torch.func.grad_and_value of plain tensors, batches by a function, and a pause in the loop's body."""

import time

import torch
import torch.nn.functional as F
from truth import truth

torch.manual_seed(0)

weights = {"first": torch.randn(8, 16), "second": torch.randn(16, 4)}


def draw():
    time.sleep(0.01)
    return torch.randn(8, 8), torch.randint(4, (8,))


def compute_loss(weights, x, y):
    with truth("forward" if step else "initialization"):
        output = torch.relu(x @ weights["first"]) @ weights["second"]
        time.sleep(0.01)
        return F.cross_entropy(output, y)


for step in range(12):
    # A loop without modules begins with its first gradients.
    with truth("data_wait" if step else "initialization"):
        x, y = draw()
    gradients, loss = torch.func.grad_and_value(compute_loss)(weights, x, y)
    with truth("backward"):  # so that the loop begins here
        pass
    weights = {name: weight - 0.1 * gradients[name] for name, weight in weights.items()}
    truth.step()
    time.sleep(0.03)
print(f"{loss.item():.6f}")
