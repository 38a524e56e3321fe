"""Hugging Face Transformers: a callback that tells a run what `Trainer` does.

    from stallscope.integrations.transformers import StallscopeCallback

    Trainer(..., callbacks=[StallscopeCallback("my-run")])

Steps are optimizer steps, however many micro-batches each accumulates. `data_wait` is the time from the end of a step,
its logging, evaluation and save aside, until all micro-batches of the next are there (on the device's queue: copies
belong to it). `forward` is the model's call; `backward` what follows until gradients are clipped, of each micro-batch;
both stay in `other` where the model is compiled, since looking into it would break its graph, and where one process
drives several GPUs. `logging` contains the trainer's wait for the loss on the device; all times are the host's.
`restore` is the loading of weights and optimizer, and the skipping of batches already seen.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from stallscope.shim.integrations.fit import Fit, require, scalar, tolerant
from stallscope.shim.run import Run


class TrainerEvents:
    """What the callback does; `StallscopeCallback` is this and the framework's own class."""

    def __init__(self, run: Run | str | None = None, **settings: Any) -> None:
        """Remember which run to tell.

        Args:
            run: a run, or the name of one that is open or is to be started with the training.
            settings: further arguments of `stallscope.Run`.
        """
        self.fit = Fit(run, "transformers", "pytorch", settings)
        self._hooks: list[Any] = []
        self._computing = False
        self._floating_point_operations = 0.0
        self._tokens = 0.0
        self._steps = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_hooks": [], "_computing": False}

    @tolerant
    def on_init_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Learn of what callbacks aren't told, once for each process."""
        _widen(require("transformers.trainer", "transformers").Trainer)

    @tolerant
    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Tell what steps are worth, and where the training stands."""
        self._begin(args)
        size = state.train_batch_size or args.train_batch_size
        if getattr(getattr(args, "accelerator_config", None), "split_batches", False):
            size /= max(args.world_size, 1)
        self.fit.plan(samples_per_step=size * args.gradient_accumulation_steps, steps_planned=state.max_steps)
        run = self.fit.run
        if run is not None:
            run.report(step=state.global_step)
        self._steps = state.global_step
        self._floating_point_operations = state.total_flos
        self._tokens = state.num_input_tokens_seen
        if args.n_gpu <= 1:  # several would call the hooks from a thread each
            self._look_into(parts.get("model"), args)

    @tolerant
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """The data loader starts, on from where a checkpoint left it."""
        run = self.fit.run
        if run is None:
            return
        resumed = run.timeline.steps == 0 and state.global_step > 0 and not args.ignore_data_skip
        self.fit.enter("restore" if resumed else "data_wait")

    @tolerant
    def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """The batches are there."""
        if self.fit.phase == "restore":
            self.fit.enter("data_wait")  # the loop begins, now that the skipped batches are behind
        self.fit.leave()
        self._computing = True

    @tolerant
    def on_substep_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """A micro-batch's gradients are added."""
        self.fit.leave()

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
        """A step ended; what comes next is known by what the flow asks for."""
        self._computing = False
        self.fit.leave()
        run = self.fit.run
        if run is None:
            return
        if state.num_input_tokens_seen != self._tokens:  # counted over all ranks
            run.report(tokens=(state.num_input_tokens_seen - self._tokens) / max(args.world_size, 1))
            self._tokens = state.num_input_tokens_seen
        run.step()
        self._follow(control)

    @tolerant
    def on_epoch_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """The data loader is exhausted, which may be followed by logging, evaluation and a save."""
        self.fit.leave()
        if control.should_log:
            self.fit.enter("logging")

    @tolerant
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **parts: Any) -> None:
        """Take over the numbers that the trainer has made of its tensors."""
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
        if self.fit.phase == "logging":
            self._follow(control)

    @tolerant
    def on_evaluate(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """An evaluation ended."""
        if self.fit.active and not self.fit.phase:
            self._follow(control)

    @tolerant
    def on_save(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """A checkpoint was written."""
        if self.fit.active and not self.fit.phase:
            self._follow(control)

    @tolerant
    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """The training is over."""
        self._look_away()
        self.fit.end()

    def _follow(self, control: Any) -> None:
        if control.should_log:
            self.fit.enter("logging")
        elif control.should_evaluate or control.should_save:
            self.fit.leave()
        else:
            self.fit.enter("data_wait")

    def _begin(self, args: Any) -> None:
        precision = "bf16" if args.bf16 else "fp16" if args.fp16 else ()
        place = {}
        if args.world_size > 1:  # alone, the trainer knows less than the launcher's variables may
            place = {
                "rank": args.process_index,
                "local_rank": max(args.local_process_index, 0),
                "world_size": args.world_size,
            }
        self.fit.begin(precision=precision, **place)

    def _look_into(self, model: Any, args: Any) -> None:
        self._look_away()
        compiled = args.torch_compile or hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None)
        if model is None or compiled:
            return

        def begin(module: Any, _: Any) -> None:
            if self._computing:
                self.fit.enter("forward")

        def end(module: Any, _: Any, __: Any) -> None:
            if self._computing:
                self.fit.enter("backward")

        self._hooks = [model.register_forward_pre_hook(begin), model.register_forward_hook(end)]

    def _look_away(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @tolerant
    def _started(self, args: Any) -> None:
        self._begin(args)

    @tolerant
    def _failed(self, error: BaseException) -> None:
        self._look_away()
        self.fit.fail(error)


_BETWEEN = {
    "_load_from_checkpoint": "restore",
    "_load_optimizer_and_scheduler": "restore",
    "_load_best_model": "restore",
    "_save_checkpoint": "checkpoint",
    "evaluate": "evaluation",
    "predict": "evaluation",
}
"""What the trainer tells callbacks only when it is over; methods that a version lacks are passed over."""


def _widen(trainer: type) -> None:
    """Have trainers tell their own StallscopeCallback, if they have one, of the beginnings and ends that matter."""
    if getattr(trainer.train, "tells_stallscope", False):  # type: ignore[attr-defined]
        return
    trainer.train = _telling_of_training(trainer.train)  # type: ignore[attr-defined]
    for name, phase in _BETWEEN.items():
        if hasattr(trainer, name):
            setattr(trainer, name, _telling_of(getattr(trainer, name), phase))


def _events(trainer: Any) -> TrainerEvents | None:
    handler = getattr(trainer, "callback_handler", None)
    return next((each for each in getattr(handler, "callbacks", ()) if isinstance(each, TrainerEvents)), None)


def _telling_of(method: Callable[..., Any], phase: str) -> Callable[..., Any]:
    @wraps(method)
    def told(self: Any, *args: Any, **kwargs: Any) -> Any:
        events = _events(self)
        if events is None or events.fit.run is None:
            return method(self, *args, **kwargs)
        with events.fit.run.phase(phase):
            return method(self, *args, **kwargs)

    return told


def _telling_of_training(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def told(self: Any, *args: Any, **kwargs: Any) -> Any:
        events = _events(self)
        if events is None:
            return method(self, *args, **kwargs)
        events._started(self.args)  # noqa: SLF001 - its own file
        try:
            return method(self, *args, **kwargs)
        except BaseException as error:
            events._failed(error)  # noqa: SLF001
            raise

    told.tells_stallscope = True  # type: ignore[attr-defined]
    return told


def __getattr__(name: str) -> Any:
    if name != "StallscopeCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    base = require("transformers", "transformers").TrainerCallback
    found = type(name, (TrainerEvents, base), {"__module__": __name__, "__doc__": __doc__})
    globals()[name] = found
    return found
