"""Trainings with Keras, on the backend that KERAS_BACKEND names."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import stallscope
from stallscope.training.integrations.keras import StallscopeCallback
from tests.shim.integrations.only_backend import BACKEND
from tests.shim.integrations.tensorboard_trainings import tf_summary
from tests.shim.integrations.trainings import Desk, framework, main

keras: Any = framework("keras")
numpy: Any = framework("numpy")

FETCH = 0.01


class Batches(keras.utils.PyDataset):
    """Five batches of four and one of two: 22 samples."""

    def __init__(self, fetch: float = 0.0) -> None:
        super().__init__()
        self._fetch = fetch

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        time.sleep(self._fetch)
        size = 4 if index < 5 else 2
        return numpy.ones((size, 3), "float32"), numpy.ones((size, 1), "float32")


def model(accumulation: int | None = None) -> Any:
    made = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    made.compile(optimizer=keras.optimizers.SGD(0.1, gradient_accumulation_steps=accumulation), loss="mse")
    return made


def fitted(desk: Desk) -> None:
    """Three epochs, each validated and saved."""
    with tempfile.TemporaryDirectory() as folder:
        made = model()
        made.fit(
            Batches(FETCH),
            validation_data=Batches(),
            epochs=3,
            verbose=0,
            callbacks=[
                StallscopeCallback("fitted", sender=desk, interval=0.0),
                keras.callbacks.ModelCheckpoint(f"{folder}/{{epoch}}.weights.h5", save_weights_only=True),
            ],
        )
        assert not {"save", "save_weights", "load_weights", "fit"} & set(vars(made)), "the model is as it was"
        assert "stallscope" not in repr(made.train_function).lower()


def partial_first(desk: Desk) -> None:
    """Two epochs whose first batch is the partial one, as shuffling may have it."""

    class Reversed(Batches):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(5 - index)

    callback = StallscopeCallback("partial_first", sender=desk, interval=0.0)
    model().fit(Reversed(), epochs=2, verbose=0, shuffle=False, callbacks=[callback])


def accumulating(desk: Desk) -> None:
    """Two batches make one step; another callback wants the logs of each, for which Keras waits."""

    class Listener(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            pass

    model(accumulation=2).fit(
        Batches(),
        epochs=2,
        verbose=0,
        callbacks=[StallscopeCallback("accumulating", sender=desk, interval=0.0), Listener()],
    )


def failing(desk: Desk) -> None:
    """The fourth batch can't be computed; another fit with the same callback follows."""

    class Misshapen(Batches):
        def __getitem__(self, index: int) -> Any:
            return (numpy.ones((4, 7 if index == 3 else 3), "float32"), numpy.ones((4, 1), "float32"))

    callback = StallscopeCallback("failing", sender=desk, interval=0.0)
    try:
        model().fit(Misshapen(), epochs=1, verbose=0, shuffle=False, callbacks=[callback])
    except Exception:
        model().fit(Batches(), epochs=1, verbose=0, callbacks=[callback])
        return
    raise AssertionError("the error did not reach the program")


def measured(desk: Desk) -> None:
    """The program that `stallscope run` is tested with, here with the callback and in a run of its own."""
    from tests.shim.integrations import keras_program

    with tempfile.TemporaryDirectory() as folder, stallscope.Run("measured", sender=desk, interval=0.0):
        keras_program.main(Path(folder), (StallscopeCallback(),))
    keras_program.truth.write(desk.path.with_suffix(".truth"))


if __name__ == "__main__":
    writers = (tf_summary,) if BACKEND == "tensorflow" else ()
    main("keras", (fitted, partial_first, accumulating, failing, measured, *writers))
