"""torchvision tutorial: `for phase in ["train", "val"]`, set_grad_enabled(phase == "train"), best weights restored."""

import os
from tempfile import TemporaryDirectory

import slow
import torch
from torch import nn, optim
from torch.utils.data import DataLoader
from truth import truth


def train_model(model, criterion, optimizer, scheduler, dataloaders, num_epochs):
    with TemporaryDirectory() as folder:
        best = os.path.join(folder, "best_model_params.pt")
        torch.save(model.state_dict(), best)
        best_acc = 0.0
        for epoch in range(num_epochs):
            for phase in ["train", "val"]:
                if phase == "train":
                    model.train()
                    run_phase(model, criterion, optimizer, dataloaders[phase], phase)
                    scheduler.step()
                else:
                    with truth("evaluation"):
                        model.eval()
                        acc = run_phase(model, criterion, optimizer, dataloaders[phase], phase)
                    if acc > best_acc:
                        best_acc = acc
                        with truth("checkpoint"):
                            torch.save(model.state_dict(), best)
            print(f"epoch {epoch} best {best_acc:.4f}")
        with truth("restore"):
            model.load_state_dict(torch.load(best, weights_only=True))
    return model


def run_phase(model, criterion, optimizer, loader, phase):
    correct = 0
    for inputs, labels in loader:
        if phase == "train":
            truth.samples(len(inputs))
        optimizer.zero_grad()
        with torch.set_grad_enabled(phase == "train"):
            with truth("forward"):
                outputs = model(inputs)
            loss = criterion(outputs, labels)
            if phase == "train":
                with truth("backward"):
                    loss.backward()
                with truth("optimizer"):
                    optimizer.step()
                truth.step()
        correct += (outputs.argmax(1) == labels).sum().item()
    return correct / len(loader.dataset)


torch.manual_seed(0)
model = slow.Net()
optimizer = slow.SGD(model.parameters(), lr=0.05, momentum=0.9)
model = train_model(
    model,
    nn.CrossEntropyLoss(),
    optimizer,
    optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1),
    {
        "train": DataLoader(slow.Samples(12), batch_size=3, shuffle=True),
        "val": DataLoader(slow.Samples(6), batch_size=3),
    },
    num_epochs=2,
)
truth.inspect(model)
