"""torch.distributed.checkpoint in one process: save() in the loop, async_save(), load() before the loop."""

import os
import time

import slow
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.utils.data import DataLoader
from truth import truth


class AppState:
    """State that takes a while to collect and to put back."""

    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer

    def state_dict(self):
        time.sleep(0.04)
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        time.sleep(0.04)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
torch.manual_seed(0)
model = slow.Net()
optimizer = slow.AdamW(model.parameters(), lr=1e-2)
app = AppState(model, optimizer)
with truth("checkpoint"):
    dcp.save({"app": app}, checkpoint_id="start")
with truth("restore"):
    dcp.load({"app": app}, checkpoint_id="start")
pending = None
for step, (inputs, targets) in enumerate(DataLoader(slow.Samples(16), batch_size=2), start=1):
    truth.samples(len(inputs))
    with truth("forward"):
        output = model(inputs)
    loss = F.cross_entropy(output, targets)
    optimizer.zero_grad()
    with truth("backward"):
        loss.backward()
    with truth("optimizer"):
        optimizer.step()
    truth.step()
    if step == 4:
        with truth("checkpoint"):
            dcp.save({"app": app}, checkpoint_id=f"step{step}")
    if step == 6:
        with truth("checkpoint"):  # the copy; the writing goes on in a thread
            pending = dcp.async_save({"app": app}, checkpoint_id=f"step{step}")
with truth("checkpoint"):
    pending.result()
print(sorted(os.listdir()), f"{loss.item():.6f}")
truth.inspect(model)
dist.destroy_process_group()
