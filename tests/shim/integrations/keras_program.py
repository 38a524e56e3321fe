"""A program that trains with Keras and knows nothing of Stallscope; run by `test_keras.py` under `stallscope run`.

It fits a model with validation and checkpoints, evaluates, saves, loads its weights again, and fits once more.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

from tests.shim.integrations.only_backend import BACKEND

# isort: split

import keras
import numpy as np

from tests.shim.integrations.truth import Truth

FETCH, FORWARD, BACKWARD, OPTIMIZER, VALIDATION, SAVE = 0.01, 0.006, 0.008, 0.004, 0.01, 0.03
TORCH = BACKEND == "torch"
truth = Truth()


class Batches(keras.utils.PyDataset):
    """Five batches of four and one of two: 22 samples."""

    def __init__(self, phase: str, seconds: float) -> None:
        super().__init__()
        self._phase, self._seconds = phase, seconds

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        if BACKEND != "tensorflow":  # which fetches in threads of its own
            with truth(self._phase):
                time.sleep(self._seconds)
        size = 4 if index < 5 else 2
        return np.ones((size, 3), "float32"), np.ones((size, 1), "float32")


class Slow(keras.layers.Layer):
    """Takes its time where PyTorch calls it, and when it is saved."""

    def call(self, inputs: Any) -> Any:
        if not TORCH or inputs.device.type == "meta":
            return inputs
        time.sleep(FORWARD)
        return slow_backward(inputs)

    def save_own_variables(self, store: Any) -> None:
        time.sleep(SAVE)


def slow_backward(inputs: Any) -> Any:
    import torch

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, values: Any) -> Any:
            return values.clone()

        @staticmethod
        def backward(context: Any, gradients: Any) -> Any:
            with truth("backward"):
                time.sleep(BACKWARD)
            return gradients

    return Function.apply(inputs)


class Net(keras.Sequential):
    def __call__(self, inputs: Any, **options: Any) -> Any:
        if not TORCH or inputs.device.type == "meta" or not self.training:
            return super().__call__(inputs, **options)
        with truth("forward"):
            return super().__call__(inputs, **options)

    def evaluate(self, *arguments: Any, **options: Any) -> Any:
        with truth("evaluation"):
            return super().evaluate(*arguments, **options)


class SGD(keras.optimizers.SGD):
    def _backend_apply_gradients(self, *arguments: Any) -> None:
        if TORCH:
            time.sleep(OPTIMIZER)
        super()._backend_apply_gradients(*arguments)

    def apply(self, *arguments: Any, **options: Any) -> Any:
        if not TORCH:
            return super().apply(*arguments, **options)
        with truth("optimizer"):
            return super().apply(*arguments, **options)


class Counting(keras.callbacks.Callback):
    """Counts updates and samples."""

    def __init__(self, accumulation: int) -> None:
        super().__init__()
        self._accumulation = accumulation
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._batches += 1
        truth.samples += 4 if batch < 5 else 2
        truth.steps += self._batches % self._accumulation == 0


class Checkpoint(keras.callbacks.ModelCheckpoint):
    def _save_model(self, *arguments: Any, **options: Any) -> None:
        with truth("checkpoint"):
            super()._save_model(*arguments, **options)


def compiled(accumulation: int | None) -> Any:
    made = Net([keras.layers.Input((3,)), Slow(), keras.layers.Dense(1), Slow()])
    made.compile(optimizer=SGD(0.01, gradient_accumulation_steps=accumulation), loss="mse")
    return made


def main(folder: Path, callbacks: tuple[Any, ...] = ()) -> Any:
    accumulation = 4
    model = compiled(accumulation)
    counting = Counting(accumulation)
    used = [*callbacks, counting, Checkpoint(folder / "{epoch}.keras")]
    before = list(used)
    history = model.fit(
        Batches("data_wait", FETCH),
        validation_data=Batches("evaluation", VALIDATION),
        epochs=2,
        verbose=0,
        shuffle=False,
        callbacks=used,
    )
    assert used == before
    assert isinstance(history, keras.callbacks.History)
    model.evaluate(Batches("evaluation", VALIDATION), verbose=0)
    with truth("checkpoint"):
        model.save_weights(folder / "end.weights.h5")
    with truth("restore"):
        model.load_weights(folder / "end.weights.h5")
        keras.models.load_model(folder / "1.keras", {"Net": Net, "Slow": Slow, "SGD": SGD})
    # The 12 batches so far are 3 updates; these 6 make one, and leave 2 batches.
    model.fit(Batches("data_wait", FETCH), epochs=1, verbose=0, shuffle=False, callbacks=[*callbacks, counting])
    return model


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    trained = main(folder)
    assert "stallscope" not in repr(sorted(vars(trained))).lower()
    assert b"stallscope" not in pickle.dumps(trained)
    truth.write(folder / "truth.json")
    assert os.environ.get("STALLSCOPE_AUTO")
