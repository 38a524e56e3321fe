"""Keras: a callback that tells a run what `fit` does, for Keras 3 with any backend, and for tf.keras.

    from stallscope.integrations.keras import StallscopeCallback

    model.fit(..., callbacks=[StallscopeCallback("my-run")])

A step is one call of the compiled training function: with `steps_per_execution` several batches, with gradient
accumulation as many calls as make one update. `data_wait` is measured with the PyTorch and JAX backends; TensorFlow
takes its batches inside the compiled step, where nothing can be told apart, and so are forward, backward and optimizer
in all three. `checkpoint` and `restore` are `save`, `save_weights` and `load_weights` of the model; a callback that
loads when training begins must stand after this one. Batches stay as they are: only their shape is looked at.
Keras dispatches steps without waiting for the device where it can, and this callback leaves it so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any

from stallscope.shim.integrations.fit import Fit, require, scalar, tolerant
from stallscope.shim.run import Run
from stallscope.shim.tolerance import number

_STORES = {"save": "checkpoint", "save_weights": "checkpoint", "load_weights": "restore"}
_PRECISIONS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_EXHAUSTED = ("StopIteration", "OutOfRangeError")


class FitEvents:
    """What the callback does; `StallscopeCallback` is this and the framework's own class."""

    async_safe = True  # else Keras would wait for the device after each step, for this callback's sake

    def __init__(self, run: Run | str | None = None, **settings: Any) -> None:
        """Remember which run to tell.

        Args:
            run: a run, or the name of one that is open or is to be started with the training.
            settings: further arguments of `stallscope.Run`; with TensorFlow `samples_per_step` can only come from here.
        """
        super().__init__()
        self.fit = Fit(run, "keras", "", settings)
        self._restore: list[Callable[[], None]] = []
        self._source: Any = None
        self._timed: _TimedBatches | None = None
        self._backend = ""
        self._thread = 0
        self._synchronous = False
        self._logs: Any = None
        self._watched: Run | None = None
        self._calls = 0
        self._samples = 0
        self._samples_told = 0

    @tolerant
    def on_train_begin(self, logs: Any = None) -> None:
        """The run begins."""
        model = self._model  # type: ignore[attr-defined]  # the property would wait for JAX
        keras = sys.modules.get("keras")
        backend = getattr(keras, "backend", None)
        self._backend = backend.backend() if backend is not None and hasattr(backend, "backend") else "tensorflow"
        self._thread = get_ident()
        self._synchronous = False
        if self.fit.active:  # the last fit ended with an exception outside of its steps
            self.fit.fail(RuntimeError("the fit before did not end"))
        self.fit.framework = {"torch": "pytorch"}.get(self._backend, self._backend)
        policy = getattr(getattr(model, "dtype_policy", None), "compute_dtype", "")
        run = self.fit.begin(precision=_PRECISIONS.get(policy, ()))
        parameters = self.params or {}  # type: ignore[attr-defined]
        steps, epochs = number(parameters.get("steps")), number(parameters.get("epochs"))
        if steps and epochs:
            per_step = max(getattr(model, "steps_per_execution", 1) or 1, 1) if self._backend != "torch" else 1
            updates = -(-steps // per_step) * epochs
            self.fit.plan(steps_planned=updates // self._accumulation(model))
        if run is not self._watched:
            self._watched = run
            run.watch(self._read_logs)
        self._calls = self._samples = self._samples_told = 0
        self._undo()
        self._wrap(model, run)

    @tolerant
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """An epoch begins."""
        if self.fit.run is not None:
            self.fit.run.report(epoch=epoch)
        if self._backend == "torch" and self.fit.active:
            self.fit.enter("data_wait")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Take note of the logs, which are numbers by now; on a thread of its own where Keras needn't wait for them."""
        self._logs = logs
        if self._backend == "torch" and get_ident() == self._thread and self.fit.active:
            self._synchronous = True
            self.fit.enter("data_wait")

    # Without the mark Keras would wait for the device after each step, to have logs to hand over.
    on_train_batch_end._is_default = True  # type: ignore[attr-defined]  # noqa: SLF001 - Keras' own mark

    @tolerant
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The epoch's logs are there."""
        self.fit.leave()
        self._logs = logs
        if self.fit.run is not None and logs and (found := scalar(logs, "val_loss")) is not None:
            self.fit.run.report(val_loss=found)

    @tolerant
    def on_test_begin(self, logs: Any = None) -> None:
        """An evaluation begins, inside the fit or beside it."""
        self.fit.enter("evaluation")

    @tolerant
    def on_test_end(self, logs: Any = None) -> None:
        """An evaluation is over."""
        self._ended()

    @tolerant
    def on_predict_begin(self, logs: Any = None) -> None:
        """A prediction begins."""
        self.fit.enter("evaluation")

    @tolerant
    def on_predict_end(self, logs: Any = None) -> None:
        """A prediction is over."""
        self._ended()

    @tolerant
    def on_train_end(self, logs: Any = None) -> None:
        """The training is over."""
        self._logs = logs
        self._undo()
        self._read_logs()
        self.fit.end()

    def _ended(self) -> None:
        self.fit.leave()
        if not self.fit.active and self.fit.run is not None and not self.fit.run.silent:
            self.fit.end()

    def _accumulation(self, model: Any) -> int:
        return max(getattr(getattr(model, "optimizer", None), "gradient_accumulation_steps", None) or 1, 1)

    @tolerant
    def _read_logs(self) -> None:
        logs, self._logs = self._logs, None
        if logs and self.fit.run is not None:
            # Keras' schedules log the rate.
            self.fit.run.report(loss=scalar(logs, "loss"), learning_rate=scalar(logs, "learning_rate", "lr"))

    def _undo(self) -> None:
        while self._restore:
            self._restore.pop()()

    def _wrap(self, model: Any, run: Run) -> None:
        """Stand between `fit` and what it calls of the model: its callbacks are told too late, or on another thread."""
        accumulation = self._accumulation(model)
        train = model.train_function

        def train_function(*args: Any) -> Any:
            self.fit.leave()
            before = self._calls
            try:
                result = train(*self._seen(args))
            except BaseException as error:
                if type(error).__name__ not in _EXHAUSTED:
                    self._undo()
                    self.fit.fail(error)
                raise
            self._calls = before + 1
            if self._calls % accumulation == 0:
                self._tell_samples()
                run.step()
            if self._backend == "torch" and not self._synchronous:
                self.fit.enter("data_wait")
            return result

        def set_back() -> None:
            if model.train_function is train_function:
                model.train_function = train

        model.train_function = train_function
        self._restore.append(set_back)
        for name, phase in _STORES.items():
            if hasattr(model, name):
                self._time(model, name, phase, run)

    def _time(self, model: Any, name: str, phase: str, run: Run) -> None:
        method = getattr(model, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with run.phase(phase):
                return method(*args, **kwargs)

        setattr(model, name, timed)
        self._restore.append(lambda: delattr(model, name))

    @tolerant
    def _tell_samples(self) -> None:
        if self._samples and self._samples != self._samples_told:
            self.fit.plan(samples_per_step=self._samples)
            self._samples_told = self._samples
        self._samples = 0

    def _seen(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The training function's arguments, their batches timed or counted."""
        if self._backend == "torch":
            self._samples += _samples(args[-1])
        elif self._backend == "jax":
            if self._source is not args[-1]:
                self._source = args[-1]
                self._timed = _TimedBatches(self._source, self)
            return (*args[:-1], self._timed)
        return args


class _TimedBatches:
    """An iterator of batches that books the wait for each, and counts its samples."""

    def __init__(self, batches: Iterator[Any], events: FitEvents) -> None:
        self._batches = batches
        self._events = events
        run = events.fit.run
        assert run is not None
        self._wait = run.phase("data_wait")

    def __iter__(self) -> _TimedBatches:
        return self

    def __next__(self) -> Any:
        with self._wait:
            batch = next(self._batches)
        self._events._samples += _samples(batch)  # noqa: SLF001 - its own file
        return batch


def _samples(batch: Any) -> int:
    """The length of a batch's first part; 0 where it has none."""
    while isinstance(batch, (tuple, list, dict)):
        if not batch:
            return 0
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    shape = getattr(batch, "shape", None)
    try:
        return int(shape[0]) if shape else 0
    except (TypeError, ValueError):  # not known before the step runs
        return 0


def __getattr__(name: str) -> Any:
    if name != "StallscopeCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    base = require("keras", "keras").callbacks.Callback
    found = type(name, (FitEvents, base), {"__module__": __name__, "__doc__": __doc__})
    globals()[name] = found
    return found
