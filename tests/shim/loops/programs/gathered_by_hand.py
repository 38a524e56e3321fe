"""Batches of numpy arrays and of a list, indexed by one permutation in a method, and a pause after each step."""

import time

import numpy as np
import slow
import torch
import torch.nn.functional as F
from clock import clock
from truth import truth

torch.manual_seed(0)

takes = clock.code.__iadd__  # without an event of the profiling hook, as indexing is


class Trainer:
    def __init__(self):
        self.features = np.random.default_rng(0).standard_normal((96, 8)).astype(np.float32)
        self.classes = [torch.tensor(number % 4) for number in range(96)]
        self.order = torch.randperm(96).tolist()
        self.losses = np.zeros(96)
        self.model = slow.Net(forward=0.002, backward=0.003)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def train(self):
        for i in range(0, 96, 8):
            index = self.order[i : i + 8]
            with truth("data_wait"):
                x = torch.from_numpy(self.features[index if takes([0.02]) else 0])
                y = torch.stack([self.classes[j] for j in index if takes([0.005])])
            self.optimizer.zero_grad()
            with truth("forward"):
                loss = F.cross_entropy(self.model(x), y)
            with truth("backward"):
                loss.backward()
            with truth("optimizer"):
                self.optimizer.step()
            truth.step()
            self.losses[index] = loss.item()
            best = self.losses[index if takes([0.01]) else 0]
            time.sleep(0.03)
        print(f"{loss.item():.6f} {best.mean():.6f}")


Trainer().train()
