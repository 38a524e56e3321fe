"""Transformers' own Trainer: gradient accumulation, evaluation with callbacks and checkpoints every few steps."""

import time

import slow
from torch import nn
from torch.utils.data import Dataset
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback
from transformers.utils.logging import disable_progress_bar
from truth import truth


class Config(PretrainedConfig):
    model_type = "tiny"


class Tiny(PreTrainedModel):
    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        self.net = slow.Net()
        self.post_init()

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(0, 0.1)

    def forward(self, features=None, labels=None):
        logits = self.net(features)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Examples(Dataset):
    def __init__(self, length):
        self.samples = slow.Samples(length)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        features, label = self.samples[index]
        return {"features": features, "labels": label}


class Optimizer(slow.AdamW):
    def step(self, closure=None):
        with truth("optimizer"):
            return super().step(closure)


class TimedTrainer(Trainer):
    """Keeps the truth; changes nothing."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        if not model.training:
            return super().compute_loss(model, inputs, *args, **kwargs)
        truth.samples(len(inputs["labels"]))
        with truth("forward"):
            return super().compute_loss(model, inputs, *args, **kwargs)

    def evaluate(self, *args, **kwargs):
        with truth("evaluation"):
            return super().evaluate(*args, **kwargs)

    def _save_checkpoint(self, *args, **kwargs):
        with truth("checkpoint"):
            return super()._save_checkpoint(*args, **kwargs)


class Callback(TrainerCallback):
    def on_evaluate(self, args, state, control, **kwargs):
        time.sleep(0.03)

    def on_step_end(self, args, state, control, **kwargs):
        truth.step()
        time.sleep(0.012)


disable_progress_bar()
set_seed(0)
model = Tiny(Config())
trainer = TimedTrainer(
    model,
    TrainingArguments(
        "output",
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=6,
        eval_strategy="steps",
        eval_steps=3,
        save_steps=3,
        logging_steps=2,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    ),
    train_dataset=Examples(18),
    eval_dataset=Examples(4),
    optimizers=(Optimizer(model.parameters(), lr=1e-3), None),
    callbacks=[Callback()],
)
trainer.remove_callback(PrinterCallback)
backward = trainer.accelerator.backward


def timed_backward(loss, **kwargs):
    with truth("backward"):
        backward(loss, **kwargs)


trainer.accelerator.backward = timed_backward
trainer.train()
print(trainer.state.global_step, [round(row["loss"], 5) for row in trainer.state.log_history if "loss" in row])
truth.inspect(model)
