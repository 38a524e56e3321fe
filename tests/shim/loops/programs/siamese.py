"""PyTorch's siamese example: pairs of images, one branch called twice inside the model, test() after each epoch."""

import time

import slow
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from truth import truth


class Pairs(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    @truth("data_wait")
    def __getitem__(self, index):
        time.sleep(0.008)
        same = float(index % 2)
        return torch.full((8,), index / 10), torch.full((8,), index / 10 + 1 - same), torch.tensor(same)


class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.branch = slow.Net(8, 6, forward=0.007, backward=0.012)
        self.fc = nn.Sequential(nn.Linear(12, 6), nn.ReLU(inplace=True), nn.Linear(6, 1))

    def forward_once(self, x):
        return self.branch(x).view(len(x), -1)

    def forward(self, input1, input2):
        return torch.sigmoid(self.fc(torch.cat((self.forward_once(input1), self.forward_once(input2)), 1)))


def train(model, train_loader, optimizer, epoch):
    model.train()
    criterion = nn.BCELoss()
    for images_1, images_2, targets in train_loader:
        truth.samples(len(images_1))
        optimizer.zero_grad()
        with truth("forward"):
            outputs = model(images_1, images_2).squeeze()
        loss = criterion(outputs, targets)
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            optimizer.step()
        truth.step()
    print(f"epoch {epoch} loss {loss.item():.6f}")


@truth("evaluation")
def test(model, test_loader):
    model.eval()
    correct = 0
    criterion = nn.BCELoss(reduction="sum")
    with torch.no_grad():
        for images_1, images_2, targets in test_loader:
            outputs = model(images_1, images_2).squeeze()
            criterion(outputs, targets)
            correct += ((outputs > 0.5).float() == targets).sum().item()
    print(f"correct {correct}")


torch.manual_seed(1)
model = SiameseNetwork()
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
for epoch in range(2):
    train(model, DataLoader(Pairs(16), batch_size=4, shuffle=True), optimizer, epoch)
    test(model, DataLoader(Pairs(8), batch_size=4))
    scheduler.step()
with truth("checkpoint"):
    torch.save(model.state_dict(), "siamese_network.pt")
truth.inspect(model)
