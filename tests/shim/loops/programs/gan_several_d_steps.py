"""WGAN: the critic steps for each batch, the generator for each third."""

import slow
import torch
from torch.utils.data import DataLoader
from truth import truth

torch.manual_seed(0)
generator = slow.Net(4, 8, forward=0.01, backward=0.02)
critic = slow.Net(8, 1, forward=0.01, backward=0.02)
optimizer_g = slow.SGD(generator.parameters(), lr=0.01)
optimizer_d = slow.SGD(critic.parameters(), lr=0.01)
loader = DataLoader(slow.Samples(36, seconds=0.005), batch_size=4, shuffle=True, drop_last=True)
batches = iter(loader)
done = 0
while done < 9:
    for _ in range(3):
        real, _ = next(batches)
        truth.samples(len(real))
        noise = torch.randn(4, 4)
        with torch.no_grad(), truth("forward"):
            fake = generator(noise)
        optimizer_d.zero_grad()
        with truth("forward"):
            scores = critic(real)
        with truth("forward"):
            fake_scores = critic(fake)
        loss_d = fake_scores.mean() - scores.mean()
        with truth("backward"):
            loss_d.backward()
        with truth("optimizer"):
            optimizer_d.step()
        truth.step()
        for p in critic.parameters():
            p.data.clamp_(-0.01, 0.01)
        done += 1
    optimizer_g.zero_grad()
    with truth("forward"):
        fake = generator(torch.randn(4, 4))
    with truth("forward"):
        scores = critic(fake)
    with truth("backward"):
        (-scores.mean()).backward()
    with truth("optimizer"):
        optimizer_g.step()
    print(f"{loss_d.item():.6f}")
truth.inspect(generator, "generator")
truth.inspect(critic, "critic")
