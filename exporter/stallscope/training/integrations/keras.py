"""Keras: a callback that reports what `fit` does to a run, for Keras 3 with any backend.

    from stallscope.integrations.keras import StallscopeCallback

    model.fit(..., callbacks=[StallscopeCallback("my-run")])

`stallscope run` measures the same without the callback, and `train_on_batch` as well.

A step is one call of the compiled training function: several batches with `steps_per_execution`, and as many calls as
make one update with gradient accumulation. `evaluation` is `evaluate` and `predict`. `checkpoint` and
`restore` are all calls that save and load the model or its weights, those of Keras' callbacks included.

With PyTorch, `data_wait`, `forward`, `backward` and `optimizer` are measured. With JAX, `data_wait` is: the rest of a
step is one compiled function. TensorFlow fetches its batches inside the compiled function as well; their samples are
read from Keras' own count, after the first step of a fit and at the end of each epoch.

Models, data sets and lists of callbacks stay as they are: methods of Keras' own classes are wrapped. Keras dispatches
steps without waiting for the device where it can, and so it does here.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from inspect import signature
from threading import get_ident
from typing import Any

from stallscope.training.integrations.fit import Fit, require, samples, scalar, tolerant, wrap
from stallscope.training.shim.run import Run, current
from stallscope.training.shim.tolerance import tolerate

_PRECISIONS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_STORES = {"save": "checkpoint", "save_weights": "checkpoint", "load_weights": "restore"}
_LOADERS = {
    "keras.src.saving.saving_lib": ("load_model",),
    "keras.src.legacy.saving.legacy_h5_format": ("load_model_from_hdf5",),
}
_EXACT = 2**24
"""Largest sum of integers that single precision represents exactly."""


class Training:
    """Attribution of one `fit` to steps and phases, in the thread that calls it."""

    def __init__(self, fit: Fit) -> None:
        self.fit = fit
        self.model: Any = None
        self.callbacks: Any = None
        """Keras' list of callbacks that this fit calls."""
        self.reader: Any = None
        """Callback that was added to the list for this fit."""
        self.computing = False
        """True while the training function runs."""
        self.logs: Any = None
        self._thread = get_ident()
        self._backend = ""
        self._fetching = False
        self._began = False
        self._accumulation = 1
        self._batches = 0
        self._batches_before = 0
        self._first_batch = 0
        self._counter: _LossCount | None = None
        self._largest = 0.0
        self._leader = 0  # the model whose batches are steps, of several that the program trains in turn

    @property
    def here(self) -> bool:
        """True in the loop's thread, until the run ends."""
        return self.fit.open_run is not None and get_ident() == self._thread

    def begin(self, model: Any, backend: str) -> None:
        """Attach to the run; preparations are initialization."""
        self.model = model
        self.callbacks = None
        self.computing = self._fetching = self._began = False
        self._thread = get_ident()
        self._backend = backend
        self.fit.framework = {"torch": "pytorch"}.get(backend, backend)
        policy = getattr(getattr(model, "dtype_policy", None), "compute_dtype", "")
        run = self.fit.begin(self.report_logs, precision=_PRECISIONS.get(policy, ()))
        if run.timeline.looping:
            self.fit.enter("initialization")
        optimizer = getattr(model, "optimizer", None)
        self._accumulation = max(getattr(optimizer, "gradient_accumulation_steps", None) or 1, 1)
        self._batches = 0
        self._largest = 0.0
        if self._accumulation > 1:  # an update that an earlier fit left unfinished goes on
            self._batches = _integer(getattr(optimizer, "_iterations", 0)) % self._accumulation
        self._counter = _LossCount(model) if backend == "tensorflow" and self.fit.counts_samples else None

    def end(self) -> None:
        """End the fit."""
        self.report_logs()
        self._forget()
        self.fit.end()

    def fail(self, error: BaseException) -> None:
        """End the fit with an exception."""
        self._forget()
        self.fit.fail(error)

    def begin_epoch(self, epoch: int, logs: Any = None) -> None:
        """Begin an epoch, and with the first one the loop."""
        run = self.fit.run
        assert run is not None
        self.fit.leave()
        if not self._began:
            self._began = True
            self._plan(run, epoch)
        self.fit.begin_loop()
        run.begin_pass()
        run.report(epoch=epoch)
        self._fetching = True
        if self._counter is not None:
            self._counter.begin()

    def end_epoch(self, epoch: int, logs: Any = None) -> None:
        """End an epoch, after its validation."""
        self.settle_samples()
        self.computing = self._fetching = False
        if self.fit.run is not None and logs and (found := scalar(logs, "val_loss")) is not None:
            self.fit.run.report(val_loss=found)

    def next_batches(self, iterator: Any, following: Callable[[Any], Any]) -> Any:
        """Fetch the next step's batches, or the iterator that yields them."""
        run = self.fit.run
        if not self._fetching or run is None or run.timeline.current.outside:
            return following(iterator)
        if self._backend == "torch":
            with run.phase("data_wait"):
                found = following(iterator)
            self.add_samples(found[2])
            return found
        found = following(iterator)
        if self._backend == "jax":
            return (*found[:2], _TimedBatches(found[2], self))
        if self._counter is not None:
            self._counter.source = getattr(iterator, "data_adapter", None)
        return found

    def begin_batch(self, batch: int, logs: Any = None) -> None:
        """The training function is about to be called."""
        self._first_batch = batch
        self._batches_before = self._batches
        self.computing = True

    def end_batch(self, batch: int, logs: Any = None) -> None:
        """The training function returned."""
        self.computing = False
        self.fit.leave()
        called = max(batch - self._first_batch + 1, 1)
        self._batches += called
        if self._counter is not None:
            self._add(self._counter.returned(called), self._counter.batch_size or 0)

    def step(self, batch: int, logs: Any = None) -> None:
        """End the step, if the weights were updated."""
        run = self.fit.run
        if run is not None and self._batches // self._accumulation > self._batches_before // self._accumulation:
            run.step()

    def evaluate(self, function: Callable[..., Any], model: Any, arguments: Any, options: Any) -> Any:
        """Run an evaluation or a prediction."""
        self.settle_samples()
        try:
            with self.fit.booked("evaluation"):
                return function(model, *arguments, **options)
        finally:
            if self._counter is not None:
                self._counter.begin()

    def train_on_batch(self, function: Callable[..., Any], model: Any, arguments: Any, options: Any) -> Any:
        """Take the step of a loop that the program itself drives; of several models each cycle is a step."""
        run = self.fit.run
        assert run is not None
        if self.fit.phase == "paused":
            self.fit.leave()
        self.fit.begin_loop()
        run.claimed_by = self.fit.integration
        try:
            result = function(model, *arguments, **options)
        finally:
            run.claimed_by = ""
        before = run.timeline.steps
        if self.fit.counts_samples and self._leader in (0, id(model)):
            found = samples(arguments[0] if arguments else options.get("x"))
            if found and run.batch_size != found:
                run.plan(found, None, None, None)  # with it, samples of data loaders are not counted as well
        run.optimizer_step(model)
        if run.timeline.steps > before:
            self._leader = id(model)
        return result

    @tolerant
    def settle_samples(self) -> None:
        """Count the samples that Keras has counted since the epoch began."""
        if self._counter is not None and self._fetching:
            self._add(self._counter.settle(), self._counter.batch_size or 0)

    @tolerant
    def report_logs(self) -> None:
        """Report the newest logs; Keras' schedules log the learning rate."""
        logs, self.logs = self.logs, None
        if logs and self.fit.run is not None:
            self.fit.run.report(loss=scalar(logs, "loss"), learning_rate=scalar(logs, "learning_rate", "lr"))

    @tolerant
    def add_samples(self, batch: Any) -> None:
        """Count the samples of a batch, or of a list of batches."""
        if self.fit.counts_samples:
            found = sum(map(samples, batch)) if isinstance(batch, list) else samples(batch)
            self._add(found, found)

    def _forget(self) -> None:
        if self.reader is not None and self.reader in self.callbacks.callbacks:
            self.callbacks.callbacks.remove(self.reader)
        self.model = self.callbacks = self.reader = None
        self.computing = self._fetching = False

    def _add(self, count: float, batch_size: float) -> None:
        run = self.fit.run
        if run is not None and count:
            run.report(samples=count)
        if run is not None and batch_size > self._largest:
            self._largest = batch_size
            run.gauge("batch_size", batch_size * self._accumulation)

    def _plan(self, run: Run, first_epoch: int) -> None:
        parameters = getattr(self.callbacks, "params", None) or {}
        batches, epochs = parameters.get("steps"), parameters.get("epochs")
        if type(batches) is not int or type(epochs) is not int:
            return
        calls = batches
        if self._backend != "torch":
            calls = -(-batches // max(getattr(self.model, "steps_per_execution", 1) or 1, 1))
        if first_epoch and run.timeline.steps == 0:
            run.report(step=first_epoch * calls // self._accumulation)
        planned = (calls * max(epochs - first_epoch, 0) + self._batches) // self._accumulation
        self.fit.plan(steps_planned=run.steps_done + planned)


class _TimedBatches:
    """An iterator of batches that books the wait for each, and counts its samples."""

    def __init__(self, batches: Iterator[Any], training: Training) -> None:
        self._batches = batches
        self._training = training
        run = training.fit.run
        assert run is not None
        self._wait = run.phase("data_wait")

    def __iter__(self) -> _TimedBatches:
        return self

    def __next__(self) -> Any:
        with self._wait:
            batch = next(self._batches)
        self._training.add_samples(batch)
        return batch


class _LossCount:
    """Samples by the count of Keras' loss metric, for data that only the compiled function sees.

    Each call counts with the size of a full batch, one call late, and the epoch's end settles the difference.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.source: Any = None
        """Keras' adapter of the data."""
        self.batch_size: float | None = None
        self._begun = 0.0
        self._taken = 0.0
        self._due = 0.0
        self._calls = 0
        self._batches = 0
        self._sized_by = 0
        """Batches that `batch_size` was read from, where they are among those counted since `begin`; else 0."""
        self._batches_before = 0
        """Batches before `begin`."""
        self._counts = True

    def begin(self) -> None:
        """Begin to count: an epoch, or what follows an evaluation, which resets the metric."""
        self._begun = self._read() if self._calls else 0.0
        self._taken = self._due = 0.0
        self._sized_by, self._batches_before = 0, self._batches

    def returned(self, batches: int) -> float:
        """Note that `batches` batches were trained, and return the samples of the previous call."""
        self._calls += 1
        self._batches += batches
        if self.batch_size is None:
            self.batch_size = self._first(batches)
            self._sized_by = batches
        before, self._due = self._due, self.batch_size * batches
        self._taken += before
        return before

    def settle(self) -> float:
        """Return the samples that were not counted yet."""
        if not self._counts or self.batch_size is None:
            left, self._due = self._due, 0.0
            partial = getattr(self.source, "partial_batch_size", None)
            if left and type(partial) is int and self._batches % (self.source.num_batches or 1) == 0:
                left += partial - (self.batch_size or 0.0)
            return left
        read = self._read()
        left = max(read - self._begun - self._taken, 0.0)
        self._correct_size(read - self._begun)
        self._begun, self._taken, self._due = read, 0.0, 0.0
        return left

    def _correct_size(self, counted: float) -> None:
        """Take the size from the other batches where the first one was the partial one, as in shuffled data."""
        batches = self._batches - self._batches_before
        size = self.batch_size or 0.0
        if 0 < self._sized_by < batches and counted > batches * size:
            self.batch_size = (counted - self._sized_by * size) / (batches - self._sized_by)
        self._sized_by = 0

    def _first(self, batches: int) -> float:
        size = getattr(self.source, "batch_size", None)
        size = float(size) if type(size) is int else 0.0
        counted = (self._read() - self._begun) / batches
        # A model's own training step may leave the metric alone, and Keras before 3.6 counts batches.
        if counted <= 0 or (counted == 1 and size != 1):
            self._counts = False
            return size
        return size or counted

    def _read(self) -> float:
        count = getattr(getattr(self._model, "_loss_tracker", None), "count", None)
        if count is None:
            return 0.0
        found = float(count.numpy())
        if found >= _EXACT:
            self._counts = False
        return found


_active: Training | None = None
_latest: Training | None = None
_since: float | None = None
_explicit = False
"""True once the program passed a callback of Stallscope: then no fit begins a run by itself."""


def watch_fits(since: float) -> None:
    """Measure each fit in this process, under the run that is open or one that begins with it.

    Args:
        since: when the process began to prepare for it, by the monotonic clock: that time is initialization.
    """
    global _since
    _since = since
    _attach(sys.modules["keras"])


def _attach(keras: Any) -> None:
    """Wrap the methods of Keras' classes, once in a process."""
    for name, make in (
        ("fit", _fitted),
        ("evaluate", _evaluated),
        ("predict", _evaluated),
        ("train_on_batch", _trained_on_batch),
    ):
        wrap(_owner(keras.Model, name), name, make)
    for name, phase in _STORES.items():
        wrap(_owner(keras.Model, name), name, _stored(phase))
    for module, names in _LOADERS.items():
        for name in names:
            wrap(sys.modules.get(module), name, _stored("restore"))
    wrap(getattr(keras.callbacks, "OrbaxCheckpoint", None), "_save_checkpoint", _stored("checkpoint"))
    for name, hook in (
        ("on_train_begin", _training_begun),
        ("on_epoch_begin", _hook(after=Training.begin_epoch)),
        ("on_epoch_end", _hook(before=Training.end_epoch)),
        ("on_train_batch_begin", _hook(after=Training.begin_batch)),
        ("on_train_batch_end", _hook(before=Training.end_batch, after=Training.step)),
        ("on_test_batch_end", _batch_evaluated),
        ("on_predict_batch_end", _batch_evaluated),
    ):
        wrap(keras.callbacks.CallbackList, name, hook)
    iterators = sys.modules.get("keras.src.trainers.epoch_iterator")
    base = getattr(iterators, "EpochIterator", None)
    for owner in () if base is None else (base, *base.__subclasses__()):
        if "__next__" in vars(owner):
            wrap(owner, "__next__", _next_batches)
    if keras.backend.backend() == "torch":
        wrap(keras.Model, "__call__", _called(keras.Model))
        wrap(_owner(keras.optimizers.Optimizer, "apply"), "apply", _in_phase("optimizer"))
        wrap(sys.modules["torch"].autograd, "backward", _in_phase("backward"))


def _owner(kind: type, name: str) -> type | None:
    return next((base for base in kind.__mro__ if name in vars(base)), None)


def _fitted(original: Callable[..., Any]) -> Callable[..., Any]:
    position = list(signature(original).parameters).index("callbacks") - 1

    def fit(model: Any, *arguments: Any, **options: Any) -> Any:
        global _active
        if _active is not None:  # one fit inside another, or in another thread
            return original(model, *arguments, **options)
        callbacks = arguments[position] if len(arguments) > position else options.get("callbacks")
        training = _active = _begin(model, callbacks)
        try:
            result = original(model, *arguments, **options)
        except BaseException as error:
            _safely(training, Training.fail, error)
            raise
        finally:
            _active = None
        _safely(training, Training.end)
        return result

    return fit


@tolerant
def _begin(model: Any, callbacks: Any) -> Training | None:
    global _latest, _explicit
    training = _given(callbacks)
    _explicit = _explicit or training is not None
    training = training or _automatic()
    if training is None:
        return None
    training.begin(model, sys.modules["keras"].backend.backend())
    _latest = training
    return training


def _given(callbacks: Any) -> Training | None:
    """Return the training of a callback among these: one callback, a nested list, or Keras' own list."""
    callbacks = getattr(callbacks, "callbacks", callbacks)
    if isinstance(callbacks, (list, tuple)):
        return next((found for each in callbacks if (found := _given(each)) is not None), None)
    return callbacks.training if isinstance(callbacks, LogReader) else None


def _automatic() -> Training | None:
    """Return the training of a fit without a callback: its run is the open one, or begins now."""
    global _since, _latest
    if _since is None or multiprocessing.current_process().daemon:
        return None
    if _latest is not None and _latest.fit.open_run is not None:
        return _latest
    run = current()
    if run is None:
        if _explicit:
            return None
        run = Run(head_start=time.monotonic() - _since)
        _since = time.monotonic()
    _latest = Training(Fit(run, "keras", "", {}))
    _latest.fit.run = run
    return _latest


def _around() -> Training | None:
    """Return the training for an event outside of steps: the current one, the last one, or one that begins now."""
    found = _active or _latest
    if found is None or found.fit.open_run is None:
        found = _active or _automatic()
    return found if found is not None and found.here else None


def _in_loop(callbacks: Any = None) -> Training | None:
    """Return the current training, if this is its thread and its list of callbacks."""
    training = _active
    if training is None or not training.here or (callbacks is not None and training.callbacks is not callbacks):
        return None
    return training


def _safely(training: Training | None, method: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    if training is not None:
        try:
            method(training, *arguments, **options)
        except Exception as error:
            tolerate(error, "following a Keras training")


def _evaluated(original: Callable[..., Any]) -> Callable[..., Any]:
    def evaluate(model: Any, *arguments: Any, **options: Any) -> Any:
        training = _around()
        if training is None:
            return original(model, *arguments, **options)
        return training.evaluate(original, model, arguments, options)

    return evaluate


def _batch_evaluated(original: Callable[..., Any]) -> Callable[..., Any]:
    def hook(callbacks: Any, *arguments: Any, **options: Any) -> Any:
        _safely(_around(), lambda training: training.fit.report_if_due())
        return original(callbacks, *arguments, **options)

    return hook


def _trained_on_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    def train_on_batch(model: Any, *arguments: Any, **options: Any) -> Any:
        training = None if _active is not None else _around()
        if training is None or _since is None:
            return original(model, *arguments, **options)
        return training.train_on_batch(original, model, arguments, options)

    return train_on_batch


def _stored(phase: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def store(owner: Any, *arguments: Any, **options: Any) -> Any:
            training = _around() if phase == "restore" or _active or _latest else None
            if training is None:
                return original(owner, *arguments, **options)
            with training.fit.booked(phase):
                return original(owner, *arguments, **options)

        return store

    return make


def _training_begun(original: Callable[..., Any]) -> Callable[..., Any]:
    def on_train_begin(callbacks: Any, *arguments: Any, **options: Any) -> Any:
        training = _in_loop()
        if training is not None and training.callbacks is None:
            training.callbacks = callbacks
            _safely(training, _read_logs, callbacks)
        return original(callbacks, *arguments, **options)

    return on_train_begin


def _read_logs(training: Training, callbacks: Any) -> None:
    """Add a callback that receives the logs, if the program passed none."""
    if not any(isinstance(each, LogReader) for each in callbacks.callbacks):
        reader = _callback_class()()
        reader.training = training
        training.reader = reader
        callbacks.callbacks.append(reader)


def _hook(
    before: Callable[..., None] | None = None, after: Callable[..., None] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Call methods of the current training before and after a hook of Keras' callbacks, with the hook's arguments."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def hook(callbacks: Any, *arguments: Any, **options: Any) -> Any:
            if before is not None:
                _safely(_in_loop(callbacks), before, *arguments, **options)
            try:
                return original(callbacks, *arguments, **options)
            finally:
                if after is not None:
                    _safely(_in_loop(callbacks), after, *arguments, **options)

        return hook

    return make


def _next_batches(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def following(iterator: Any) -> Any:
        training = _in_loop()
        return original(iterator) if training is None else training.next_batches(iterator, original)

    return following


def _called(kind: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Book the outermost call of the model that is trained."""
    compiling = sys.modules["torch"].compiler.is_compiling

    def make(_: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(model: Any, *arguments: Any, **options: Any) -> Any:  # noqa: N807 - replaces that method
            call = super(kind, model).__call__
            if _active is None or compiling() or model is not _active.model or not _active.computing:
                return call(*arguments, **options)
            return _booked("forward", call, arguments, options)

        return __call__

    return make


def _in_phase(phase: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    compiling = sys.modules["torch"].compiler.is_compiling

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def function(*arguments: Any, **options: Any) -> Any:
            if _active is None or compiling() or not _active.computing:
                return original(*arguments, **options)
            return _booked(phase, original, arguments, options)

        return function

    return make


def _booked(phase: str, function: Callable[..., Any], arguments: Any, options: Mapping[str, Any]) -> Any:
    training = _in_loop()
    if training is None or training.fit.run is None:
        return function(*arguments, **options)
    with training.fit.run.phase(phase):
        return function(*arguments, **options)


def _integer(variable: Any) -> int:
    """Return the value of one of Keras' variables."""
    try:
        return int(variable)
    except Exception:
        return 0


class LogReader:
    """Behaviour of the callback; `StallscopeCallback` combines it with Keras' own class."""

    async_safe = True  # else Keras would wait for the device after each step, for this callback's sake

    def __init__(self, run: Run | str | None = None, **settings: Any) -> None:
        """Store which run to report to.

        Args:
            run: a run, or the name of one that is open or is to be started with the training.
            settings: further arguments of `stallscope.Run`.
        """
        super().__init__()
        self.fit = Fit(run, "keras", "", settings)
        self.training = Training(self.fit)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "training": None, "_model": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.training = Training(self.fit)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Store the logs, which are numbers by now; with TensorFlow and JAX, Keras calls this in another thread."""
        self.training.logs = logs

    # Without the mark Keras would wait for the device after each step, to have logs to hand over.
    on_train_batch_end._is_default = True  # type: ignore[attr-defined]  # noqa: SLF001 - Keras' own mark

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Store the epoch's logs."""
        self.training.logs = logs


def _callback_class() -> Any:
    """Return the callback's class, which needs Keras."""
    if "StallscopeCallback" not in globals():
        keras = require("keras", "keras")
        _attach(keras)
        globals()["StallscopeCallback"] = type(
            "StallscopeCallback", (LogReader, keras.callbacks.Callback), {"__module__": __name__, "__doc__": __doc__}
        )
    return globals()["StallscopeCallback"]


def __getattr__(name: str) -> Any:
    if name != "StallscopeCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _callback_class()
