"""YOLOv5's infinite loader: one iterator for training and one for validation stay alive."""

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth


class RepeatSampler:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class InfiniteLoader(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", RepeatSampler(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


@truth("evaluation")
@torch.no_grad()
def validate(model, loader):
    model.eval()
    correct = 0
    for images, targets in loader:
        correct += (model(images).argmax(1) == targets).sum().item()
    model.train()
    return correct


torch.manual_seed(0)
train_loader = InfiniteLoader(slow.Samples(12), batch_size=3, shuffle=True)
val_loader = InfiniteLoader(slow.Samples(6), batch_size=3)
model = slow.Net()
optimizer = slow.SGD(model.parameters(), lr=0.01, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for epoch in range(3):
    model.train()
    for images, targets in train_loader:
        truth.samples(len(images))
        with truth("forward"):
            predicted = model(images)
        loss = F.cross_entropy(predicted, targets)
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            optimizer.step()
        optimizer.zero_grad()
        truth.step()
    scheduler.step()
    print(f"epoch {epoch} loss {loss.item():.6f} correct {validate(model, val_loader)}")
with truth("checkpoint"):
    torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
truth.inspect(model)
