"""PyTorch's tutorial on names: a random example, a call for each letter, an update by hand, and short steps."""

import random
import time

import slow
import torch
from torch import nn
from truth import truth


class RNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.i2h = nn.Linear(8 + 4, 4)
        self.i2o = nn.Linear(8 + 4, 4)

    def forward(self, letter, hidden):
        combined = torch.cat((letter, hidden), 1)
        return slow.through(self.i2o(combined), 0.001, 0.0), self.i2h(combined)


torch.manual_seed(0)
random.seed(0)
rnn = RNN()
criterion = nn.CrossEntropyLoss()


def random_example():
    with truth("data_wait"):
        time.sleep(0.004)
        return torch.tensor([random.randrange(4)]), torch.randn(random.randint(3, 7), 1, 8)


def train(category, line):
    hidden = torch.zeros(1, 4)
    rnn.zero_grad()
    for letter in range(line.size(0)):
        with truth("forward"):
            output, hidden = rnn(line[letter], hidden)
    loss = criterion(output, category)
    with truth("backward"):
        loss.backward()
    for parameter in rnn.parameters():
        parameter.data.add_(parameter.grad.data, alpha=-0.005)
    return loss.item()


total = 0.0
for step in range(1, 61):
    category, line = random_example()
    total += train(category, line)
    truth.step()
    if step % 20 == 0:
        print(f"{step} {total / step:.4f}")
        time.sleep(0.02)
truth.inspect(rnn)
