"""nanoGPT: get_batch() between forward and backward, estimate_loss() without a loader, micro-steps, checkpoints."""

import time
from contextlib import nullcontext

import slow
import torch
import torch.nn.functional as F
from truth import truth

batch_size = 4
block_size = 8
gradient_accumulation_steps = 2
max_iters = 6
eval_interval = 3
eval_iters = 2
grad_clip = 1.0

torch.manual_seed(1337)
ctx = nullcontext()
data = {"train": torch.randint(16, (400,)), "val": torch.randint(16, (100,))}


@truth("data_wait")
def get_batch(split):
    time.sleep(0.012)
    ix = torch.randint(len(data[split]) - block_size, (batch_size,))
    x = torch.stack([data[split][i : i + block_size] for i in ix])
    y = torch.stack([data[split][i + 1 : i + 1 + block_size] for i in ix])
    return x, y


class GPT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = torch.nn.Embedding(16, 8)
        self.lm_head = torch.nn.Linear(8, 16, bias=False)

    def forward(self, idx, targets=None):
        logits = self.lm_head(slow.through(self.wte(idx)))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss

    def configure_optimizers(self):
        params = {name: p for name, p in self.named_parameters() if p.requires_grad}
        decay = [p for p in params.values() if p.dim() >= 2]
        return slow.AdamW([{"params": decay, "weight_decay": 0.1}], lr=1e-3)


model = GPT()
scaler = torch.amp.GradScaler("cpu", enabled=False)
optimizer = model.configure_optimizers()


@truth("evaluation")
@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            X, Y = get_batch(split)
            with ctx:
                _, loss = model(X, Y)
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


X, Y = get_batch("train")
iter_num = 0
best_val_loss = 1e9
while True:
    lr = 1e-3 / (1 + iter_num)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        if losses["val"] < best_val_loss:
            best_val_loss = losses["val"]
            if iter_num > 0:
                with truth("checkpoint"):
                    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "ckpt.pt")
    for _ in range(gradient_accumulation_steps):
        with ctx:
            with truth("forward"):
                _, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        X, Y = get_batch("train")
        with truth("backward"):
            scaler.scale(loss).backward()
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    with truth("optimizer"):
        scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    truth.step()
    print(f"iter {iter_num}: loss {loss.item():.4f}")
    iter_num += 1
    if iter_num > max_iters:
        break
truth.inspect(model)
