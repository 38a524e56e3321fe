"""GradScaler on the CPU, with two steps skipped because of gradients that are not finite."""

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth

torch.manual_seed(0)
model = slow.Net()
optimizer = slow.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for number, (inputs, targets) in enumerate(DataLoader(slow.Samples(20), batch_size=2)):
    truth.samples(len(inputs))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16), truth("forward"):
        output = model(inputs)
    loss = F.cross_entropy(output.float(), targets)
    if number in (3, 6):
        loss = loss * float("inf")
    with truth("backward"):
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    before = scaler.get_scale()
    with truth("optimizer"):
        scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= before:
        truth.step()
    print(number, scaler.get_scale())
truth.inspect(model)
