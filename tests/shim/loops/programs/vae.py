"""PyTorch's VAE example: a model that returns several tensors, test() and drawn samples after each epoch."""

import slow
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from truth import truth


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 6)
        self.fc21 = nn.Linear(6, 2)
        self.fc22 = nn.Linear(6, 2)
        self.fc3 = nn.Linear(2, 8)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        return mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)

    def decode(self, z):
        return torch.sigmoid(slow.through(self.fc3(z)))

    def forward(self, x):
        mu, logvar = self.encode(x)
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    bce = F.binary_cross_entropy(recon_x, torch.sigmoid(x), reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


torch.manual_seed(1)
model = VAE()
optimizer = slow.AdamW(model.parameters(), lr=1e-3)
train_loader = DataLoader(slow.Samples(14), batch_size=4, shuffle=True)
test_loader = DataLoader(slow.Samples(4), batch_size=4)


def train(epoch):
    model.train()
    train_loss = 0.0
    for data, _ in train_loader:
        truth.samples(len(data))
        optimizer.zero_grad()
        with truth("forward"):
            recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar)
        with truth("backward"):
            loss.backward()
        train_loss += loss.item()
        with truth("optimizer"):
            optimizer.step()
        truth.step()
    print(f"epoch {epoch} average loss {train_loss / len(train_loader.dataset):.4f}")


@truth("evaluation")
def test():
    model.eval()
    test_loss = 0.0
    with torch.no_grad():
        for data, _ in test_loader:
            recon_batch, mu, logvar = model(data)
            test_loss += loss_function(recon_batch, data, mu, logvar).item()
    print(f"test loss {test_loss / len(test_loader.dataset):.4f}")


for epoch in range(1, 4):
    train(epoch)
    test()
    with torch.no_grad():
        # Only the decoder is called, and by a method: its few milliseconds are in no phase for sure.
        with truth("evaluation or other"):
            sample = model.decode(torch.randn(4, 2))
        with truth("checkpoint"):
            torch.save(sample, f"sample_{epoch}.pt")
truth.inspect(model)
