"""Loader wrapped in a class that moves batches to a device, and fit() that calls training_step() of the model."""

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth


def to_device(data, device):
    if isinstance(data, (list, tuple)):
        return [to_device(x, device) for x in data]
    return data.to(device, non_blocking=True)


class DeviceDataLoader:
    def __init__(self, loader, device):
        self.loader = loader
        self.device = device

    def __iter__(self):
        for batch in self.loader:
            yield to_device(batch, self.device)

    def __len__(self):
        return len(self.loader)


class Classification(slow.Net):
    def training_step(self, batch):
        images, labels = batch
        with truth("forward"):
            out = self(images)
        return F.cross_entropy(out, labels)

    def validation_step(self, batch):
        images, labels = batch
        out = self(images)
        return {"loss": F.cross_entropy(out, labels).detach(), "acc": (out.argmax(1) == labels).float().mean()}


@truth("evaluation")
@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    outputs = [model.validation_step(batch) for batch in loader]
    return torch.stack([output["loss"] for output in outputs]).mean().item()


def fit_one_cycle(epochs, max_lr, model, train_loader, val_loader):
    history = []
    optimizer = slow.SGD(model.parameters(), max_lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr, epochs=epochs, steps_per_epoch=len(train_loader), cycle_momentum=False
    )
    for _ in range(epochs):
        model.train()
        losses = []
        for batch in train_loader:
            truth.samples(len(batch[0]))
            loss = model.training_step(batch)
            losses.append(loss.detach())
            with truth("backward"):
                loss.backward()
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
            with truth("optimizer"):
                optimizer.step()
            optimizer.zero_grad()
            truth.step()
            scheduler.step()
        history.append((torch.stack(losses).mean().item(), evaluate(model, val_loader)))
    return history


torch.manual_seed(0)
model = Classification()
device = torch.device("cpu")
train_loader = DeviceDataLoader(DataLoader(slow.Samples(11), batch_size=2, shuffle=True), device)
val_loader = DeviceDataLoader(DataLoader(slow.Samples(6), batch_size=3), device)
for train_loss, val_loss in fit_one_cycle(2, 0.05, model, train_loader, val_loader):
    print(f"{train_loss:.6f} {val_loss:.6f}")
truth.inspect(model)
