"""Gradients from torch.autograd.grad(), and weights without a module that are replaced at each step."""

import time

import slow
import torch
from truth import truth

torch.manual_seed(0)
weights = [torch.randn(8, 16, requires_grad=True), torch.randn(16, 1, requires_grad=True)]


def network(x, weights):
    return slow.through(torch.tanh(x @ weights[0]) @ weights[1], 0.001, 0.03)


def draw_points(count):
    time.sleep(0.012)
    return torch.rand(count, 8)


for step in range(10):
    # A loop without modules begins with its first gradients.
    with truth("data_wait" if step else "initialization"):
        x = draw_points(16)
    loss = (network(x, weights) - x.sum(1, keepdim=True)).pow(2).mean()
    with truth("backward"):
        gradients = torch.autograd.grad(loss, weights)
    weights = [(w - 0.01 * g).detach().requires_grad_() for w, g in zip(weights, gradients)]
    truth.step()
    print(f"{step} {loss.item():.6f}")
