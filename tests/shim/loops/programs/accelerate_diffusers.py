"""diffusers-like text-to-image with Accelerate: frozen encoder, accumulate(), moving average, save_state()."""

import time

import slow
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset
from truth import truth


class Captions(Dataset):
    def __len__(self):
        return 24

    @truth("data_wait")
    def __getitem__(self, index):
        time.sleep(0.008)
        return {"pixel_values": torch.full((8,), index / 24), "input_ids": torch.tensor([index % 10, index % 7])}


def collate_fn(examples):
    return {name: torch.stack([example[name] for example in examples]) for name in examples[0]}


class TextEncoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 8)

    def forward(self, ids):
        return slow.through(self.embedding(ids).mean(1), 0.008, 0.0)


class UNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(17, 8)

    def forward(self, noisy, timesteps, encoded):
        return slow.through(self.body(torch.cat([noisy, timesteps[:, None] / 10, encoded], 1)), 0.015, 0.025)


set_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
text_encoder = TextEncoder()
text_encoder.requires_grad_(False)
unet = UNet()
ema_unet = AveragedModel(unet, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = slow.AdamW(unet.parameters(), lr=1e-3)
lr_scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
train_dataloader = DataLoader(Captions(), batch_size=2, shuffle=True, collate_fn=collate_fn)
unet, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(unet, optimizer, train_dataloader, lr_scheduler)
global_step = 0
for epoch in range(1):
    unet.train()
    train_loss = 0.0
    for batch in train_dataloader:
        truth.samples(len(batch["pixel_values"]))
        with accelerator.accumulate(unet):
            noise = torch.randn_like(batch["pixel_values"])
            timesteps = torch.randint(0, 10, (len(noise),))
            noisy = batch["pixel_values"] + timesteps[:, None] * noise
            with truth("forward"):
                encoded = text_encoder(batch["input_ids"])
            with truth("forward"):
                predicted = unet(noisy, timesteps, encoded)
            loss = F.mse_loss(predicted.float(), noise.float(), reduction="mean")
            avg_loss = accelerator.gather(loss.repeat(2)).mean()
            train_loss += avg_loss.item() / 2
            with truth("backward"):
                accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(unet.parameters(), 1.0)
            with truth("optimizer"):
                optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            truth.step()
            ema_unet.update_parameters(unet)
            global_step += 1
            print(f"step {global_step} loss {train_loss:.6f}")
            train_loss = 0.0
            if global_step % 3 == 0:
                with truth("checkpoint"):
                    accelerator.save_state(f"checkpoint-{global_step}")
accelerator.end_training()
truth.inspect(accelerator.unwrap_model(unet))
