"""Class-based trainer that saves itself with its model whole, and keeps a history."""

import slow
import torch
from torch import nn
from torch.utils.data import DataLoader
from truth import truth


class Trainer:
    def __init__(self, model, train_data, test_data, optimizer, save_every):
        self.model = model
        self.train_data = train_data
        self.test_data = test_data
        self.optimizer = optimizer
        self.save_every = save_every
        self.criterion = nn.CrossEntropyLoss()
        self.history = []

    def _run_batch(self, source, targets):
        truth.samples(len(source))
        self.optimizer.zero_grad()
        with truth("forward"):
            output = self.model(source)
        loss = self.criterion(output, targets)
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            self.optimizer.step()
        truth.step()
        self.history.append(round(loss.item(), 6))

    def _run_epoch(self):
        self.model.train()
        for source, targets in self.train_data:
            self._run_batch(source, targets)

    @truth("evaluation")
    def _test(self):
        self.model.eval()
        with torch.no_grad():
            self.accuracy = sum((self.model(x).argmax(1) == y).sum().item() for x, y in self.test_data)

    @truth("checkpoint")
    def _save(self, epoch):
        torch.save({"model": self.model, "optimizer": self.optimizer, "history": self.history}, f"epoch{epoch}.pt")

    def train(self, epochs):
        for epoch in range(epochs):
            self._run_epoch()
            self._test()
            if epoch % self.save_every == 0:
                self._save(epoch)
        print(self.history, self.accuracy)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), slow.Net(8, 4))
Trainer(
    model,
    DataLoader(slow.Samples(10), batch_size=2, shuffle=True),
    DataLoader(slow.Samples(4), batch_size=2),
    slow.SGD(model.parameters(), lr=0.05),
    save_every=1,
).train(2)
truth.inspect(model)
