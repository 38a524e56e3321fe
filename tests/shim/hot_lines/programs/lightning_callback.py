"""Lightning's own Trainer with a callback after each batch."""

import os
import time

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

END = time.monotonic() + float(os.environ["PROGRAM_SECONDS"])


class Spectrum(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        self.measure(module)
        if time.monotonic() > END:
            trainer.should_stop = True

    def measure(self, module):
        torch.linalg.svdvals(module.layer.weight.detach())  # planted: other


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(160, 160)

    def training_step(self, batch, index):
        return self.layer(batch[0]).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main():
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Spectrum()],
    )
    trainer.fit(Module(), DataLoader(TensorDataset(torch.ones(256, 160)), batch_size=8))


if __name__ == "__main__":
    main()
