"""Trainings with Hugging Face's Trainer."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import stallscope
from stallscope.training.integrations.transformers import StallscopeCallback
from tests.shim.integrations.trainings import Desk, framework, main

torch: Any = framework("torch")
transformers: Any = framework("transformers")

FETCH = 0.01
EVALUATION = 0.05


class Examples(torch.utils.data.Dataset):
    def __init__(self, fetch: float = 0.0) -> None:
        self._fetch = fetch

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(self._fetch)
        return {"input_ids": torch.tensor([index, 1, 2]), "labels": torch.tensor(index % 2)}


class Model(torch.nn.Module):
    main_input_name = "input_ids"

    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self._fails_at = fails_at
        self._calls = 0

    def forward(self, input_ids: Any, labels: Any = None) -> dict[str, Any]:
        self._calls += 1
        if self._calls == self._fails_at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if not self.training:
            time.sleep(EVALUATION)
        logits = self.layer(input_ids.float())
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def trainer(folder: Path | str, callback: Any, model: Any = None, **settings: Any) -> Any:
    arguments = transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=2,
        per_device_eval_batch_size=8,
        num_train_epochs=2,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        **{"save_strategy": "no", "logging_steps": 2, **settings},
    )
    return transformers.Trainer(
        model or Model(), arguments, train_dataset=Examples(FETCH), eval_dataset=Examples(), callbacks=[callback]
    )


def accumulating(desk: Desk) -> None:
    """16 examples, 2 at a time, 2 batches a step, 2 epochs: 8 steps."""
    with tempfile.TemporaryDirectory() as folder:
        trainer(
            folder,
            StallscopeCallback("accumulating", sender=desk, interval=0.0),
            gradient_accumulation_steps=2,
            eval_strategy="steps",
            eval_steps=4,
            save_strategy="steps",
            save_steps=4,
            include_num_input_tokens_seen="all",
        ).train()


def resumed(desk: Desk) -> None:
    """Stopped after 5 of 16 steps, then on from the checkpoint at 5."""
    with tempfile.TemporaryDirectory() as folder:
        callback = StallscopeCallback("resumed", sender=desk, interval=0.0)
        settings = {"save_strategy": "steps", "save_steps": 5}
        trainer(folder, callback, **settings).train()
        trainer(folder, callback, **settings).train(resume_from_checkpoint=f"{folder}/checkpoint-5")


def out_of_memory(desk: Desk) -> None:
    """The fourth forward fails, and the program goes on."""
    callback = StallscopeCallback("out_of_memory", sender=desk, interval=0.0)
    with tempfile.TemporaryDirectory() as folder:
        try:
            trainer(folder, callback, Model(fails_at=4)).train()
        except torch.OutOfMemoryError:
            return
    raise AssertionError("the error did not reach the program")


def within_a_run(desk: Desk) -> None:
    """The user's own run, in which optimizers are listened to as well, and which goes on after the training."""
    with stallscope.Run("within_a_run", sender=desk, interval=0.0) as run, tempfile.TemporaryDirectory() as folder:
        tasks = trainer(folder, StallscopeCallback())
        tasks.add_callback(_OptimizerSteps(run))
        tasks.train()
        time.sleep(0.1)
        tasks.evaluate()


class _OptimizerSteps(transformers.TrainerCallback):
    """Marks a step where the optimizer steps, as the instrumentation of PyTorch does."""

    def __init__(self, run: stallscope.Run) -> None:
        self._run = run

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self._run.optimizer_step(parts["optimizer"])


def second_rank(desk: Desk) -> None:
    """Variables that a launcher sets for this process; the trainer itself runs alone here."""
    os.environ.update(STALLSCOPE_RANK="1", STALLSCOPE_LOCAL_RANK="1", STALLSCOPE_WORLD_SIZE="2")
    try:
        with tempfile.TemporaryDirectory() as folder:
            trainer(folder, StallscopeCallback("second_rank", sender=desk, interval=0.0), max_steps=2).train()
    finally:
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            del os.environ[f"STALLSCOPE_{name}"]


def to_the_exporter(desk: Desk) -> None:
    """Reports to where the environment says."""
    if not (address := os.environ.get("TEST_EXPORTER")):
        return
    os.environ["STALLSCOPE_ADDRESS"] = address
    with tempfile.TemporaryDirectory() as folder:
        trainer(folder, StallscopeCallback("to-the-exporter"), eval_strategy="epoch").train()


def measured(desk: Desk) -> None:
    """Six batches of 22 examples, four a step, so that each epoch's second step has two; validated and saved."""
    from tests.shim.integrations import slow_torch
    from tests.shim.integrations.truth import Truth

    truth = Truth()

    class Net(slow_torch.Net):
        def forward(self, inputs: Any, labels: Any = None) -> dict[str, Any]:
            with truth("forward"):
                logits = super().forward(inputs)
                return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    class Measuring(transformers.Trainer):
        def get_batch_samples(self, *arguments: Any) -> Any:
            with truth("data_wait"):
                return super().get_batch_samples(*arguments)

        def evaluate(self, *arguments: Any, **options: Any) -> Any:
            with truth("evaluation"):
                return super().evaluate(*arguments, **options)

        def _save_checkpoint(self, *arguments: Any, **options: Any) -> None:
            with truth("checkpoint"):
                super()._save_checkpoint(*arguments, **options)

        def _save_rng_state(self, folder: str) -> None:
            time.sleep(slow_torch.SAVE)
            super()._save_rng_state(folder)

    class Logger(transformers.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **parts: Any) -> None:
            if "loss" in logs:
                with truth("logging"):
                    time.sleep(slow_torch.LOG)

    def collate(examples: list[Any]) -> dict[str, Any]:
        return {"inputs": torch.stack([each[0] for each in examples]), "labels": torch.stack([x[1] for x in examples])}

    model = Net(truth)
    attributes = set(vars(model))
    callback = StallscopeCallback("measured", sender=desk, interval=0.0)
    with tempfile.TemporaryDirectory() as folder, slow_torch.timed_backward(truth):
        Measuring(
            model,
            transformers.TrainingArguments(
                folder,
                per_device_train_batch_size=4,
                per_device_eval_batch_size=8,
                gradient_accumulation_steps=4,
                num_train_epochs=3,
                eval_strategy="epoch",
                save_strategy="epoch",
                logging_steps=1,
                remove_unused_columns=False,
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
            ),
            data_collator=collate,
            train_dataset=slow_torch.Examples(truth),
            eval_dataset=slow_torch.Examples(truth, trains=False),
            optimizers=(slow_torch.SGD(model.parameters(), truth), None),
            callbacks=[callback, Logger()],
        ).train()
    assert set(vars(model)) - attributes <= {"_is_accelerate_prepared"}
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    truth.write(desk.path.with_suffix(".truth"))


if __name__ == "__main__":
    main(
        "transformers",
        (accumulating, resumed, out_of_memory, within_a_run, second_rank, to_the_exporter, measured),
    )
