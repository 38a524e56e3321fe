"""minGPT's Trainer class: iter(loader) restarted at StopIteration, callbacks at the end of each batch."""

import time
from collections import defaultdict

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, RandomSampler
from truth import truth


class Trainer:
    def __init__(self, model, dataset, max_iters):
        self.model = model
        self.dataset = dataset
        self.max_iters = max_iters
        self.optimizer = None
        self.callbacks = defaultdict(list)
        self.iter_num = 0
        self.iter_time = 0.0

    def add_callback(self, event, callback):
        self.callbacks[event].append(callback)

    def trigger_callbacks(self, event):
        for callback in self.callbacks.get(event, []):
            callback(self)

    def run(self):
        model = self.model
        self.optimizer = slow.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
        loader = DataLoader(
            self.dataset,
            sampler=RandomSampler(self.dataset, replacement=True, num_samples=12),
            shuffle=False,
            batch_size=2,
            num_workers=0,
        )
        model.train()
        self.iter_num = 0
        data_iter = iter(loader)
        while True:
            try:
                batch = next(data_iter)
            except StopIteration:
                data_iter = iter(loader)
                batch = next(data_iter)
            x, y = batch
            truth.samples(len(x))
            with truth("forward"):
                logits = model(x)
            self.loss = F.cross_entropy(logits, y)
            model.zero_grad(set_to_none=True)
            with truth("backward"):
                self.loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with truth("optimizer"):
                self.optimizer.step()
            truth.step()
            self.trigger_callbacks("on_batch_end")
            self.iter_num += 1
            if self.iter_num >= self.max_iters:
                break


def batch_end(trainer):
    time.sleep(0.012)
    if trainer.iter_num % 3 == 0:
        print(f"iter {trainer.iter_num} loss {trainer.loss.item():.5f}")


torch.manual_seed(3407)
model = slow.Net()
trainer = Trainer(model, slow.Samples(20), max_iters=10)
trainer.add_callback("on_batch_end", batch_end)
trainer.run()
truth.inspect(model)
