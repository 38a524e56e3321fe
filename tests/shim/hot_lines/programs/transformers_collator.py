"""Transformers' own Trainer with a data collator that masks token by token."""

import os
import random
import time

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

END = time.monotonic() + float(os.environ["PROGRAM_SECONDS"])


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(128, 2)

    def forward(self, tokens, labels=None):
        return {"loss": self.layer(tokens.float()).pow(2).mean()}


class Collator:
    def __call__(self, features):
        tokens = [list(feature["tokens"]) for feature in features]
        for row in tokens:
            for position, _ in enumerate(row):
                row[position] = 0 if random.gauss(0.0, 1.0) > 1.0 else row[position]  # planted: data_wait
        return {"tokens": torch.stack([torch.tensor(row) for row in tokens]), "labels": torch.zeros(len(tokens))}


class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = time.monotonic() > END


def main():
    arguments = TrainingArguments(
        output_dir="out",
        num_train_epochs=10_000,
        per_device_train_batch_size=256,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    data = [{"tokens": range(128)} for _ in range(2048)]
    Trainer(Model(), arguments, train_dataset=data, data_collator=Collator(), callbacks=[Stop()]).train()


if __name__ == "__main__":
    main()
