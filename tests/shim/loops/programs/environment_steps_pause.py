"""Reinforcement learning: an environment's steps between updates, and a pause after each update."""

import time

import slow
import torch
import torch.nn.functional as F
from truth import truth

torch.manual_seed(0)


class Environment:
    def step(self, action):
        with truth("data_wait or other"):
            time.sleep(0.005)
            return torch.randn(8)


environment = Environment()
model = slow.Net(forward=0.002, backward=0.004)
optimizer = torch.optim.Adam(model.parameters())
state = torch.zeros(8)
for episode in range(15):
    values = []
    for _ in range(4):
        with truth("forward"):
            scores = model(state)
        action = scores.detach().argmax()
        values.append(F.log_softmax(scores, -1)[action])
        state = environment.step(action)
    loss = -torch.stack(values).mean()
    optimizer.zero_grad()
    with truth("backward"):
        loss.backward()
    with truth("optimizer"):
        optimizer.step()
    truth.step()
    time.sleep(0.04)
print(f"{loss.item():.4f}")
