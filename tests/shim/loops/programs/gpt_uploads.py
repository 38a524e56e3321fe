"""Small GPT: accumulation, a checkpoint that is uploaded, and evaluations, with short steps."""

import time

import slow
import torch
import torch.nn.functional as F
from truth import truth

torch.manual_seed(0)

tokens = torch.randint(16, (4000,))
model = slow.Net(16, 16, forward=0.003, backward=0.005)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


@truth("data_wait")
def get_batch():
    starts = torch.randint(len(tokens) - 17, (4,)).tolist()
    x = torch.stack([tokens[start : start + 16] for start in starts]).float()
    return x, torch.stack([tokens[start + 16] for start in starts])


@truth("evaluation")
@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = [F.cross_entropy(model(x), y).item() for x, y in (get_batch() for _ in range(10))]
    model.train()
    return sum(losses) / len(losses)


for step in range(1, 41):
    for _ in range(2):
        x, y = get_batch()
        with truth("forward"):
            output = model(x)
        loss = F.cross_entropy(output, y) / 2
        with truth("backward"):
            loss.backward()
    with truth("optimizer"):
        optimizer.step()
    optimizer.zero_grad()
    truth.step()
    if step % 30 == 0:
        print(f"{estimate_loss():.6f}")
    if step % 20 == 0:
        with truth("checkpoint"):
            torch.save(model.state_dict(), "model.pt")
            time.sleep(0.4)  # upload
