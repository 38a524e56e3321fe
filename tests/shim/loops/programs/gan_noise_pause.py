"""GAN on noise drawn in the loop's body: two optimizers, .item() in each step, and a pause."""

import time

import slow
import torch
import torch.nn.functional as F
from truth import truth

torch.manual_seed(0)

generator = slow.Net(8, 8, forward=0.002, backward=0.003)
critic = slow.Net(8, 1, forward=0.002, backward=0.003)
generator_optimizer = torch.optim.Adam(generator.parameters())
critic_optimizer = torch.optim.Adam(critic.parameters())
real = torch.randn(160, 8)
for i in range(0, 160, 8):
    noise = torch.randn(8, 8)
    with truth("forward"):
        fake = generator(noise)
    with truth("forward"):
        judged_real = critic(real[i : i + 8])
    with truth("forward"):
        judged_fake = critic(fake.detach())
    loss = F.softplus(-judged_real).mean() + F.softplus(judged_fake).mean()
    critic_optimizer.zero_grad()
    with truth("backward"):
        loss.backward()
    with truth("optimizer"):
        critic_optimizer.step()
    with truth("forward"):
        judged = critic(fake)
    generator_loss = F.softplus(-judged).mean()
    generator_optimizer.zero_grad()
    with truth("backward"):
        generator_loss.backward()
    with truth("optimizer"):
        generator_optimizer.step()
    truth.step()
    total = loss.item() + generator_loss.item()
    time.sleep(0.03)
print(f"{total:.4f}")
