"""Parameters swapped by to_empty() after a start on the meta device, and by a conversion between updates by hand."""

import time

import slow
import torch
from torch import nn
from truth import truth

torch.manual_seed(3)
torch.__future__.set_swap_module_params_on_conversion(True)
samples = torch.rand(40, 8)
with torch.device("meta"):
    model = slow.Net()
with torch.no_grad():
    print(sum(parameter.numel() for parameter in model.parameters()))
model.to_empty(device="cpu")
with torch.no_grad():
    for parameter in model.parameters():
        parameter.fill_(0.1)


def get_batch(step):
    with truth("data_wait"):
        time.sleep(0.01)
        return samples[step : step + 4]


criterion = nn.MSELoss()
for step in range(8):
    inputs = get_batch(step)
    if step == 4:
        model.to(torch.float64)
        samples = samples.double()
        inputs = inputs.double()
    model.zero_grad()
    with truth("forward"):
        loss = criterion(model(inputs), inputs[:, :4])
    with truth("backward"):
        loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    truth.step()
    print(f"{step} {loss.item():.5f}")
torch.save(model.state_dict(), "model.pt")
truth.inspect(model)
