"""Loader in a tqdm bar, written to from the loop; the loss is logged with item()."""

import time

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from tqdm import tqdm
from truth import truth

torch.manual_seed(0)
model = slow.Net()
optimizer = slow.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(slow.Samples(10), batch_size=2, shuffle=True)
for epoch in range(2):
    with tqdm(loader, desc=f"epoch {epoch}", disable=True) as bar:
        for inputs, targets in bar:
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
            bar.set_postfix(loss=loss.item())
            time.sleep(0.008)
    tqdm.write(f"{loss.item():.6f}")
truth.inspect(model)
