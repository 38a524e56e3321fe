"""Checkpoints inside and between steps, and a restore before the loop and inside it."""

import time

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth


class SlowPickle:
    """State that takes a while to write and to read."""

    def __init__(self, seconds=0.04):
        self.seconds = seconds

    def __getstate__(self):
        time.sleep(self.seconds)
        return {"seconds": self.seconds}

    def __setstate__(self, state):
        time.sleep(state["seconds"])
        self.seconds = state["seconds"]


torch.manual_seed(0)
model = slow.Net()
optimizer = slow.SGD(model.parameters(), lr=0.05, momentum=0.9)
with truth("checkpoint"):
    torch.save({"model": model.state_dict(), "extra": SlowPickle(0.08)}, "initial.pt")
with truth("restore"):
    state = torch.load("initial.pt", weights_only=False)
    model.load_state_dict(state["model"])
for step, (inputs, targets) in enumerate(DataLoader(slow.Samples(16), batch_size=2), start=1):
    truth.samples(len(inputs))
    with truth("forward"):
        output = model(inputs)
    loss = F.cross_entropy(output, targets)
    optimizer.zero_grad()
    with truth("backward"):
        loss.backward()
    if step == 3:  # inside a step
        with truth("checkpoint"):
            torch.save({"model": model.state_dict(), "extra": SlowPickle()}, f"step{step}.pt")
    with truth("optimizer"):
        optimizer.step()
    truth.step()
    if step % 2 == 0:
        with truth("checkpoint"):
            torch.save({"optimizer": optimizer.state_dict(), "extra": SlowPickle()}, f"step{step}.pt")
    if step == 5:  # a bad batch: go back
        with truth("restore"):
            model.load_state_dict(torch.load("step3.pt", weights_only=False)["model"])
print(f"{loss.item():.6f}")
truth.inspect(model)
