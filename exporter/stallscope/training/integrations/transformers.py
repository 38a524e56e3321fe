"""Hugging Face Transformers: a callback that reports what `Trainer` does to a run.

    from stallscope.integrations.transformers import StallscopeCallback

    Trainer(..., callbacks=[StallscopeCallback("my-run")])

Steps are optimizer steps, however many micro-batches each accumulates; samples are counted for each micro-batch.
`data_wait` lasts from the end of a step, its logging, evaluation and save excluded, until all micro-batches of the next
step are fetched; copies to the device belong to it. `forward` is the outermost call of a module, `backward` the
accelerator's backward pass. `logging` contains the trainer's wait for the loss on the device; all times are the host's.
`restore` is the loading of weights and optimizer, and the skipping of batches that an earlier run has seen.

Models stay as they are: methods of classes are wrapped, and module calls are observed while a trainer trains.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from threading import get_ident
from typing import Any

from stallscope.training.integrations.fit import ROLLOUTS, Fit, place, require, samples, scalar, tolerant, wrap
from stallscope.training.shim.run import Run


class TrainerEvents:
    """Behaviour of the callback; `StallscopeCallback` combines it with the framework's own class."""

    def __init__(self, run: Run | str | None = None, **settings: Any) -> None:
        """Store which run to report to.

        Args:
            run: a run, or the name of one that is open or is to be started with the training.
            settings: further arguments of `stallscope.Run`.
        """
        self.fit = Fit(run, "transformers", "pytorch", settings)
        self._calls: Any = None
        self._thread = 0
        self._computing = False
        self._in_forward = False
        self._in_epoch = False
        self._micro_batch = 0.0
        self._floating_point_operations = 0.0
        self._tokens = 0.0
        self._steps = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_calls": None, "_computing": False, "_in_forward": False}

    @tolerant
    def on_init_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Wrap methods of the trainer between which callbacks are not called, once in a process."""
        _widen(require("transformers.trainer", "transformers").Trainer)

    @tolerant
    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Report the batch size, the planned steps and the current step."""
        run = self._begin(args)
        if run is None:
            return
        self._thread = get_ident()
        size = state.train_batch_size or args.train_batch_size
        if getattr(getattr(args, "accelerator_config", None), "split_batches", False):
            size /= max(args.world_size, 1)
        self._micro_batch = size
        if self.fit.counts_samples:
            run.gauge("batch_size", size * args.gradient_accumulation_steps)
        self.fit.plan(steps_planned=state.max_steps)
        run.report(step=state.global_step)
        self._steps = state.global_step
        self._floating_point_operations = state.total_flos
        self._tokens = state.num_input_tokens_seen
        self._observe_calls()

    @tolerant
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """The data loader starts, on from where a checkpoint left it."""
        run = self.fit.run
        if run is None:
            return
        resumed = run.timeline.steps == 0 and state.global_step > 0 and not args.ignore_data_skip
        self._in_epoch = True
        self.fit.enter("restore" if resumed else "data_wait")

    @tolerant
    def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """The batches are there."""
        if self.fit.phase == "restore":
            self.fit.enter("data_wait")  # the loop begins, now that the skipped batches are behind
        self.fit.leave()
        self._computing = True

    @tolerant
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Gradients are clipped."""
        self._computing = False
        self.fit.enter("optimizer")

    @tolerant
    def on_optimizer_step(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """The weights are new."""
        self.fit.leave()

    @tolerant
    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """A step ended, except for its logging, evaluation and save."""
        self._computing = False
        self.fit.leave()
        run = self.fit.run
        if run is None:
            return
        if state.num_input_tokens_seen != self._tokens:  # counted over all ranks
            run.report(tokens=(state.num_input_tokens_seen - self._tokens) / max(args.world_size, 1))
            self._tokens = state.num_input_tokens_seen
        run.step()

    @tolerant
    def on_epoch_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """The data loader is exhausted, which may be followed by logging, evaluation and a save."""
        self._in_epoch = self._computing = False
        self.fit.leave()

    @tolerant
    def on_prediction_step(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """A batch of an evaluation was computed."""
        self.fit.report_if_due()

    @tolerant
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **parts: Any) -> None:
        """Report the numbers that the trainer logs."""
        run = self.fit.run
        if run is None or not logs:
            return
        run.report(
            loss=scalar(logs, "loss"),
            learning_rate=scalar(logs, "learning_rate"),
            gradient_norm=scalar(logs, "grad_norm"),
            epoch=scalar({"epoch": state.epoch}, "epoch"),
        )
        if (found := scalar(logs, "eval_loss")) is not None:
            run.report(eval_loss=found)
        done, steps = state.total_flos - self._floating_point_operations, state.global_step - self._steps
        if done > 0 and steps > 0:  # known only for steps gone by, so what they took on average is taken for the next
            self.fit.plan(flops_per_step=done / steps / max(args.world_size, 1))
            self._floating_point_operations, self._steps = state.total_flos, state.global_step

    @tolerant
    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """The training is over."""
        self._look_away()
        self.fit.end()

    @tolerant
    def _begin(self, args: Any) -> Run | None:
        precision = "bf16" if args.bf16 else "fp16" if args.fp16 else ()
        ranks = place(args.process_index, max(args.local_process_index, 0), args.world_size)
        return self.fit.begin(precision=precision, **ranks)

    def begin_forward(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """Begin `forward`; return whether `end_forward` is to follow."""
        if self.fit.run is None or not self._computing or self._in_forward or get_ident() != self._thread:
            return False
        self._in_forward = True
        self.fit.enter("forward")
        return True

    def end_forward(self) -> None:
        """End `forward`."""
        self._in_forward = False
        self.fit.leave()

    @tolerant
    def _observe_calls(self) -> None:
        from stallscope.training.integrations.pytorch_forward import ModuleCalls

        self._look_away()
        self._calls = ModuleCalls()
        self._calls.listener = self

    def _look_away(self) -> None:
        calls, self._calls = self._calls, None
        self._computing = self._in_forward = False
        if calls is not None:
            calls.undo()

    @tolerant
    def _trained(self, inputs: Any) -> None:
        if self.fit.counts_samples and self.fit.run is not None:
            self.fit.run.report(samples=samples(inputs) or self._micro_batch)

    @tolerant
    def _maintained(self) -> None:
        """A step's logging, evaluation and save are over: the trainer fetches the next batches."""
        if self._in_epoch and self.fit.active:
            self.fit.enter("data_wait")

    @tolerant
    def _failed(self, error: BaseException) -> None:
        self._look_away()
        self.fit.fail(error)


