"""PyTorch's forward-forward example: one batch, and on it one layer after another, each with its own optimizer"""

import slow
import torch
from torch import nn
from torch.utils.data import DataLoader
from truth import truth

EPOCHS = 20


class Layer(nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.optimizer = slow.AdamW(self.parameters(), lr=0.03)
        self.optimizer.seconds = 0.004

    def forward(self, x):
        direction = x / (x.norm(2, 1, keepdim=True) + 1e-4)
        return slow.through(torch.relu(super().forward(direction)), 0.002, 0.002)

    def train(self, positive, negative):
        for _ in range(EPOCHS):
            with truth("forward"):
                good = self(positive).pow(2).mean(1)
                bad = self(negative).pow(2).mean(1)
            loss = torch.log1p(torch.exp(torch.cat([2.0 - good, bad - 2.0]))).mean()
            self.optimizer.zero_grad()
            with truth("backward"):
                loss.backward()
            with truth("optimizer"):
                self.optimizer.step()
            truth.step()
        print(f"{loss.item():.6f}")
        with truth("forward"):
            return self(positive).detach(), self(negative).detach()


torch.manual_seed(0)
layers = [Layer(8, 16), Layer(16, 16), Layer(16, 16)]
loader = DataLoader(slow.Samples(8), batch_size=8)
x, y = next(iter(loader))
positive, negative = x, x.flip(0)
for layer in layers:
    positive, negative = layer.train(positive, negative)
for number, layer in enumerate(layers):
    truth.inspect(layer, f"layer {number}")
