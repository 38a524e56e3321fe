"""PyTorch's ImageNet example: meters, progress, validate(), save_checkpoint() with a copy of the best."""

import shutil
import time

import slow
import torch
from torch import nn
from torch.utils.data import DataLoader
from truth import truth


class AverageMeter:
    def __init__(self):
        self.sum = 0.0
        self.count = 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    @property
    def avg(self):
        return self.sum / self.count


def accuracy(output, target):
    with torch.no_grad():
        return (output.argmax(1) == target).float().mean() * 100


def train(train_loader, model, criterion, optimizer, epoch):
    data_time, losses, top1 = AverageMeter(), AverageMeter(), AverageMeter()
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(train_loader):
        data_time.update(time.time() - end)
        truth.samples(len(images))
        with truth("forward"):
            output = model(images)
        loss = criterion(output, target)
        losses.update(loss.item(), images.size(0))
        top1.update(accuracy(output, target).item(), images.size(0))
        optimizer.zero_grad()
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            optimizer.step()
        truth.step()
        end = time.time()
        if i % 2 == 0:
            print(f"epoch {epoch} [{i}] loss {losses.avg:.5f} acc {top1.avg:.2f}")
            time.sleep(0.015)


@truth("evaluation")
def validate(val_loader, model, criterion):
    def run_validate(loader):
        with torch.no_grad():
            for images, target in loader:
                output = model(images)
                losses.update(criterion(output, target).item(), images.size(0))
                top1.update(accuracy(output, target).item(), images.size(0))

    losses, top1 = AverageMeter(), AverageMeter()
    model.eval()
    run_validate(val_loader)
    print(f" * {top1.avg:.3f} {losses.avg:.5f}")
    return top1.avg


@truth("checkpoint")
def save_checkpoint(state, is_best, filename="checkpoint.pth.tar"):
    torch.save(state, filename)
    if is_best:
        shutil.copyfile(filename, "model_best.pth.tar")


torch.manual_seed(0)
model = slow.Net()
criterion = nn.CrossEntropyLoss()
optimizer = slow.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
train_loader = DataLoader(slow.Samples(14, 0.006), batch_size=4, shuffle=True)
val_loader = DataLoader(slow.Samples(8, 0.006), batch_size=4)
best_acc1 = 0.0
for epoch in range(2):
    train(train_loader, model, criterion, optimizer, epoch)
    acc1 = validate(val_loader, model, criterion)
    scheduler.step()
    is_best = acc1 > best_acc1
    best_acc1 = max(acc1, best_acc1)
    save_checkpoint(
        {
            "epoch": epoch + 1,
            "state_dict": model.state_dict(),
            "best_acc1": best_acc1,
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
        },
        is_best,
    )
truth.inspect(model)
