"""PyTorch's DCGAN example: two optimizers for each batch, samples and checkpoints written after each epoch."""

import slow
import torch
from torch import nn
from torch.utils.data import DataLoader
from truth import truth

torch.manual_seed(999)
netG = slow.Net(4, 8, forward=0.01, backward=0.015)
netD = slow.Net(8, 1, forward=0.01, backward=0.015)
netG.apply(lambda m: nn.init.normal_(m.weight, 0.0, 0.02) if isinstance(m, nn.Linear) else None)
criterion = nn.BCEWithLogitsLoss()
fixed_noise = torch.randn(4, 4)
optimizerD = slow.AdamW(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = slow.AdamW(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
dataloader = DataLoader(slow.Samples(10, seconds=0.008), batch_size=4, shuffle=True)
for epoch in range(2):
    for i, (real, _) in enumerate(dataloader, 0):
        truth.samples(len(real))
        netD.zero_grad()
        label = torch.ones(len(real), 1)
        with truth("forward"):
            output = netD(real)
        errD_real = criterion(output, label)
        with truth("backward"):
            errD_real.backward()
        noise = torch.randn(len(real), 4)
        with truth("forward"):
            fake = netG(noise)
        label = torch.zeros(len(real), 1)
        with truth("forward"):
            output = netD(fake.detach())
        errD_fake = criterion(output, label)
        with truth("backward"):
            errD_fake.backward()
        with truth("optimizer"):
            optimizerD.step()
        netG.zero_grad()
        with truth("forward"):
            output = netD(fake)
        errG = criterion(output, torch.ones(len(real), 1))
        with truth("backward"):
            errG.backward()
        with truth("optimizer"):
            optimizerG.step()
        truth.step()
        print(f"[{epoch}][{i}] Loss_D {(errD_real + errD_fake).item():.4f} Loss_G {errG.item():.4f}")
    with truth("evaluation"), torch.no_grad():
        fake = netG(fixed_noise)
    with truth("checkpoint"):
        torch.save(netG.state_dict(), f"netG_epoch_{epoch}.pth")
    with truth("checkpoint"):
        torch.save(netD.state_dict(), f"netD_epoch_{epoch}.pth")
truth.inspect(netG, "netG")
truth.inspect(netD, "netD")
