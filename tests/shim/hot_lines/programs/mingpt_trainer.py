"""minGPT's Trainer class: iter(loader) restarted at StopIteration, callbacks at the end of each batch."""

import collections
import os
import time

import torch
from torch.utils.data import DataLoader, Dataset

END = time.monotonic() + float(os.environ["PROGRAM_SECONDS"])


class SortDataset(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        tokens = torch.arange(12) * index % 7
        return tokens.float(), tokens.sort().values.float()


class Trainer:
    def __init__(self, model, dataset):
        self.model, self.dataset = model, dataset
        self.callbacks = collections.defaultdict(list)

    def set_callback(self, event, callback):
        self.callbacks[event] = [callback]

    def trigger_callbacks(self, event):
        for callback in self.callbacks.get(event, []):
            callback(self)

    def run(self):
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        loader = DataLoader(self.dataset, batch_size=32, shuffle=True)
        self.iter_num = 0
        data_iter = iter(loader)
        while time.monotonic() < END:
            try:
                batch = next(data_iter)
            except StopIteration:
                data_iter = iter(loader)
                batch = next(data_iter)
            x, y = batch
            self.loss = ((self.model(x) - y) ** 2).mean()
            self.model.zero_grad(set_to_none=True)
            self.loss.backward()
            optimizer.step()
            self.trigger_callbacks("on_batch_end")
            self.iter_num += 1


def sample(model, length):
    text = []
    for _ in range(length):
        text.append(chr(97 + sum(map(abs, range(len(text) * 400))) % 26))  # planted: other
    return "".join(text)


def batch_end_callback(trainer):
    if trainer.iter_num % 10 == 0:
        sample(trainer.model, 60)


def main():
    trainer = Trainer(torch.nn.Linear(12, 12), SortDataset())
    trainer.set_callback("on_batch_end", batch_end_callback)
    trainer.run()


if __name__ == "__main__":
    main()
