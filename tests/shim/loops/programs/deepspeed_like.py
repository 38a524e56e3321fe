"""DeepSpeed-like engine: engine(x), engine.backward(loss), engine.step() with accumulation inside the engine."""

import os

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth


class Engine(torch.nn.Module):
    def __init__(self, model, config):
        super().__init__()
        self.module = model
        self.optimizer = slow.AdamW(model.parameters(), lr=config["lr"])
        self.accumulation = config["gradient_accumulation_steps"]
        self.micro_steps = 0
        self.global_steps = 0

    def forward(self, *inputs, **options):
        return self.module(*inputs, **options)

    def backward(self, loss):
        (loss / self.accumulation).backward()
        return loss

    def is_gradient_accumulation_boundary(self):
        return (self.micro_steps + 1) % self.accumulation == 0

    def step(self):
        if self.is_gradient_accumulation_boundary():
            torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
            with truth("optimizer"):
                self.optimizer.step()
            self.optimizer.zero_grad()
            truth.step()
            self.global_steps += 1
        self.micro_steps += 1

    @truth("checkpoint")
    def save_checkpoint(self, folder, tag):
        os.makedirs(f"{folder}/{tag}", exist_ok=True)
        torch.save({"module": self.module.state_dict()}, f"{folder}/{tag}/mp_rank_00_model_states.pt")
        torch.save({"optimizer": self.optimizer.state_dict()}, f"{folder}/{tag}/zero_pp_rank_0_optim_states.pt")
        with open(f"{folder}/latest", "w") as file:
            file.write(tag)


torch.manual_seed(0)
engine = Engine(slow.Net(), {"lr": 1e-2, "gradient_accumulation_steps": 2})
engine.train()
for step, (inputs, targets) in enumerate(DataLoader(slow.Samples(24), batch_size=2)):
    truth.samples(len(inputs))
    with truth("forward"):
        output = engine(inputs)
    loss = F.cross_entropy(output, targets)
    with truth("backward"):
        engine.backward(loss)
    engine.step()
    if step % 4 == 3:
        print(f"step {engine.global_steps} loss {loss.item():.6f}")
engine.save_checkpoint("checkpoints", f"global_step{engine.global_steps}")
truth.inspect(engine)
