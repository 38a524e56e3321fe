"""MoCo: a momentum encoder updated and called under no_grad inside the step, a queue of keys."""

import copy

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from truth import truth


class MoCo(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder_q = slow.Net(8, 4)
        self.encoder_k = copy.deepcopy(self.encoder_q)
        self.encoder_k.seconds = (0.01, 0.0)
        for p in self.encoder_k.parameters():
            p.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(4, 16), dim=0))

    @torch.no_grad()
    def update_key_encoder(self):
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.data = k.data * 0.99 + q.data * 0.01

    def forward(self, im_q, im_k):
        q = F.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            self.update_key_encoder()
            k = F.normalize(self.encoder_k(im_k), dim=1)
        positive = (q * k).sum(1, keepdim=True)
        negative = q @ self.queue.clone().detach()
        self.queue[:, : len(k)] = k.T
        return torch.cat([positive, negative], 1) / 0.07


torch.manual_seed(0)
model = MoCo()
optimizer = slow.SGD(model.encoder_q.parameters(), lr=0.03)
for epoch in range(2):
    for images, _ in DataLoader(slow.Samples(10), batch_size=2, shuffle=True):
        truth.samples(len(images))
        with truth("forward"):
            logits = model(images, images + 0.1 * torch.randn_like(images))
        loss = F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))
        optimizer.zero_grad()
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            optimizer.step()
        truth.step()
    print(epoch, f"{loss.item():.6f}")
with truth("checkpoint"):
    torch.save(model.state_dict(), "moco.pt")
truth.inspect(model)
