"""Batches of a numpy memmap, copied by a function that is slow, with a pause after each step."""

import time

import numpy as np
import slow
import torch
import torch.nn.functional as F
from truth import truth

torch.manual_seed(0)

np.memmap("tokens.bin", dtype=np.uint16, mode="w+", shape=(2000,))[:] = np.arange(2000) % 16


@truth("data_wait")
def get_batch():
    data = np.memmap("tokens.bin", dtype=np.uint16, mode="r")
    time.sleep(0.01)
    ix = torch.randint(len(data) - 9, (4,))
    x = torch.stack([torch.from_numpy((data[i : i + 8]).astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy((data[i + 8 : i + 9]).astype(np.int64)) for i in ix])
    return x.float(), y[:, 0]


model = slow.Net(8, 16, forward=0.005, backward=0.005)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(25):
    x, y = get_batch()
    with truth("forward"):
        output = model(x)
    loss = F.cross_entropy(output, y)
    with truth("backward"):
        loss.backward()
    with truth("optimizer"):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    truth.step()
    time.sleep(0.02)
print(f"{loss.item():.6f}")
