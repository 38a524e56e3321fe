"""Lightning-like trainer: hooks, optimizer.step(closure), sanity check, validation every few batches."""

import time

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = slow.Net()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, _):
        x, y = batch
        with truth("forward"):
            output = self(x)
        return F.cross_entropy(output, y)

    def validation_step(self, batch, _):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def configure_optimizers(self):
        return slow.AdamW(self.parameters(), lr=1e-2)

    def on_train_batch_end(self, loss):
        time.sleep(0.006)


class Callback:
    def on_validation_end(self, losses):
        print(f"validation {torch.stack(losses).mean().item():.6f}")

    def on_train_batch_end(self, number, loss):
        time.sleep(0.006)
        if number % 4 == 0:
            print(f"batch {number} loss {loss.item():.6f}")


class Trainer:
    def __init__(self, epochs, every, callbacks):
        self.epochs = epochs
        self.every = every
        self.callbacks = callbacks

    def call(self, hook, *args):
        for callback in self.callbacks:
            if hasattr(callback, hook):
                getattr(callback, hook)(*args)

    def fit(self, module, train_loader, val_loader):
        optimizer = module.configure_optimizers()
        self.validate(module, val_loader, limit=1)
        for _ in range(self.epochs):
            module.train()
            iterator = iter(train_loader)
            for number, batch in enumerate(iterator):
                truth.samples(len(batch[0]))
                loss = self.optimizer_step(module, optimizer, batch, number)
                module.on_train_batch_end(loss)
                self.call("on_train_batch_end", number, loss)
                if (number + 1) % self.every == 0:
                    self.validate(module, val_loader)

    def optimizer_step(self, module, optimizer, batch, number):
        def closure():
            loss = module.training_step(batch, number)
            optimizer.zero_grad()
            with truth("backward"):
                loss.backward()
            return loss

        with truth("optimizer"):
            loss = optimizer.step(closure=closure)
        truth.step()
        return loss.detach()

    @truth("evaluation")
    def validate(self, module, loader, limit=None):
        module.eval()
        with torch.inference_mode():
            losses = []
            for number, batch in enumerate(loader):
                if limit is not None and number >= limit:
                    break
                losses.append(module.validation_step(batch, number))
            self.call("on_validation_end", losses)
        module.train()


torch.manual_seed(0)
module = Classifier()
trainer = Trainer(2, 3, [Callback()])
trainer.fit(module, DataLoader(slow.Samples(10), batch_size=2), DataLoader(slow.Samples(4), batch_size=2))
with truth("checkpoint"):
    torch.save({"state_dict": module.state_dict(), "epoch": 2}, "epoch=2.ckpt")
truth.inspect(module)
