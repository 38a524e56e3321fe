"""Several backward passes for each step: a retained graph, then a second loss."""

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth

torch.manual_seed(0)
model = slow.Net(backward=0.015)
optimizer = slow.SGD(model.parameters(), lr=0.02)
for inputs, targets in DataLoader(slow.Samples(20), batch_size=2, shuffle=True):
    truth.samples(len(inputs))
    optimizer.zero_grad()
    with truth("forward"):
        output = model(inputs)
    loss = F.cross_entropy(output, targets)
    penalty = output.pow(2).mean()
    with truth("backward"):
        loss.backward(retain_graph=True)
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    with truth("backward"):
        torch.autograd.backward([penalty * 0.01])
    with truth("optimizer"):
        optimizer.step()
    truth.step()
    print(f"{loss.item():.6f} {norm.item():.6f}")
truth.inspect(model)
