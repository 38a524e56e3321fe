"""safetensors: save_file() between steps, load_file() and save_model() around them."""

import safetensors
import slow
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file, save_model
from torch.utils.data import DataLoader
from truth import truth

slow.slow_down(safetensors.torch, "serialize_file", 0.06)
slow.slow_down(safetensors.torch, "safe_open", 0.06)
torch.manual_seed(0)
model = slow.Net()
optimizer = slow.SGD(model.parameters(), lr=0.05)
with truth("checkpoint"):
    save_model(model, "start.safetensors")
with truth("restore"):
    model.load_state_dict(load_file("start.safetensors"))
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
    if step % 2 == 0:
        with truth("checkpoint"):
            save_file(model.state_dict(), f"step{step}.safetensors", metadata={"step": str(step)})
with truth("restore"):
    model.load_state_dict(load_file("step8.safetensors"))
print(f"{loss.item():.6f}")
truth.inspect(model)
