"""Resumed training: model, optimizer, scheduler and random state restored before the loop, from a step in an epoch."""

import random
import time

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth


class Tokenizer:
    """Something in the checkpoint that takes a while to load."""

    def __init__(self):
        self.words = ["a", "b"]

    def __setstate__(self, state):
        time.sleep(0.12)
        self.__dict__.update(state)


def make():
    random.seed(0)
    torch.manual_seed(0)
    model = slow.Net()
    optimizer = slow.AdamW(model.parameters(), lr=1e-2)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2)


def save(path, model, optimizer, scheduler, epoch):
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "rng": torch.get_rng_state(),
            "python": random.getstate(),
            "tokenizer": Tokenizer(),
            "epoch": epoch,
        },
        path,
    )


with truth("checkpoint"):
    save("last.pt", *make(), epoch=3)
model, optimizer, scheduler = make()
with truth("restore"):
    state = torch.load("last.pt", weights_only=False)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    torch.set_rng_state(state["rng"])
loader = DataLoader(slow.Samples(12), batch_size=3, shuffle=True)
for epoch in range(state["epoch"], 5):
    for inputs, targets in loader:
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
    scheduler.step()
    with truth("checkpoint"):
        save("last.pt", model, optimizer, scheduler, epoch + 1)
    print(epoch, f"{loss.item():.6f}")
truth.inspect(model)
