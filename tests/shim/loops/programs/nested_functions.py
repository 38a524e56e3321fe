"""Everything in nested functions: a step function made by a factory, an evaluation function inside main()."""

import time

import slow
import torch
import torch.nn.functional as F
from truth import truth


def make_train_step(model, loss_fn, optimizer):
    def perform_train_step(x, y):
        model.train()
        with truth("forward"):
            yhat = model(x)
        loss = loss_fn(yhat, y)
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            optimizer.step()
        optimizer.zero_grad()
        truth.step()
        return loss.item()

    return perform_train_step


def main():
    def batch():
        with truth("data_wait"):
            time.sleep(0.02)
            x = torch.randn(6, 8)
            return x, x.argmax(1) % 4

    def evaluate():
        with truth("evaluation"), torch.no_grad():
            model.eval()
            return sum(F.cross_entropy(model(x), y).item() for x, y in (batch() for _ in range(3)))

    torch.manual_seed(0)
    model = slow.Net()
    train_step = make_train_step(model, F.cross_entropy, slow.SGD(model.parameters(), lr=0.05))
    for epoch in range(3):
        losses = [train_step(*batch()) for _ in range(4)]
        print(epoch, f"{sum(losses):.6f} {evaluate():.6f}")
    truth.inspect(model)


main()
