"""An iterable dataset with persistent workers, several epochs, and a pause in the loop's body and between epochs."""

import time

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
from truth import truth

torch.manual_seed(0)
slow.slow_down(_MultiProcessingDataLoaderIter, "_get_data", 0.01)  # the wait for the worker


class Stream(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(0)
        for _ in range(40):
            yield torch.randn(8, generator=generator), torch.randint(4, (1,), generator=generator)[0]


loader = DataLoader(Stream(), batch_size=4, num_workers=1, persistent_workers=True)
model = slow.Net(forward=0.004, backward=0.006)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(3):
    with truth("data_wait"):  # the worker starts
        batches = iter(loader)
    while True:
        with truth("data_wait"):
            batch = next(batches, None)
        if batch is None:
            break
        x, y = batch
        optimizer.zero_grad()
        with truth("forward"):
            output = model(x)
        loss = F.cross_entropy(output, y)
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            optimizer.step()
        truth.step()
        time.sleep(0.03)
    time.sleep(0.1)
print(f"{loss.item():.6f}")
