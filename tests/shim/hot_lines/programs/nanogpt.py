"""nanoGPT's loop: get_batch() cuts blocks out of a file between forward and backward, estimate_loss() uses it too."""

import os
import time

import numpy as np
import torch

block_size, batch_size, eval_interval, eval_iters, micro_steps = 64, 256, 400, 2, 2
device = "cpu"


def get_batch(split):
    data = np.memmap(f"{split}.bin", dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy((data[i : i + block_size]).astype(np.int64)) for i in ix])  # planted: data_wait
    y = x.roll(-1, 1)
    return x.to(device), y.to(device)


class GPT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = torch.nn.Embedding(256, 8)
        self.head = torch.nn.Linear(8, 16)

    def forward(self, idx, targets=None):
        logits = self.head(self.wte(idx[:, :2]))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets[:, :2].flatten() % 16)
        return logits, loss


@torch.no_grad()
def estimate_loss(model):
    out = {}
    model.eval()
    for split in ("train", "val"):
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            X, Y = get_batch(split)
            logits, loss = model(X, Y)
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


def main():
    end = time.monotonic() + float(os.environ["PROGRAM_SECONDS"])
    for split in ("train", "val"):
        (np.arange(100_000) % 256).astype(np.uint16).tofile(f"{split}.bin")
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    iter_num = 0
    X, Y = get_batch("train")
    while True:
        if iter_num % eval_interval == 0:
            estimate_loss(model)
        for _ in range(micro_steps):
            logits, loss = model(X, Y)
            loss = loss / micro_steps
            X, Y = get_batch("train")
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        iter_num += 1
        if time.monotonic() > end:
            break


if __name__ == "__main__":
    main()
