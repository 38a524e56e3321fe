"""What a PyTorch loop does, as its data loaders, models, autograd and optimizers show it, told to a run."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch

from stallscope.shim.integrations.pytorch_device import DeviceClock, ReducerClock, Span, tell_allocator
from stallscope.shim.integrations.pytorch_forward import Forward
from stallscope.shim.run import Run
from stallscope.shim.timeline import Phase
from stallscope.shim.tolerance import number, tolerate

_BATCHES_WITHOUT_OPTIMIZER = 64
"""Batches after which, where no optimizer was seen to step, each batch is held to be a step (a compiled optimizer)."""
_ATTRIBUTE = "_stallscope_pass"
_PRECISIONS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


class Pass:
    """What is known of one pass over a loader, kept on its iterator."""

    __slots__ = ("batch_size", "told", "training", "workers")

    def __init__(self, batch_size: object, workers: object, told: bool | None) -> None:
        self.batch_size = batch_size if type(batch_size) is int else 0
        self.workers = workers
        self.told = told  # whether it is for training, as the user says
        self.training: bool | None = None  # until the first batch is asked for


class Models:
    """Models that a loop may be about, held weakly: they are made before it begins."""

    def __init__(self) -> None:
        self.asked: weakref.WeakSet[Any] = weakref.WeakSet()
        """Whose parameters somebody asked for, perhaps for an optimizer."""
        self.reduced: weakref.WeakSet[Any] = weakref.WeakSet()
        """Whose gradients `DistributedDataParallel` reduces over ranks."""


class Loop:
    """One loop: which of what happens belongs to it, and to which phase.

    It holds models, optimizers and loaders weakly. All of it happens in the thread that made it: what other threads
    do (prefetchers, replicas of `DataParallel`) goes unseen, as does everything in forked processes.
    """

    def __init__(
        self,
        run: Run,
        models: Iterable[Any] = (),
        optimizers: Iterable[Any] = (),
        loaders: Iterable[Any] = (),
        *,
        known: Models | None = None,
        counts_samples: bool = True,
    ) -> None:
        """Begin to watch.

        Args:
            run: what is told.
            models: whose calls are `forward`; none: the outermost modules whose parameters an optimizer has.
            optimizers: whose steps count; none: all.
            loaders: that are trained from, any other being for evaluation; none: those iterated over with gradients
                switched on and a model in training mode.
            known: models seen so far.
            counts_samples: whether batches tell how many samples there were.
        """
        self.run = run
        self.device: DeviceClock | None = None
        self.gpu_found: Callable[[], None] | None = None
        """Called once CUDA is there."""
        self._thread = get_ident()
        self._closed = False
        self._optimizers = weakref.WeakSet(optimizers)
        self._all_optimizers = not self._optimizers
        self._loaders = weakref.WeakSet(loaders)
        self._all_loaders = not self._loaders
        self._counts_samples = counts_samples
        self._wait = run.phase("data_wait")
        self._copy = run.phase("host_copy")
        self._forward = run.phase("forward")
        self._backward = run.phase("backward")
        self._communication = run.phase("communication")
        self._optimizing = run.phase("optimizer")
        self._evaluation = run.phase("evaluation")
        self._evaluated: weakref.ref[Any] | None = None
        self._steps = run.timeline.steps
        self._others_step = False
        self._cycle: set[int] = set()  # optimizers that stepped since the boundary
        self._newest = 0  # optimizer that stepped
        self._stepped = 0.0  # when, in seconds of the run's clock
        self._closing = 0  # the one that was the last of its cycle
        self._exhausted = False  # whether the newest pass has no more batches
        self._batches = 0  # since the boundary
        self._all_batches = 0
        self._samples = 0
        self._backwards = 0  # since an optimizer stepped
        self._backwards_before = 0  # when the present one began to
        self._optimizer_steps = 0
        self._skipped = 0
        self._inside: list[int] = []
        self._optimizer_span: Span | None = None
        self._calls: list[tuple[bool, Span | None]] = []
        self._known = Models() if known is None else known
        self._forwards: weakref.WeakKeyDictionary[Any, Forward] = weakref.WeakKeyDictionary()
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._reducers: weakref.WeakKeyDictionary[Any, ReducerClock] = weakref.WeakKeyDictionary()
        self._graphs = _compiled_graphs() or 0
        self._precision_told = bool(getattr(run, "_precision", ()))
        for model in models:
            self._time(model)
        self._models_told = bool(self._forwards)
        run.watch(self._refresh)

    @property
    def over(self) -> bool:
        """Whether the run has ended, or belongs to the process that this one was forked from."""
        return self.run.silent

    def close(self) -> None:
        """Watch no more."""
        self._closed = True
        for forward in self._forwards.values():
            forward.remove()
        self._leave_optimizers()
        self._end_evaluation()

    # Data loaders

    def begin_pass(self, loader: Any, begin: Callable[[Any], Any]) -> Any:
        """A loader is iterated over, for which its workers start."""
        if self._timed_elsewhere():
            return begin(loader)
        told = None if self._all_loaders else loader in self._loaders
        if self._trains() if told is None else told:
            self._end_evaluation()
            iterator = self._waited(begin, loader)
        else:
            iterator = self._evaluates(begin, loader)
        try:
            setattr(iterator, _ATTRIBUTE, Pass(_batch_size(loader), loader.num_workers, told))
        except Exception as error:
            tolerate(error, "looking at a data loader")
        return iterator

    def next_batch(self, iterator: Any, following: Callable[[Any], Any]) -> Any:
        """A loader's iterator is asked for a batch."""
        if self._timed_elsewhere():
            return following(iterator)
        if not self._is_training(iterator):
            return self._evaluated_batch(iterator, following)
        self._end_evaluation()
        self._exhausted = True
        batch = self._waited(following, iterator)
        self._exhausted = False
        self._batches += 1
        self._all_batches += 1
        self._samples += iterator.__dict__[_ATTRIBUTE].batch_size
        return batch

    def _waited(self, function: Callable[[Any], Any], argument: Any) -> Any:
        wait = self._wait
        self._leave_optimizers()
        if not (self._step_is_over() and self._mark(wait)):
            wait.__enter__()
        try:
            return function(argument)
        finally:
            wait.__exit__()

    def _timed_elsewhere(self) -> bool:
        # A tracked loader times its own wait, and an integration that claimed the run what it knows of.
        return self._elsewhere() or self._wait.opened or self.run.claimed_by != ""

    def _is_training(self, iterator: Any) -> bool:
        try:
            found: Pass | None = iterator.__dict__.get(_ATTRIBUTE)
            if found is None:
                found = Pass(None, None, None)
                setattr(iterator, _ATTRIBUTE, found)
            if found.training is None:
                found.training = self._trains() if found.told is None else found.told
                if found.training:
                    self.run.begin_pass()
                    self._tell_loader(found)
            return found.training
        except Exception as error:
            tolerate(error, "looking at a data loader")
            return True

    def _trains(self) -> bool:
        if not torch.is_grad_enabled():
            return False
        models = list(self._forwards)
        return not models or any(model.training for model in models)

    def _tell_loader(self, found: Pass) -> None:
        if number(found.workers) is not None:
            self.run.gauge("dataloader_workers", found.workers)
        if found.batch_size and self.run.batch_size is None:
            self.run.gauge("batch_size", found.batch_size)

    def _evaluates(self, begin: Callable[[Any], Any], loader: Any) -> Any:
        if self._evaluated is not None:
            return begin(loader)
        self._begin_evaluation()
        try:
            iterator = begin(loader)
        except BaseException:
            self._evaluation.__exit__()
            raise
        self._evaluated = weakref.ref(iterator, self._dropped)
        return iterator

    def _evaluated_batch(self, iterator: Any, following: Callable[[Any], Any]) -> Any:
        if self._evaluated is None:
            self._begin_evaluation()
            self._evaluated = weakref.ref(iterator, self._dropped)
        try:
            return following(iterator)
        except BaseException:
            if self._evaluated is not None and self._evaluated() is iterator:
                self._end_evaluation()
            raise

    def _dropped(self, reference: weakref.ref[Any]) -> None:
        """The loop over an evaluation loader was left early."""
        if reference is self._evaluated and not self._elsewhere():
            self._end_evaluation()

    def _begin_evaluation(self) -> None:
        self._leave_optimizers()
        if self._step_is_over():
            self._mark()
        self._evaluation.__enter__()

    def _end_evaluation(self) -> None:
        if self._evaluated is not None:
            self._evaluated = None
            self._evaluation.__exit__()

    # Models

    def compiled(self, model: Any, original: Any) -> None:
        """A model was compiled: what is looked into from inside it would break its graph."""
        if original in self._forwards:
            self._time(model)

    @contextmanager
    def unhooked(self) -> Iterator[None]:
        """Leave models without hooks for a while."""
        for forward in self._forwards.values():
            forward.remove()
        try:
            yield
        finally:
            for forward in self._forwards.values():
                forward.attach()

    def begin_forward(self, model: Any) -> None:
        """A model is called."""
        # Before the loop, a call without gradients is a trial, and no first step.
        if self._elsewhere() or not (self.run.timeline.looping or torch.is_grad_enabled()):
            self._calls.append((False, None))
            return
        if not self._precision_told:
            self._tell_precision(model)
        self._calls.append((True, self._enter(self._forward)))

    def end_forward(self) -> None:
        """It returned, or raised."""
        if self._calls:
            timed, span = self._calls.pop()
            if timed:
                self._leave(self._forward, span)

    def _time(self, model: Any) -> None:
        forward = self._forwards.get(model)
        if forward is None:
            forward = self._forwards[model] = Forward(self, model)
        forward.attach()

    def _find_models(self, optimizer: Any) -> None:
        """Watch the outermost modules among those whose parameters this optimizer has."""
        updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        owners = [
            model
            for model in list(self._known.asked)
            if any(id(parameter) in updated for parameter in model.parameters())
        ]
        inner = {id(part) for owner in owners for part in owner.modules() if part is not owner}
        for owner in owners:
            if id(owner) not in inner:
                self._time(owner)

    def _tell_precision(self, model: Any) -> None:
        self._precision_told = True
        try:
            parameter = next(iter(model.parameters()), None)
            if parameter is None or not hasattr(torch, "get_autocast_dtype"):  # PyTorch 2.3 doesn't tell for sure
                return
            kind = parameter.device.type
            dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else parameter.dtype
            found = _PRECISIONS.get(dtype)
            if found == "fp32" and kind == "cuda" and torch.get_float32_matmul_precision() != "highest":
                found = "tf32"
            if found is not None:
                self.run.describe(precision=found)
        except Exception as error:
            tolerate(error, "looking at a model")

    # Gradients and optimizers

    def backward(self, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Gradients are computed."""
        if self._elsewhere():
            return function(*arguments, **options)
        self._end_evaluation()
        self._backwards += 1
        span = self._enter(self._backward)
        try:
            return function(*arguments, **options)
        finally:
            self._leave(self._backward, span)

    def begin_optimizer(self, optimizer: Any) -> None:
        """An optimizer begins its step. One that is called by another is a part of it."""
        if self._elsewhere() or not self._counts(optimizer):
            return
        key = id(optimizer)
        if key in self._inside and self._backwards > self._backwards_before:
            self._leave_optimizers()  # its last step was left by an exception; else one class calls another's step
        if not self._inside:
            self._end_evaluation()
            if optimizer not in self._seen:
                self._seen.add(optimizer)
                self._look_for_gpu()
                if not self._models_told:
                    self._find_models(optimizer)
            if key in self._cycle and self._backwards and not self.run.claimed_by:
                self._mark()  # several steps with one batch
                self._batches = 1
            self._backwards_before = self._backwards
            self._optimizer_span = self._enter(self._optimizing)
        self._inside.append(key)

    def end_optimizer(self, optimizer: Any) -> None:
        """It stepped."""
        key = id(optimizer)
        if self._elsewhere() or key not in self._inside:
            return
        while self._inside.pop() != key:  # one inside was left by an exception
            pass
        if self._inside:
            return
        self._leave(self._optimizing, self._optimizer_span)
        self._optimizer_steps += 1
        self._backwards = 0
        self._newest = key
        self._stepped = self.run.moment
        if self._batches:
            self._cycle.add(key)  # the step lasts until the loop asks for the next batch
            if self._exhausted and self._closing in (0, key):  # which it has done already, if its loader fetches ahead
                self._mark()
        elif not self.run.claimed_by and not self._someone_else_steps():
            self.run.optimizer_step(optimizer)
            self._steps = self.run.timeline.steps

    def scaled_step(self, scaler: Any, function: Callable[..., Any], arguments: tuple[Any, ...], options: Any) -> Any:
        """A gradient scaler steps its optimizer, or leaves it where gradients are not finite."""
        if self._elsewhere():
            return function(scaler, *arguments, **options)
        before = self._optimizer_steps
        result = function(scaler, *arguments, **options)
        if scaler.is_enabled():
            self._skipped += self._optimizer_steps == before
            self.run.report(amp_skipped_steps=self._skipped)
        return result

    def _counts(self, optimizer: Any) -> bool:
        return self._all_optimizers or optimizer in self._optimizers

    def _leave_optimizers(self) -> None:
        if self._inside:
            self._inside.clear()
            self._optimizing.__exit__()
            if self.device is not None:
                self.device.forget_open()

    # Copies and communication

    def copied(self, tensor: Any, function: Callable[..., Any], arguments: tuple[Any, ...], options: Any) -> Any:
        """A tensor is moved to the GPU, perhaps from the host's memory."""
        if self.device is None or not tensor.is_cpu or self._elsewhere() or not self.run.timeline.looping:
            return function(tensor, *arguments, **options)
        span = self._enter(self._copy)
        try:
            return function(tensor, *arguments, **options)
        finally:
            self._leave(self._copy, span)

    def communicated(self, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Ranks are talked to."""
        if self._elsewhere() or not self.run.timeline.looping:
            return function(*arguments, **options)
        self._communication.__enter__()
        # On a stream of its own, communication goes on beside the computing, and holds nobody up.
        beside = self.device is None or self._communication.hidden or not self.device.on_main_stream()
        span = None if beside or self.device is None else self.device.begin("communication")
        try:
            return function(*arguments, **options)
        finally:
            self._leave(self._communication, span)

    # Steps

    def _step_is_over(self) -> bool:
        if self._cycle:
            return True
        return self._batches > 0 and self._optimizer_steps == 0 and self._all_batches >= _BATCHES_WITHOUT_OPTIMIZER

    def _mark(self, opening: Phase | None = None) -> bool:
        """Mark a step's boundary, unless somebody else marks them; tell whether the opening phase is open."""
        self._cycle.clear()
        self._batches = 0
        self._closing = self._newest
        if not self._someone_else_steps():
            timeline = self.run.timeline
            timeline.step(opening)
            self._steps = timeline.steps
        return opening is not None and opening.opened

    def _someone_else_steps(self) -> bool:
        if self.run.timeline.steps != self._steps:
            self._others_step = True
        return self._others_step

    def _elsewhere(self) -> bool:
        return self.run.silent or get_ident() != self._thread

    def _enter(self, phase: Phase) -> Span | None:
        phase.__enter__()
        return None if self.device is None or phase.hidden else self.device.begin(phase.name)

    def _leave(self, phase: Phase, span: Span | None) -> None:
        if self.device is not None:
            self.device.end(span)
        phase.__exit__()

    # What reports tell

    def _refresh(self) -> None:
        if self._closed:
            return
        if self.run.ending and self._cycle and not self._someone_else_steps():
            self._cycle.clear()  # the loop was left before its loader's end, as one of so many steps is
            self.run.timeline.end_last_step(self._stepped)
        if self._samples and self._counts_samples and self.run.batch_size is None:
            self.run.add("samples", self._samples)
        self._samples = 0
        graphs = _compiled_graphs()
        if graphs is not None:
            before, self._graphs = self._graphs, graphs
            self.run.add("recompilations", graphs - before if graphs >= before else graphs)
        self._look_for_gpu()
        if self.device is not None:
            self.device.read()
            tell_allocator(torch.cuda, self.run)
            for model in self._known.reduced:
                if waited := self._reducers.setdefault(model, ReducerClock()).read(model):
                    self.device.move("backward", "communication", waited)

    def _look_for_gpu(self) -> None:
        if self.device is None and torch.cuda.is_initialized():
            self.device = DeviceClock(torch.cuda, self.run)
            if self.gpu_found is not None:
                self.gpu_found()


def _compiled_graphs() -> int | None:
    """Graphs that `torch.compile` made in this process, or since it was reset; None where it isn't in use."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return None if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])


def _batch_size(loader: Any) -> object:
    """Samples in each batch of this process; Accelerate's sampler may split one between several."""
    if loader.batch_size is not None:
        return loader.batch_size
    sampler = loader.batch_sampler
    size = getattr(sampler, "batch_size", None)
    return size // sampler.num_processes if getattr(sampler, "split_batches", False) else size
