"""timm-like: train_one_epoch, validate, moving average of the model, checkpoint saver with links."""

import os
from copy import deepcopy

import slow
import torch
from torch import nn
from torch.utils.data import DataLoader
from truth import truth


class ModelEma(nn.Module):
    def __init__(self, model, decay):
        super().__init__()
        self.module = deepcopy(model)
        self.module.eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for ema, value in zip(self.module.state_dict().values(), model.state_dict().values()):
            ema.copy_(self.decay * ema + (1.0 - self.decay) * value)


class CheckpointSaver:
    def __init__(self, model, optimizer, model_ema):
        self.model = model
        self.optimizer = optimizer
        self.model_ema = model_ema
        self.best = None

    @truth("checkpoint")
    def save_checkpoint(self, epoch, metric):
        state = {
            "epoch": epoch,
            "arch": type(self.model).__name__,
            "state_dict": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "state_dict_ema": self.model_ema.module.state_dict(),
            "metric": metric,
        }
        torch.save(state, "tmp.pth.tar")
        os.replace("tmp.pth.tar", "last.pth.tar")
        if self.best is None or metric > self.best:
            self.best = metric
            if os.path.exists("model_best.pth.tar"):
                os.unlink("model_best.pth.tar")
            os.link("last.pth.tar", "model_best.pth.tar")


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, model_ema):
    model.train()
    accum_steps = 2
    last_batch_idx = len(loader) - 1
    last_accum_steps = len(loader) % accum_steps
    last_batch_idx_to_accum = len(loader) - last_accum_steps
    optimizer.zero_grad()
    for batch_idx, (input, target) in enumerate(loader):
        truth.samples(len(input))
        last_batch = batch_idx == last_batch_idx
        need_update = last_batch or (batch_idx + 1) % accum_steps == 0
        if batch_idx >= last_batch_idx_to_accum:
            accum_steps = last_accum_steps
        with truth("forward"):
            output = model(input)
        loss = loss_fn(output, target) / accum_steps
        with truth("backward"):
            loss.backward(create_graph=False)
        if not need_update:
            continue
        with truth("optimizer"):
            optimizer.step()
        truth.step()
        optimizer.zero_grad()
        model_ema.update(model)
    print(f"epoch {epoch} loss {loss.item():.6f}")


@truth("evaluation")
def validate(model, loader, loss_fn):
    model.eval()
    losses = []
    with torch.no_grad():
        for input, target in loader:
            losses.append(loss_fn(model(input), target).item())
    return -sum(losses) / len(losses)


torch.manual_seed(42)
model = slow.Net()
optimizer = slow.AdamW(model.parameters(), lr=1e-2)
model_ema = ModelEma(model, 0.9)
saver = CheckpointSaver(model, optimizer, model_ema)
train_loader = DataLoader(slow.Samples(15), batch_size=2, shuffle=True, drop_last=True)
eval_loader = DataLoader(slow.Samples(4), batch_size=2)
for epoch in range(2):
    train_one_epoch(epoch, model, train_loader, optimizer, nn.CrossEntropyLoss(), model_ema)
    validate(model, eval_loader, nn.CrossEntropyLoss())
    saver.save_checkpoint(epoch, validate(model_ema.module, eval_loader, nn.CrossEntropyLoss()))
truth.inspect(model)
truth.inspect(model_ema, "model_ema")
