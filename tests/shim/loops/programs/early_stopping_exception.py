"""Early stopping by an exception out of nested calls, after which the program goes on to a final test."""

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth


class StopTraining(Exception):
    pass


class EarlyStopping:
    def __init__(self, patience):
        self.patience = patience
        self.best = float("inf")
        self.bad = 0

    def __call__(self, loss):
        if loss < self.best - 1.0:
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
            if self.bad >= self.patience:
                raise StopTraining(self.best)


@truth("evaluation")
def evaluate(model, loader):
    model.eval()
    with torch.inference_mode():
        loss = sum(F.cross_entropy(model(inputs), targets).item() for inputs, targets in loader)
    model.train()
    return loss


def fit(model, train_loader, val_loader, optimizer, stopping):
    for _ in range(100):
        for inputs, targets in train_loader:
            truth.samples(len(inputs))
            optimizer.zero_grad()
            with truth("forward"):
                output = model(inputs)
            loss = F.cross_entropy(output, targets)
            with truth("backward"):
                loss.backward()
            with truth("optimizer"):
                optimizer.step()
            truth.step()
        stopping(evaluate(model, val_loader))


torch.manual_seed(0)
model = slow.Net()
val_loader = DataLoader(slow.Samples(6), batch_size=3)
try:
    fit(
        model,
        DataLoader(slow.Samples(9), batch_size=3),
        val_loader,
        slow.SGD(model.parameters(), lr=0.01),
        EarlyStopping(2),
    )
except StopTraining as stop:
    print(f"stopped at {stop.args[0]:.6f}")
print(f"test {evaluate(model, val_loader):.6f}")
truth.inspect(model)
