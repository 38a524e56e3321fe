"""Lightning's own Trainer: automatic optimization, sanity check, validation and checkpoint after each epoch."""

import logging
import time
import warnings

import slow
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader
from truth import truth

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Optimizer(slow.AdamW):
    def step(self, closure=None):
        with truth("optimizer"):
            return super().step(closure)


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = slow.Net()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, _):
        x, y = batch
        truth.samples(len(x))
        with truth("forward"):
            output = self(x)
        loss = F.cross_entropy(output, y)
        self.log("loss", loss)
        return loss

    def backward(self, loss, *args, **kwargs):
        with truth("backward"):
            super().backward(loss, *args, **kwargs)

    def validation_step(self, batch, _):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y))

    def configure_optimizers(self):
        return Optimizer(self.parameters(), lr=1e-2)


class Slow(Callback):
    """A callback that takes a while, and keeps the truth of evaluation."""

    def on_train_batch_end(self, *args):
        truth.step()
        time.sleep(0.012)

    def on_validation_start(self, *args):
        self.evaluation = truth("evaluation")
        self.evaluation.__enter__()

    def on_validation_end(self, *args):
        self.evaluation.__exit__(None, None, None)


class Checkpoint(ModelCheckpoint):
    def _save_checkpoint(self, trainer, filepath):
        with truth("checkpoint"):
            super()._save_checkpoint(trainer, filepath)


seed_everything(0, verbose=False)
model = Classifier()
trainer = Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    num_sanity_val_steps=1,
    callbacks=[Slow(), Checkpoint("checkpoints", filename="{epoch}", save_top_k=-1)],
)
trainer.fit(
    model,
    DataLoader(slow.Samples(11), batch_size=2, shuffle=True),
    DataLoader(slow.Samples(6), batch_size=3),
)
print({name: round(value.item(), 6) for name, value in trainer.callback_metrics.items()})
truth.inspect(model.net)
