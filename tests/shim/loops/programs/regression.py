"""PyTorch's regression example: count(), a function for the batch, an update by hand with param.data.add_()."""

import time
from itertools import count

import slow
import torch
import torch.nn.functional as F
from truth import truth

POLY_DEGREE = 4
torch.manual_seed(0)
W_target = torch.randn(POLY_DEGREE, 1) * 5
b_target = torch.randn(1) * 5


class Linear(torch.nn.Linear):
    def forward(self, x):
        return slow.through(super().forward(x), 0.01, 0.02)


@truth("data_wait")
def get_batch(batch_size=32):
    time.sleep(0.015)
    random = torch.randn(batch_size)
    x = torch.cat([random.unsqueeze(1) ** i for i in range(1, POLY_DEGREE + 1)], 1)
    return x, x.mm(W_target) + b_target.item()


fc = Linear(W_target.size(0), 1)
for batch_idx in count(1):
    batch_x, batch_y = get_batch()
    fc.zero_grad()
    with truth("forward"):
        predicted = fc(batch_x)
    output = F.smooth_l1_loss(predicted, batch_y)
    loss = output.item()
    with truth("backward"):
        output.backward()
    for param in fc.parameters():
        param.data.add_(-0.1 * param.grad)
    truth.step()
    if loss < 1e-3 or batch_idx == 14:
        break
print(f"loss {loss:.6f} after {batch_idx} batches")
truth.inspect(fc)
