"""Trainer that calls model.train() after it has fetched the batch, and evaluates inside the loop."""

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth


class Trainer:
    def __init__(self, model, train_loader, eval_loader, steps, eval_every):
        self.model = model
        self.train_loader = train_loader
        self.eval_loader = eval_loader
        self.steps = steps
        self.eval_every = eval_every
        self.optimizer = slow.AdamW(model.parameters(), lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + step))

    def compute_loss(self, inputs):
        with truth("forward"):
            output = self.model(inputs[0])
        return F.cross_entropy(output, inputs[1])

    def training_step(self, inputs):
        self.model.train()
        loss = self.compute_loss(inputs)
        with truth("backward"):
            loss.backward()
        return loss.detach()

    def train(self):
        done = 0
        total = torch.tensor(0.0)
        while done < self.steps:
            for inputs in self.train_loader:
                truth.samples(len(inputs[0]))
                total += self.training_step(inputs)
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                with truth("optimizer"):
                    self.optimizer.step()
                self.scheduler.step()
                self.model.zero_grad()
                truth.step()
                done += 1
                if done % self.eval_every == 0:
                    self.evaluate(done)
                if done >= self.steps:
                    break
        print(f"trained {done} steps, loss {total.item() / done:.6f}")

    @truth("evaluation")
    def evaluate(self, done):
        self.model.eval()
        losses = []
        for inputs in self.eval_loader:
            with torch.no_grad():
                losses.append(F.cross_entropy(self.model(inputs[0]), inputs[1]))
        print(f"step {done} evaluation loss {torch.stack(losses).mean().item():.6f}")


torch.manual_seed(0)
model = slow.Net()
trainer = Trainer(
    model,
    DataLoader(slow.Samples(12), batch_size=2, shuffle=True),
    DataLoader(slow.Samples(6), batch_size=2),
    steps=10,
    eval_every=4,
)
trainer.train()
with truth("checkpoint"):
    torch.save(model.state_dict(), "model.pt")
truth.inspect(model)
