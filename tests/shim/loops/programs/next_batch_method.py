"""Loop without a DataLoader: train_loader.next_batch(), gradient accumulation, evaluation from the same class."""

import time

import slow
import torch
import torch.nn.functional as F
from truth import truth


class TokenLoader:
    def __init__(self, tokens, B, T):
        self.tokens = tokens
        self.B = B
        self.T = T
        self.position = 0

    @truth("data_wait")
    def next_batch(self):
        time.sleep(0.015)
        size = self.B * self.T
        piece = self.tokens[self.position : self.position + size + 1]
        self.position += size
        if self.position + size + 1 > len(self.tokens):
            self.position = 0
        return piece[:-1].view(self.B, self.T), piece[1:].view(self.B, self.T)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(32, 8)
        self.head = torch.nn.Linear(8, 32)

    def forward(self, x, y):
        logits = self.head(slow.through(self.embedding(x)))
        return F.cross_entropy(logits.view(-1, 32), y.reshape(-1))


torch.manual_seed(42)
train_loader = TokenLoader(torch.randint(32, (1000,)), B=4, T=16)
val_loader = TokenLoader(torch.randint(32, (300,)), B=4, T=16)
model = Model()
optimizer = slow.AdamW(model.parameters(), lr=3e-4)
accumulation = 2
for step in range(6):
    if step % 3 == 0:
        with truth("evaluation"):
            model.eval()
            with torch.no_grad():
                total = 0.0
                for _ in range(3):
                    x, y = val_loader.next_batch()
                    total += model(x, y).item() / 3
            model.train()
        print(f"validation loss {total:.4f}")
    optimizer.zero_grad()
    for _ in range(accumulation):
        x, y = train_loader.next_batch()
        with truth("forward"):
            loss = model(x, y)
        with truth("backward"):
            (loss / accumulation).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with truth("optimizer"):
        optimizer.step()
    truth.step()
    print(f"step {step} loss {loss.item():.4f} norm {norm:.4f}")
truth.inspect(model)
