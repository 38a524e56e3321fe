"""Loader with two worker processes and prefetching, restarted for each epoch."""

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
from truth import truth


class Images(Dataset):
    def __len__(self):
        return 22

    def __getitem__(self, index):
        return torch.full((8,), index / 22), index % 4


def main():
    slow.slow_down(_MultiProcessingDataLoaderIter, "_get_data", 0.08)  # the wait for a worker
    torch.manual_seed(0)
    model = slow.Net(forward=0.008, backward=0.012)
    optimizer = slow.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(Images(), batch_size=4, num_workers=2, shuffle=True)
    for epoch in range(2):
        # The program times its loader as PyTorch's ImageNet example does; the workers run elsewhere.
        with truth("data_wait"):
            batches = iter(loader)
        while True:
            with truth("data_wait"):
                batch = next(batches, None)
            if batch is None:
                break
            inputs, targets = batch
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
        print(epoch, f"{loss.item():.6f}")
    truth.inspect(model)


if __name__ == "__main__":
    main()