_BETWEEN = {
    "_load_from_checkpoint": "restore",
    "_load_optimizer_and_scheduler": "restore",
    "_load_rng_state": "restore",
    "_load_scaler": "restore",
    "_load_best_model": "restore",
    "_save_checkpoint": "checkpoint",
    "save_model": "checkpoint",
    "evaluate": "evaluation",
    "predict": "evaluation",
}
"""Methods of the trainer that are phases; methods that a version lacks are passed over."""


def _widen(trainer: type) -> None:
    """Have trainers call their own StallscopeCallback, if they have one, where callbacks are not called."""
    wrap(trainer, "train", _reporting_training)
    for name, phase in _BETWEEN.items():
        wrap(trainer, name, _in_phase(phase))
    for name in ("grpo", "rloo"):
        found = sys.modules.get(f"trl.trainer.{name}_trainer")
        for method, phase in ROLLOUTS.items():
            wrap(getattr(found, f"{name.upper()}Trainer", None), method, _in_phase(phase))
    generation = getattr(sys.modules.get("trl.generation.vllm_generation"), "VLLMGeneration", None)
    wrap(generation, "sync_weights", _in_phase("weight_sync", lambda _generation: _training))
    wrap(trainer, "training_step", _counting)
    wrap(trainer, "_maybe_log_save_evaluate", _reporting_maintenance)
    wrap(getattr(require("accelerate", "accelerate"), "Accelerator", None), "backward", _reporting_backward)


_training: TrainerEvents | None = None
"""The callback of the trainer that trains."""


def _callback_of(trainer: Any) -> TrainerEvents | None:
    callbacks = getattr(getattr(trainer, "callback_handler", None), "callbacks", ())
    return next((each for each in callbacks if isinstance(each, TrainerEvents)), None)


def _events(trainer: Any) -> TrainerEvents | None:
    """Return the trainer's callback, if its run is open."""
    found = _callback_of(trainer)
    return None if found is None or found.fit.open_run is None else found


def _in_phase(
    phase: str, events_of: Callable[[Any], TrainerEvents | None] = _events
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            events = events_of(self)
            if events is None:
                return method(self, *args, **kwargs)
            with events.fit.booked(phase):
                return method(self, *args, **kwargs)

        return wrapped

    return make


def _counting(method: Callable[..., Any]) -> Callable[..., Any]:
    def training_step(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, model, inputs, *args, **kwargs)
        if (events := _events(self)) is not None:
            events._trained(inputs)  # noqa: SLF001 - its own file
        return result

    return training_step


def _reporting_maintenance(method: Callable[..., Any]) -> Callable[..., Any]:
    def maybe_log_save_evaluate(self: Any, *args: Any, **kwargs: Any) -> Any:
        events = _events(self)
        if events is None or events.fit.run is None:
            return method(self, *args, **kwargs)
        with events.fit.run.phase("logging") if self.control.should_log else nullcontext():
            result = method(self, *args, **kwargs)
        events._maintained()  # noqa: SLF001
        return result

    return maybe_log_save_evaluate


def _reporting_backward(method: Callable[..., Any]) -> Callable[..., Any]:
    def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        events = _training
        if events is None or events.fit.run is None or get_ident() != events._thread:  # noqa: SLF001
            return method(self, *args, **kwargs)
        with events.fit.run.phase("backward"):
            return method(self, *args, **kwargs)

    return backward


def _reporting_training(method: Callable[..., Any]) -> Callable[..., Any]:
    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _training
        events = _callback_of(self)
        if events is None:
            return method(self, *args, **kwargs)
        events._begin(self.args)  # noqa: SLF001
        before, _training = _training, events
        try:
            return method(self, *args, **kwargs)
        except BaseException as error:
            events._failed(error)  # noqa: SLF001
            raise
        finally:
            _training = before

    return train


def __getattr__(name: str) -> Any:
    if name != "StallscopeCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    base = require("transformers", "transformers").TrainerCallback
    found = type(name, (TrainerEvents, base), {"__module__": __name__, "__doc__": __doc__})
    globals()[name] = found
    return found
