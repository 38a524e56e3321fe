"""Trainings with PyTorch Lightning."""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from typing import Any

from tests.shim.integrations.trainings import Desk, framework, main

torch: Any = framework("torch")
lightning: Any = framework(os.environ.get("TEST_LIGHTNING", "lightning.pytorch"))

from stallscope.training.integrations.lightning import StallscopeCallback  # noqa: E402 - of the package imported above

FETCH = 0.005
FORWARD = 0.01
VALIDATION = 0.02

warnings.filterwarnings("ignore")


class Examples(torch.utils.data.Dataset):
    def __init__(self, fetch: float = 0.0) -> None:
        self._fetch = fetch

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        time.sleep(self._fetch)
        return torch.ones(3) * index, torch.tensor(index % 2)


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def loss(self, batch: Any) -> Any:
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        time.sleep(FORWARD)
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        time.sleep(VALIDATION)
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class TwoOptimizers(Model):
    """Steps both of its optimizers with every batch, as GANs do."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]


class Failing(Model):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 3:
            raise ArithmeticError("nothing adds up")
        return super().training_step(batch, batch_idx)


def loader(fetch: float = 0.0) -> Any:
    return torch.utils.data.DataLoader(Examples(fetch), batch_size=2)


def trainer(folder: str, callback: Any, **settings: Any) -> Any:
    return lightning.Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{
            "callbacks": [callback],
            "logger": False,
            "enable_checkpointing": False,
            "max_epochs": 2,
            **settings,
        },
    )


def accumulating(desk: Desk) -> None:
    """16 examples, 2 at a time, 2 batches a step, 2 epochs: 8 steps; validated before, and after each epoch."""
    with tempfile.TemporaryDirectory() as folder:
        trainer(
            folder,
            StallscopeCallback("accumulating", sender=desk, interval=0.0),
            accumulate_grad_batches=2,
            enable_checkpointing=True,
            logger=lightning.loggers.CSVLogger(folder),
            log_every_n_steps=1,
        ).fit(Model(), loader(FETCH), loader())


def resumed(desk: Desk) -> None:
    """Twice fitted by one trainer, the second time from a checkpoint of the first."""
    with tempfile.TemporaryDirectory() as folder:
        tasks = trainer(folder, StallscopeCallback("resumed", sender=desk, interval=0.0), max_epochs=1)
        model = Model()
        tasks.fit(model, loader())
        tasks.save_checkpoint(f"{folder}/end")
        tasks.fit_loop.max_epochs = 2
        tasks.fit(model, loader(), ckpt_path=f"{folder}/end")
        assert not {"start", "stop"} & set(vars(tasks.profiler)), "the profiler is as it was"


def two_optimizers(desk: Desk) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trainer(folder, StallscopeCallback("two", sender=desk, interval=0.0)).fit(TwoOptimizers(), loader())


def failing(desk: Desk) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            trainer(folder, StallscopeCallback("failing", sender=desk, interval=0.0)).fit(Failing(), loader())
        except ArithmeticError:
            return
    raise AssertionError("the error did not reach the program")


def measured(desk: Desk) -> None:
    """Six batches of 22 examples, four a step, so that each epoch's second step has two; validated and saved."""
    from tests.shim.integrations import slow_torch
    from tests.shim.integrations.truth import Truth

    truth = Truth()

    class Measuring(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = slow_torch.Net(truth)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            with truth("forward"):
                return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.net(batch[0])

        def configure_optimizers(self) -> Any:
            return slow_torch.SGD(self.parameters(), truth)

        def on_save_checkpoint(self, checkpoint: Any) -> None:
            time.sleep(slow_torch.SAVE)

    class Trainer(lightning.Trainer):
        def save_checkpoint(self, *arguments: Any, **options: Any) -> None:
            with truth("checkpoint"):
                super().save_checkpoint(*arguments, **options)

    class Validation(lightning.Callback):
        def on_validation_start(self, *_: Any) -> None:
            self._open = truth("evaluation")
            self._open.__enter__()

        def on_validation_end(self, *_: Any) -> None:
            self._open.__exit__(None, None, None)

    class TimedLoader(torch.utils.data.DataLoader):
        def __iter__(self) -> Any:
            with truth("data_wait"):
                batches = super().__iter__()
            while True:
                with truth("data_wait"):
                    batch = next(batches, None)
                if batch is None:
                    return
                yield batch

    model = Measuring()
    attributes = {name: set(vars(part)) for name, part in model.named_modules()}
    profiler = lightning.profilers.PassThroughProfiler()
    with tempfile.TemporaryDirectory() as folder, slow_torch.timed_backward(truth):
        tasks = Trainer(
            accelerator="cpu",
            default_root_dir=folder,
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,
            callbacks=[
                StallscopeCallback("measured", sender=desk, interval=0.0),
                lightning.callbacks.ModelCheckpoint(folder, save_top_k=-1),
                Validation(),
            ],
            accumulate_grad_batches=4,
            max_epochs=3,
            profiler=profiler,
        )
        tasks.fit(
            model,
            TimedLoader(slow_torch.Examples(truth), batch_size=4),
            torch.utils.data.DataLoader(slow_torch.Examples(truth, trains=False), batch_size=8),
        )
    for name, part in model.named_modules():
        added = [vars(part)[key] for key in set(vars(part)) - attributes[name]]  # by Lightning
        assert "stallscope" not in repr(added).lower(), "the model is as it was"
        assert not part._forward_hooks
        assert not part._forward_pre_hooks
    for owner in (profiler, tasks.strategy, tasks.fit_loop.epoch_loop.val_loop):
        kinds = [vars(kind) for kind in type(owner).__mro__]
        assert "stallscope" not in repr([vars(owner), *kinds]).lower(), "and so is what is observed"
    truth.write(desk.path.with_suffix(".truth"))


if __name__ == "__main__":
    main("lightning", (accumulating, resumed, two_optimizers, failing, measured))
