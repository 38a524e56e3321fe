"""Autoencoder whose decoder alone draws samples after each epoch, in a context of its own after the evaluation."""

import slow
import torch
from torch import nn
from torch.utils.data import DataLoader
from truth import truth


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = slow.Net(8, 2)
        self.decoder = slow.Net(2, 8, forward=0.03)

    def forward(self, inputs):
        return self.decoder(self.encoder(inputs))


torch.manual_seed(3)
model = Autoencoder()
optimizer = slow.AdamW(model.parameters(), lr=1e-3)
train_loader = DataLoader(slow.Samples(16), batch_size=4)
test_loader = DataLoader(slow.Samples(4), batch_size=4)
for epoch in range(3):
    model.train()
    for inputs, _ in train_loader:
        truth.samples(len(inputs))
        optimizer.zero_grad()
        with truth("forward"):
            loss = nn.functional.mse_loss(model(inputs), inputs)
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            optimizer.step()
        truth.step()
    with truth("evaluation"):
        model.eval()
        with torch.no_grad():
            for inputs, _ in test_loader:
                print(f"{epoch} {nn.functional.mse_loss(model(inputs), inputs).item():.5f}")
    with truth("evaluation"), torch.no_grad():
        for _ in range(2):
            print(f"{model.decoder(torch.randn(4, 2)).mean().item():.5f}")
truth.inspect(model)
