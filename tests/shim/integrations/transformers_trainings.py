"""Trainings with Hugging Face's Trainer."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import stallscope
from stallscope.integrations.transformers import StallscopeCallback
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
    """What a launcher says about this process; the trainer itself is alone here."""
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


if __name__ == "__main__":
    main(
        "transformers",
        (accumulating, resumed, out_of_memory, within_a_run, second_rank, to_the_exporter),
    )
