"""PyTorch's word_language_model with --dry-run: one update by hand in each epoch, then a longer evaluation."""

import time

import slow
import torch
from torch import nn
from truth import truth

torch.manual_seed(3)
tokens = torch.rand(40, 4, 8)


def get_batch(position):
    with truth("data_wait"):
        time.sleep(0.01)
        return tokens[position : position + 2], tokens[position + 1 : position + 3]


def evaluate(model):
    model.eval()
    with torch.no_grad():
        return sum(criterion(model(batch[0]), batch[1]).item() for batch in map(get_batch, range(0, 10, 2)))


def train(model):
    model.train()
    inputs, targets = get_batch(0)
    model.zero_grad()
    with truth("forward"):
        loss = criterion(model(inputs), targets)
    with truth("backward"):
        loss.backward()
    with truth("other"):
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.1)
    truth.step()


model = slow.Net(8, 8)
criterion = nn.MSELoss()
for epoch in range(3):
    train(model)
    with truth("evaluation"):
        print(f"{epoch} {evaluate(model):.5f}")
    with truth("checkpoint"):
        torch.save(model.state_dict(), "model.pt")
with truth("restore"):
    model.load_state_dict(torch.load("model.pt"))
with truth("evaluation"):
    print(f"{evaluate(model):.5f}")
truth.inspect(model)
