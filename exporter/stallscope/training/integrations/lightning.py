"""PyTorch Lightning: a callback that reports what `Trainer` does to a run, for `lightning` and `pytorch_lightning`.

    from stallscope.integrations.lightning import StallscopeCallback

    Trainer(..., callbacks=[StallscopeCallback("my-run")])

A step is a batch after which an optimizer stepped, whichever and however many of them; samples are counted for each
batch. Phases are actions of Lightning's own profiler: `data_wait` the data loader, `host_copy` the batch's way to the
device, `forward` the `training_step`, `backward`, `optimizer`, `checkpoint`; `logging` is loggers and progress
bar, which contains their wait for values on the device. All times are the host's. The sanity check is `evaluation`,
before the loop begins.

Models, loggers and profilers stay as they are: while a trainer fits, methods of their classes are wrapped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from importlib.util import find_spec
from math import isfinite
from typing import Any

from stallscope.training.integrations.fit import Fit, place, require, samples, scalar, tolerant
from stallscope.training.shim.checked_numbers import number
from stallscope.training.shim.run import Run
from stallscope.training.shim.timeline import Phase
from stallscope.training.shim.tolerance import tolerate

_PRECISIONS = {"32": "fp32", "16": "fp16", "bf16": "bf16", "transformer": "fp8"}
_LOSSES = ("loss", "train_loss", "train/loss", "loss_step", "train_loss_step", "train/loss_step", "train_loss_epoch")


class TrainerEvents:
    """Behaviour of the callback; `StallscopeCallback` combines it with the framework's own class."""

    def __init__(self, run: Run | str | None = None, **settings: Any) -> None:
        """Store which run to report to.

        Args:
            run: a run, or the name of one that is open or is to be started with the training.
            settings: further arguments of `stallscope.Run`.
        """
        super().__init__()
        self.fit = Fit(run, "lightning", "pytorch", settings)
        self._undo: list[Callable[[], None]] = []
        self._phases: dict[str, Phase | None] = {}
        self._evaluation: Phase | None = None
        self._optimizer: Any = None
        self._global_step = 0
        self._batch_size = 0

    def __getstate__(self) -> dict[str, Any]:
        # What a spawned rank gets: nothing of this process.
        return {**self.__dict__, "_undo": [], "_phases": {}, "_evaluation": None, "_optimizer": None}

    @tolerant
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The run begins, before a checkpoint is loaded."""
        if stage != "fit":
            return
        word = str(trainer.precision).split("-")[0]
        ranks = place(trainer.global_rank, trainer.local_rank, trainer.world_size)
        run = self.fit.begin(self._read_learning_rate, precision=_PRECISIONS.get(word, ()), **ranks)
        self._listen(trainer, run)

    @tolerant
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Report the batch size, the planned steps and the current step."""
        self._global_step = trainer.global_step
        self._optimizer = next(iter(trainer.optimizers), None)
        several = 1 if pl_module.automatic_optimization else max(len(trainer.optimizers), 1)
        size = getattr(trainer.train_dataloader, "batch_size", None)
        planned = number(trainer.estimated_stepping_batches)
        known = planned is not None and isfinite(planned) and planned > 0
        self._batch_size = size if type(size) is int else 0
        self.fit.plan(steps_planned=planned if known and several == 1 else None)
        run = self.fit.run
        if run is not None:
            if self.fit.counts_samples and self._batch_size:
                run.gauge("batch_size", self._batch_size * trainer.accumulate_grad_batches)
            run.report(step=trainer.global_step // several)
            workers = number(getattr(trainer.train_dataloader, "num_workers", None))
            if workers is not None:
                run.gauge("dataloader_workers", workers)

    @tolerant
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """An epoch begins."""
        if self.fit.run is not None:
            self.fit.run.report(epoch=trainer.current_epoch)

    @tolerant
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A step ended, if an optimizer stepped."""
        run = self.fit.run
        if run is None:
            return
        if self.fit.counts_samples and (found := samples(batch) or self._batch_size):
            run.report(samples=found)
        stepped = trainer.global_step
        # Optimizers that a manual loop steps without Lightning are not counted: there each batch is a step.
        if stepped != self._global_step or (stepped == 0 and not pl_module.automatic_optimization):
            self._global_step = stepped
            run.step()

    @tolerant
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin `evaluation`; outside of a fit it belongs to a run only if one is open."""
        if self.fit.run is not None and self._evaluation is None:
            self._evaluation = self.fit.run.phase("evaluation")
            self._evaluation.__enter__()

    @tolerant
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """End `evaluation`."""
        self._end_evaluation()

    @tolerant
    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        """A batch of an evaluation was computed."""
        self.fit.report_if_due()

    on_test_batch_end = on_predict_batch_end = on_validation_batch_end
    on_test_start = on_predict_start = on_validation_start
    on_test_end = on_predict_end = on_validation_end

    @tolerant
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The training failed, or was interrupted."""
        self._restore()
        self._end_evaluation()
        self.fit.fail(exception)

    @tolerant
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The training is over."""
        if stage == "fit":
            self._restore()
            self.fit.end()

    def _end_evaluation(self) -> None:
        if self._evaluation is not None:
            self._evaluation.__exit__()
            self._evaluation = None

    def _read_learning_rate(self) -> None:
        if self._optimizer is not None and self.fit.run is not None:
            rate = number(self._optimizer.param_groups[0].get("lr"))
            if rate is not None:
                self.fit.run.gauge("learning_rate", rate)

    def _listen(self, trainer: Any, run: Run) -> None:
        """Observe the profiler, the loggers, and what has no action of the profiler."""
        self._restore()
        phases = self._phases = {}

        def observed_start(start: Callable[[str], Any]) -> Callable[[str], Any]:
            def begin(action_name: str) -> Any:
                result = start(action_name)
                if action_name not in phases:
                    phases[action_name] = _phase(run, action_name)
                if (phase := phases[action_name]) is not None:
                    phase.__enter__()
                return result

            return begin

        def observed_stop(stop: Callable[[str], Any]) -> Callable[[str], Any]:
            def end(action_name: str) -> Any:
                if (phase := phases.get(action_name)) is not None:
                    phase.__exit__()
                return stop(action_name)

            return end

        def timed(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
            def change(method: Callable[..., Any]) -> Callable[..., Any]:
                def inside(*args: Any, **kwargs: Any) -> Any:
                    with run.phase(name):
                        return method(*args, **kwargs)

                return inside

            return change

        def read(log: Callable[..., Any]) -> Callable[..., Any]:
            def reading(metrics: Any, *args: Any, **kwargs: Any) -> Any:
                try:
                    run.report(loss=scalar(metrics, *_LOSSES))
                except Exception as error:
                    tolerate(error, "reading what is logged")
                return log(metrics, *args, **kwargs)

            return reading

        self._replace(trainer.profiler, "start", observed_start)
        self._replace(trainer.profiler, "stop", observed_stop)
        self._replace(getattr(trainer, "_logger_connector", None), "log_metrics", timed("logging"))
        for name in ("load_checkpoint", "load_model_state_dict", "load_optimizer_state_dict"):
            self._replace(trainer.strategy, name, timed("restore"))
        for logger in trainer.loggers[:1]:
            self._replace(logger, "log_metrics", read)
        fit_loop = getattr(trainer, "fit_loop", None)
        self._replace(getattr(getattr(fit_loop, "epoch_loop", None), "val_loop", None), "run", timed("evaluation"))
        fetchers = sys.modules.get(f"{type(fit_loop).__module__.rpartition('.')[0]}.fetchers")
        for name in ("_PrefetchDataFetcher", "_DataFetcher"):
            self._wrap(  # starts the loader's workers, and may fetch the first batch
                getattr(fetchers, name, None),
                "__iter__",
                timed("data_wait"),
                lambda fetcher: fetcher is getattr(fit_loop, "_data_fetcher", None),
            )

    def _replace(self, owner: Any, name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Wrap a method of one object, without a trace in the object."""
        kind = next((kind for kind in type(owner).__mro__ if name in vars(kind)), None)
        self._wrap(kind, name, change, lambda other: other is owner)

    def _wrap(
        self,
        kind: Any,
        name: str,
        change: Callable[[Callable[..., Any]], Callable[..., Any]],
        concerns: Callable[[Any], bool],
    ) -> None:
        original = vars(kind).get(name) if kind is not None else None
        if not callable(original):
            return

        @wraps(original)
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            method = partial(original, self)
            return (change(method) if concerns(self) else method)(*args, **kwargs)

        def undo() -> None:
            if vars(kind).get(name) is wrapped:
                setattr(kind, name, original)

        setattr(kind, name, wrapped)
        self._undo.append(undo)

    def _restore(self) -> None:
        while self._undo:
            self._undo.pop()()


def _phase(run: Run, action: str) -> Phase | None:
    """The phase that an action of Lightning's profiler is."""
    if action.endswith("].train_dataloader_next"):
        return run.phase("data_wait")
    if action.endswith("optimizer_step") and not action.startswith("[Callback]"):
        return run.phase("optimizer")
    if action == "save_checkpoint":
        return run.phase("checkpoint")
    if action.startswith("[Strategy]"):
        for hook, name in (("batch_to_device", "host_copy"), ("training_step", "forward"), ("backward", "backward")):
            if action.endswith(f".{hook}"):
                return run.phase(name)
    if action.startswith("[Callback]") and "ProgressBar" in action:
        return run.phase("logging")
    return None


def __getattr__(name: str) -> Any:
    if name != "StallscopeCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Two packages with a class each, of which a program may have either or both.
    packages = [package for package in ("lightning.pytorch", "pytorch_lightning") if sys.modules.get(package)]
    if not packages:
        packages = ["lightning.pytorch" if find_spec("lightning") is not None else "pytorch_lightning"]
    bases = [require(package, "lightning").Callback for package in packages]
    found = type(name, (TrainerEvents, *bases), {"__module__": __name__, "__doc__": __doc__})
    globals()[name] = found
    return found
