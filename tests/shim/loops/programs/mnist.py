"""PyTorch's MNIST example: train() and test() functions, a loader each."""

import time

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth


def train(model, loader, optimizer, epoch):
    model.train()
    for batch_index, (data, target) in enumerate(loader):
        truth.samples(len(data))
        optimizer.zero_grad()
        with truth("forward"):
            output = model(data)
        loss = F.cross_entropy(output, target)
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            optimizer.step()
        truth.step()
        if batch_index % 2 == 0:
            time.sleep(0.02)  # logging
            print(f"epoch {epoch} batch {batch_index} loss {loss.item():.6f}")


@truth("evaluation")
def test(model, loader):
    model.eval()
    loss = 0.0
    with torch.no_grad():
        for data, target in loader:
            loss += F.cross_entropy(model(data), target, reduction="sum").item()
    print(f"test loss {loss / len(loader.dataset):.6f}")


def main():
    torch.manual_seed(1)
    train_loader = DataLoader(slow.Samples(18), batch_size=4, shuffle=True)
    test_loader = DataLoader(slow.Samples(8), batch_size=4)
    model = slow.Net()
    optimizer = slow.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        train(model, train_loader, optimizer, epoch)
        test(model, test_loader)
    with truth("checkpoint"):
        torch.save(model.state_dict(), "mnist.pt")
    truth.inspect(model)


if __name__ == "__main__":
    main()
