"""Gradients of plain tensors, batches stacked by a comprehension in the loop's body, and a pause after each step."""

import time

import torch
import torch.nn.functional as F
from truth import truth

torch.manual_seed(0)

DATA = torch.randn(48, 8)
weights = {"first": torch.randn(8, 16), "second": torch.randn(16, 4)}


def read(index):
    time.sleep(0.002)
    return DATA[index] + 0.01 * torch.randn(8)


def compute_loss(weights, x, y):
    with truth("forward" if step else "initialization"):
        output = torch.relu(x @ weights["first"]) @ weights["second"]
        time.sleep(0.01)
        return F.cross_entropy(output, y)


for step in range(12):
    # A loop without modules begins with its first gradients.
    with truth("data_wait" if step else "initialization"):
        x = torch.stack([read(index) for index in torch.randint(48, (8,)).tolist()])
        y = torch.randint(4, (8,))
    gradients, loss = torch.func.grad_and_value(compute_loss)(weights, x, y)
    with truth("backward"):  # so that the loop begins here
        pass
    weights = {name: weight - 0.1 * gradients[name] for name, weight in weights.items()}
    truth.step()
    time.sleep(0.03)
print(f"{loss.item():.6f}")
