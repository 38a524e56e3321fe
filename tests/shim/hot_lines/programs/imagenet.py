"""PyTorch's ImageNet example: meters, train(), validate(), workers that decode and augment."""

import os
import time

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

END = time.monotonic() + float(os.environ["PROGRAM_SECONDS"])


class ColorJitter:
    def __call__(self, image):
        mean = image.mean()
        pixels = image.flatten().tolist()
        pixels = [min(max((pixel - mean.item()) * 1.1, 0.0), 1.0) for pixel in pixels]  # planted: data_wait
        return torch.tensor(pixels).view_as(image)


class RandomHorizontalFlip:
    def __call__(self, image):
        return image.flip(-1) if torch.rand(1) < 0.5 else image


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image


class ImageFolder(Dataset):
    def __init__(self, count, transform=None):
        self.count, self.transform = count, transform

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = torch.rand(3, 24, 24)
        return (self.transform(image) if self.transform else image), index % 4


class AverageMeter:
    def __init__(self, name):
        self.name, self.sum, self.count = name, 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n


def train(loader, model, criterion, optimizer):
    losses, batch_time = AverageMeter("Loss"), AverageMeter("Time")
    model.train()
    end = time.time()
    for images, target in loader:
        output = model(images.flatten(1))
        loss = criterion(output, target)
        losses.update(loss.item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch_time.update(time.time() - end)
        end = time.time()
        if time.monotonic() > END:
            return


def validate(loader, model, criterion):
    model.eval()
    with torch.no_grad():
        for images, target in loader:
            criterion(model(images.flatten(1)), target)


def main():
    model = torch.nn.Linear(3 * 24 * 24, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    augmented = ImageFolder(6000, Compose([RandomHorizontalFlip(), ColorJitter()]))
    train_loader = DataLoader(augmented, batch_size=16, shuffle=True, num_workers=2, multiprocessing_context="fork")
    val_loader = DataLoader(ImageFolder(32), batch_size=16)
    while time.monotonic() < END:
        train(train_loader, model, F.cross_entropy, optimizer)
        validate(val_loader, model, F.cross_entropy)


if __name__ == "__main__":
    main()
