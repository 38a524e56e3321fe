"""Attribute the time of a PyTorch loop to steps and phases, from what its loaders, modules and optimizers do.

What trains is decided by a backward pass. Until one follows, time is booked as if it trained or evaluated as before, no
report is sent, and `Timeline.rebook` moves the time once it is known.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterable
from threading import Thread, current_thread, get_ident
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.nn.modules.loss import _Loss

from stallscope.training.integrations.pytorch_batches import Pass, unobserved
from stallscope.training.integrations.pytorch_callers import Callers
from stallscope.training.integrations.pytorch_captures import Captures
from stallscope.training.integrations.pytorch_cost import Overhead, TimedLoop
from stallscope.training.integrations.pytorch_cycle import BY_HAND, IN_STEP, StepCycle
from stallscope.training.integrations.pytorch_device import DeviceClock, ReducerClock, Span, report_allocator
from stallscope.training.integrations.pytorch_evaluation import BETWEEN, EVALUATING, SUSPECTED, TRAINING, Evaluations
from stallscope.training.integrations.pytorch_forward import ModuleCalls
from stallscope.training.integrations.pytorch_input import LoopInput
from stallscope.training.integrations.pytorch_steady import SHORT, SteadyLoop
from stallscope.training.integrations.pytorch_updates import Updates
from stallscope.training.shim import rebooking
from stallscope.training.shim.run import Run
from stallscope.training.shim.timeline import ROLLOUT_PHASES, Phase
from stallscope.training.shim.tolerance import number, tolerate

if TYPE_CHECKING:
    from stallscope.training.integrations.pytorch_before import Before
    from stallscope.training.shim.rebooking import Snapshot

_AT_ONCE = 0.05
"""Seconds after which the making of a loader's iterator no longer belongs to the wait for its first batch."""
_USUAL = 2
"""Steps in a row without calls that compute no gradients, after which such a call evaluates: else it is a part of each
step, as the choice of an action is in reinforcement learning."""
_MOST_AHEAD = 2
"""Batches that a loader may be ahead of the loop; more were passed over."""
_MOST_MODULES = 4096
_PATIENCE = 16
"""Updates by the program after which an optimizer that was never seen to step is held not to be in use."""
_PRECISIONS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


Method = TypeVar("Method", bound=Callable[..., Any])


def guarded(method: Method) -> Method:
    """Log a mistake of the observing once, and let the training go on as if nothing had been observed."""

    @functools.wraps(method)
    def safe(self: Any, *arguments: Any) -> Any:
        try:
            return method(self, *arguments)
        except Exception as error:
            tolerate(error, "observing a loop")
            return None

    return safe  # type: ignore[return-value]  # the same arguments, and falsehood in place of an error


class Module:
    """State of a module that was called."""

    __slots__ = ("compared_with", "is_loss", "is_observed", "is_part", "module", "trains")

    def __init__(self, module: Any, belongs: bool) -> None:
        self.module = weakref.ref(module)
        self.is_observed = belongs and next(iter(torch.nn.Module.parameters(module)), None) is not None
        """True if the module has parameters, and is one of the named models if there are any."""
        self.is_loss = isinstance(module, _Loss)
        self.trains = False
        """True if gradients were computed after it was called with them."""
        self.is_part = False
        """True if it is a part of a module that is trained."""
        self.compared_with = 0
        """Trained modules that were known when `is_part` was set."""


class Loop:
    """One loop: which events belong to it, and to which phase.

    It holds modules, optimizers and loaders weakly. The loop belongs to the thread that computes gradients and steps
    the optimizers. Other threads are not part of it, nor are forked processes; loaders that are iterated in other
    threads only add to the value `prefetch_seconds`, unless that thread trains a model of its own.
    """

    def __init__(
        self,
        run: Run,
        models: Iterable[Any] = (),
        optimizers: Iterable[Any] = (),
        loaders: Iterable[Any] = (),
        *,
        calls: ModuleCalls,
        reduced: Iterable[Any],
        before: Before,
        direct: Callable[[Any], None],
        gpu_found: Callable[[], None],
        has_optimizers: bool,
        counts_samples: bool,
    ) -> None:
        """Begin to observe.

        Args:
            run: receives steps and phases.
            models: modules whose calls are `forward`; none: the outermost modules that have parameters.
            optimizers: whose steps count; none: all.
            loaders: that are trained from, any other being for evaluation; none: as predicted and then observed.
            calls: the observed calls of modules.
            reduced: models whose gradients `DistributedDataParallel` reduces over ranks.
            before: what happened before the loop began.
            direct: directs what happens to another observer for a while.
            gpu_found: called once CUDA is initialised.
            has_optimizers: whether the program has optimizers of PyTorch.
            counts_samples: whether to count samples by the size of batches.
        """
        self.run = run
        self.device: DeviceClock | None = None
        self._gpu_found = gpu_found
        self._thread = get_ident()
        self._is_owner = False  # whether gradients were computed in that thread
        self._others: weakref.WeakSet[Thread] = weakref.WeakSet()  # that compute gradients: they prefetch nothing
        self.is_closed = False
        """True once the loop is no longer observed."""
        self._timeline = run.timeline
        self._now = run.timeline.now
        self.calls = calls
        self._models = weakref.WeakSet(models)
        self._all_models = not self._models
        self._optimizers = weakref.WeakSet(optimizers)
        self.all_optimizers = not self._optimizers
        self._loaders = weakref.WeakSet(loaders)
        self._all_loaders = not self._loaders
        self._reduced = reduced
        self._counts_samples = counts_samples
        self._wait = run.phase("data_wait")
        self._copy = run.phase("host_copy")
        self._forward = run.phase("forward")
        self._backward = run.phase("backward")
        self._communication = run.phase("communication")
        self._optimizing = run.phase("optimizer")
        self._steps = run.timeline.steps
        self._others_step = False
        # Loaders
        self._passes: weakref.WeakKeyDictionary[Any, Pass] = weakref.WeakKeyDictionary()
        self._roles: weakref.WeakKeyDictionary[Any, dict[bool, bool]] = weakref.WeakKeyDictionary()
        self._fetched: list[Pass] = []  # passes with batches since the last backward pass
        self._waits = -1 if self._wait.opened else self._wait.occurrences  # others are the program's own
        self._pass: Pass | None = None  # of the newest batch
        self._samples = 0
        self._prefetching = 0.0
        # Modules and gradients
        self.modules: dict[int, Module] = {}
        self._called: list[Module] = []  # with gradients, of which no backward pass is known
        self._forwards = 0
        self._forwards_before = 0  # the last backward pass
        self._is_forward = False  # whether the call under way is one
        self._span: Span | None = None
        self._evaluations = Evaluations(run.timeline, run.phase("evaluation"), self._close_step, self._begin_input)
        self._called_between = 0  # steps at the newest call without gradients between two of them
        self._callers = Callers()
        self._before = before
        self._input = LoopInput(run)
        run.timeline.input_functions = self._input.sampled
        self._input.functions |= before.functions
        self._input.sampled |= before.functions
        # Optimizers
        self._cycle = StepCycle()
        self._stepped = 0.0  # seconds of the step by then
        self._backwards_before = 0  # when the present one began to
        self.optimizer_steps = 0
        """Steps of optimizers."""
        self._skipped = 0
        self._inside: list[int] = []
        self.optimizer_span: Span | None = None
        self._updates: Updates | None = Updates(_PATIENCE if has_optimizers else 0)
        self._captures = Captures()
        self._reducers: weakref.WeakKeyDictionary[Any, ReducerClock] = weakref.WeakKeyDictionary()
        self._graphs = _compiled_graphs() or 0
        self._precision_known = bool(getattr(run, "_precision", ()))
        self._plain_steps = 0  # in a row
        self._ended = 0.0  # the newest step of an optimizer, in seconds of the run's clock
        self._steady: SteadyLoop | None = SteadyLoop(self, direct)
        self._timed: TimedLoop | None = None if run.is_scripted else TimedLoop(self, direct)
        self._overhead = Overhead(run)
        direct(self)
        if self._timed is not None:
            self._timed.added(self)
        run.watch(self._refresh)

    @property
    def misses_steps(self) -> bool:
        """True if gradients were computed, and no step was found."""
        return self._is_owner and self._timeline.steps == 0

    def close(self) -> None:
        """Stop observing."""
        if self._steady is not None:
            self._steady.end()
        self.is_closed = True
        self._timed = self._steady = None
        self._timeline.held = False
        self._input.end()
        self._leave_optimizers()
        self._evaluations.end()

    # Data loaders

    def begin_pass(self, loader: Any, begin: Callable[[Any], Any]) -> Any:
        """Let a loader make its iterator, for which its workers start."""
        made = self._new_pass(loader)
        if made is None:
            return begin(loader)
        if made.trains is False:
            iterator = begin(loader)
        elif made.is_prefetched:
            iterator = self._prefetched(begin, loader)
        elif self._timeline.looping:
            iterator = self._waited(begin, loader)
        else:
            iterator = begin(loader)
        self._keep_pass(iterator, made)
        return iterator

    def next_batch(self, iterator: Any, following: Callable[[Any], Any]) -> Any:
        """Let a loader's iterator return its next batch."""
        found = self._pass
        if found is None or found.iterator() is not iterator or not self._is_training(found):
            found = self._begin_fetch(iterator)
            if found is None:
                return following(iterator)
            if found.is_prefetched:
                batch = self._prefetched(following, iterator)
                self._take(found, found.dimension(batch))
                return batch
            if found.is_evaluated:
                return self._evaluated_batch(found, iterator, following)
            self._pass = found
        self.begin_fetch(found)
        self.calls.ignored = True
        try:
            batch = following(iterator)
        except BaseException as error:
            self.calls.ignored = False
            self.fail_fetch(found, iterator, error)
            raise
        self.calls.ignored = False
        self.end_fetch(found, found.dimension(batch))
        return batch

    def begin_fetch(self, found: Pass) -> None:
        """Begin the wait for a batch of a pass that trains."""
        self._cycle.is_waiting = True
        self._begin_wait(self._wait)

    def end_fetch(self, found: Pass, dimension: int) -> None:
        """End the wait with a batch of this leading dimension."""
        self._end_wait()
        self._timeline.held = True
        self._cycle.fetched()
        self._take(found, dimension)
        if not self._input.has_modules:
            self._begin_input()

    def fail_fetch(self, found: Pass, iterator: Any, error: BaseException) -> None:
        """End the wait without a batch."""
        self._end_pass(found, iterator, error)
        self._end_wait()

    def _evaluated_batch(self, found: Pass, iterator: Any, following: Callable[[Any], Any]) -> Any:
        self._pass = None
        self._cycle.is_waiting = False
        try:
            return following(iterator)
        except BaseException as error:
            self._end_pass(found, iterator, error)
            raise

    def _is_training(self, found: Pass) -> bool:
        """Return whether a pass that trains goes on as it did with its last batch, which needs no decision."""
        return bool(
            found.trains
            and self._evaluations.state is TRAINING
            and not self._wait.opened
            and not self._input.is_open
            and get_ident() == self._thread
            and not self.run.silent
            and not self.run.claimed_by
            and torch.is_grad_enabled()
            and not found.is_prefetched
        )

    @guarded
    def _new_pass(self, loader: Any) -> Pass | None:
        gradients = torch.is_grad_enabled()
        if self._elsewhere():
            if current_thread() in self._others:
                return None
            return Pass(loader, True, True, gradients, is_prefetched=True)
        if self._timed_elsewhere():
            return None
        trains = None if self._all_loaders else loader in self._loaders
        predicted = self._predict(loader, gradients) if trains is None else trains
        if trains is None and not gradients and not predicted:
            trains = False
        made = Pass(loader, trains, predicted, gradients)
        if trains is False:
            if self._evaluations.state is not EVALUATING:
                self._open_evaluation()
        else:
            self._close_for_training()
            made.before = rebooking.snapshot(self._timeline)
        return made

    @guarded
    def _keep_pass(self, iterator: Any, made: Pass) -> None:
        made.ended = self._timeline.now()
        made.iterator = weakref.ref(iterator)
        self._passes[iterator] = made
        if not made.is_prefetched:
            self._pass = None
        if made.trains is False and self._evaluations.lacks_iterator:
            self._evaluations.follow(iterator, self._dropped)

    @guarded
    def _begin_fetch(self, iterator: Any) -> Pass | None:
        """Return the pass that a batch is fetched for, after it was decided what for; None where it is not observed."""
        found = self._passes.get(iterator)
        if self._elsewhere():
            if current_thread() in self._others:
                return None
            if found is None:
                found = Pass(None, True, True, True, iterator=iterator, is_prefetched=True)
                self._keep_pass(iterator, found)
            return found if found.is_prefetched else None
        if self._timed_elsewhere():
            return None
        gradients = torch.is_grad_enabled()
        if found is None:
            found = Pass(None, None, self._predict(None, gradients), gradients, iterator=iterator)
            self._keep_pass(iterator, found)
        found.is_prefetched = False
        if found.trains is None and self._is_used(found):
            self._decide(found)
        if found.trains is None and found.gradients and not gradients:
            found.trains = False
        found.is_evaluated = found.trains is False or (found.gradients and not gradients)
        if found.is_evaluated:
            if self._evaluations.state is not EVALUATING:
                self._open_evaluation()
            if self._evaluations.lacks_iterator:
                self._evaluations.follow(iterator, self._dropped)
            return found
        self._close_for_training()
        if found.trains is None and not found.fetched:
            if found.before is None or self._timeline.now() - found.ended > _AT_ONCE:
                found.before = rebooking.snapshot(self._timeline)
            elif not self._timeline.looping:
                self._begin_with(found.before)
        return found

    def _is_used(self, found: Pass) -> bool:
        """Return whether a module was called with the newest batch of a pass."""
        return found.fetched > 0 and found.forwards != self._forwards

    @guarded
    def _end_pass(self, found: Pass, iterator: Any, error: BaseException) -> None:
        """A pass has no more batches, or failed."""
        if found.is_evaluated:
            if self._evaluations.is_from(iterator):
                self._evaluations.leave()
        elif not isinstance(error, StopIteration):
            return
        elif found.trains:
            self._samples += sum(found.in_hand)
            found.in_hand.clear()
        elif self._is_used(found):
            self._decide(found)
            self._evaluations.end()
            self._cycle.is_waiting = False

    def _take(self, found: Pass, dimension: int) -> None:
        """Count a batch. Its samples count once it has been used."""
        try:
            samples = found.samples(dimension) if self._counts_samples and self.run.batch_size is None else 0
            found.fetched += 1
            if found.is_prefetched:
                self._before.prefetched.add(samples, 0.0)
                return
            found.in_hand.append(samples)
            if len(found.in_hand) > _MOST_AHEAD and found.trains:
                self._samples += found.in_hand.popleft()  # of a batch that was passed over
            found.forwards = self._forwards
            if found not in self._fetched:
                self._fetched.append(found)
        except Exception as error:
            tolerate(error, "counting samples")

    def _decide(self, found: Pass) -> None:
        """Decide that a pass is an evaluation, whose batches were used without a backward pass."""
        found.trains = False
        found.in_hand.clear()
        self._forwards_before = self._forwards
        self._cycle.unfetched(found.fetched)
        self._fetched = [other for other in self._fetched if other is not found]
        loader = found.loader()
        if loader is not None:
            self._roles.setdefault(loader, {})[found.gradients] = False
        if found.before is not None:
            self._open_evaluation(found.before)
            found.before = None

    def _predict(self, loader: Any, gradients: bool) -> bool:
        """Predict whether a pass trains: as the one before did in this mode, else by the modes of what is trained."""
        known = None if loader is None else self._roles.get(loader, {}).get(gradients)
        if known is not None:
            return known
        trained = [known.module() for known in self.modules.values() if known.trains]
        models = [module for module in trained if module is not None] or list(self._models)
        return gradients and (not models or any(model.training for model in models))

    def _begin_wait(self, wait: Phase) -> None:
        """Begin the wait for a batch, which ends the step before if its optimizer has stepped."""
        try:
            if self._inside:
                self._leave_optimizers()
            self._waits += 1
            if not (self._cycle.optimizers and self._mark(wait)):
                wait.__enter__()
        except Exception as error:
            tolerate(error, "observing a loader")

    def _waited(self, function: Callable[[Any], Any], argument: Any) -> Any:
        self._begin_wait(self._wait)
        self.calls.ignored = True
        try:
            return function(argument)
        finally:
            self.calls.ignored = False
            self._end_wait()

    def _end_wait(self) -> None:
        if get_ident() == self._thread:  # else another thread has shown that the loop is its own
            self._wait.__exit__()

    def _prefetched(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """Let a thread that is not the loop's wait for a loader."""
        began = self._now()
        try:
            return function(argument)
        finally:
            self._before.prefetched.add(0, self._now() - began)

    def _timed_elsewhere(self) -> bool:
        """Return whether a tracked loader times its own wait, or an integration that claimed the run does."""
        return self._wait.opened or self.run.claimed_by != ""

    # Evaluation

    @guarded
    def gradients_switched(self, off: bool | None = None) -> None:
        """Take note that a context may have switched gradients off, or on again.

        Args:
            off: whether gradients are off; None: read it from PyTorch.
        """
        if self._elsewhere():
            return
        if off is None:
            off = not torch.is_grad_enabled()
        self._evaluations.switch_gradients(off=off)

    @guarded
    def mode_switched(self, trains: bool) -> None:
        """Take note that a module was switched to training or to evaluation mode."""
        if not self._elsewhere():
            self._evaluations.switch_mode(trains=trains)

    @guarded
    def _dropped(self, reference: weakref.ref[Any]) -> None:
        """End the evaluation whose loader was left early."""
        if self._evaluations.follows(reference) and not self._elsewhere():
            self._evaluations.leave()

    def _open_evaluation(self, since: Snapshot | None = None) -> None:
        """Begin an evaluation.

        Args:
            since: when it began; by default when it was suspected, else now.
        """
        self._input.end()
        self._leave_optimizers()
        self._evaluations.open(since, in_context=not torch.is_grad_enabled())

    def _close_step(self) -> None:
        """Mark the step before an evaluation, if its optimizer has stepped."""
        if self._cycle.optimizers:
            self._mark()

    def _close_for_training(self, *, computes_gradients: bool = False) -> None:
        """Training goes on: whatever was an evaluation is over."""
        self._evaluations.end()
        if self._input.is_open:
            self._input.end(computes_gradients=computes_gradients)
        self._evaluations.forget()

    # Modules

    def begin_forward(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """Begin `forward`, unless the call belongs to something else; return whether `end_forward` is to follow."""
        try:
            known = self.modules.get(id(module))
            if known is None or known.module() is not module:
                known = self._know(module)
            if not known.is_observed or get_ident() != self._thread or self.run.silent:
                if known.is_loss and self._evaluations.state is SUSPECTED and not torch.is_grad_enabled():
                    self._evaluate_loss()
                return False
            self.calls.ignored = True
            is_usual = known.trains and self._evaluations.state is TRAINING and torch.is_grad_enabled()
            self._is_forward = is_usual or self._admits(module, known)
            if not self._is_forward:
                return True
            if self._input.is_open:
                self._input.end_with_call(arguments, options)
            self.open_forward()
        except Exception as error:
            self.calls.ignored = False
            tolerate(error, "observing a module")
            return False
        return True

    def open_forward(self, _: None = None) -> None:
        """Begin `forward`."""
        self._is_forward = True
        self._forwards += 1
        self._timeline.held = True
        self._span = self._enter(self._forward)

    def _admits(self, module: Any, known: Module) -> bool:
        """Return whether a call is a part of the loop's steps, as far as can be said before a backward pass."""
        gradients = torch.is_grad_enabled()
        if self._timeline.current.is_rollout or self._evaluations.goes_on(gradients=gradients):
            return False
        if not gradients:
            if not self._timeline.looping or self.run.claimed_by:
                return False
            if self._is_evaluation(module, known):
                self._open_evaluation()
                return False
            if self._forwards == self._forwards_before:
                self._forwards_before += 1  # which is not a forward pass of the step
        else:
            if not known.trains:
                self._called.append(known)
            if not module.training and self._evaluations.state is SUSPECTED and not self._cycle.batches:
                self._evaluations.called = True
            else:
                self._evaluations.forget()
        self._input.has_modules = True
        if not self._precision_known:
            self._describe_precision(module)
        return True

    def _evaluate_loss(self) -> None:
        """A loss that is computed without gradients evaluates, and so did the calls of modules before it."""
        is_between = self._forwards == self._forwards_before and self._cycle.state is not IN_STEP
        is_known = self._evaluations.state is EVALUATING
        if is_between and self._timeline.looping and not self._elsewhere() and not is_known:
            self._open_evaluation()

    def _know(self, module: Any) -> Module:
        if len(self.modules) >= _MOST_MODULES:  # most are gone
            self.modules.clear()
        belongs = self._all_models or module in self._models or getattr(module, "_orig_mod", None) in self._models
        known = self.modules[id(module)] = Module(module, belongs)
        return known

    def end_forward(self) -> None:
        """End `forward`."""
        try:
            self.calls.ignored = False
            if self._is_forward:
                self.close_forward()
        except Exception as error:
            tolerate(error, "observing a module")

    def close_forward(self, _: None = None) -> None:
        """End `forward`."""
        self._leave(self._forward, self._span)
        if self._evaluations.called:
            self._evaluations.note_call()
        if not self._cycle.batches:
            self._begin_input()

    def _is_evaluation(self, module: Any, known: Module) -> bool:
        """Return whether a call without gradients evaluates what is trained, rather than being a part of the step."""
        if self._forwards != self._forwards_before or self._cycle.state is IN_STEP:
            return False
        original = self.modules.get(id(getattr(module, "_orig_mod", None)))
        is_trained = known.trains or (original is not None and original.trains)
        if not (is_trained or self._is_part(module, known)):
            return self._evaluations.in_mode  # else it may be a teacher
        if is_trained and not module.training:
            return True
        steps = self._timeline.steps
        before, self._called_between = self._called_between, steps
        if self._callers.is_rare(steps):
            self._evaluations.in_mode = True  # the time up to the next such call is evaluation too
            return True
        return steps - before > _USUAL

    def _is_part(self, module: Any, known: Module) -> bool:
        """Return whether a module is a part of one that is trained."""
        trained = [each for each in self.modules.values() if each.trains]
        if known.compared_with != len(trained):
            known.compared_with = len(trained)
            models = [model for each in trained if (model := each.module()) is not None]
            known.is_part = any(part is module for model in models for part in model.modules())
        return known.is_part

    def _describe_precision(self, model: Any) -> None:
        self._precision_known = True
        try:
            parameter = next(iter(model.parameters()), None)
            if parameter is None or not hasattr(torch, "get_autocast_dtype"):  # PyTorch 2.3 does not say for sure
                return
            with unobserved():
                kind = parameter.device.type
                dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else parameter.dtype
            found = _PRECISIONS.get(dtype)
            if found == "fp32" and kind == "cuda" and torch.get_float32_matmul_precision() != "highest":
                found = "tf32"
            if found is not None:
                self.run.describe(precision=found)
        except Exception as error:
            tolerate(error, "reading a model's precision")

    # Gradients and optimizers

    def backward(self, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Let gradients be computed."""
        if (get_ident() != self._thread or not self._is_owner or self.run.silent) and not self._own():
            self._others.add(current_thread())
            return function(*arguments, **options)
        if self._captures.current is not None:
            self._captures.current.add("backward")
            return function(*arguments, **options)
        calls, ignored = self.calls, self.calls.ignored
        calls.ignored = True  # a recomputation of checkpointing is not a forward pass
        span = self.open_backward(arguments)
        try:
            return function(*arguments, **options)
        finally:
            calls.ignored = ignored
            self.close_backward(span)

    def open_backward(self, arguments: tuple[Any, ...]) -> Span | None:
        """Begin `backward`."""
        try:
            if self._evaluations.state is not TRAINING or self._input.is_open:
                self._close_for_training(computes_gradients=True)
            if self._fetched or self._called:
                self._prove()
            if self._updates is not None:
                if self._updates.is_applied():
                    self._step_by_hand()
                self._updates.expect(arguments)
            self._cycle.backwards += 1
            self._forwards_before = self._forwards
            self._timeline.held = False
        except Exception as error:
            tolerate(error, "observing a backward pass")
        return self._enter(self._backward)

    def close_backward(self, span: Span | None = None) -> None:
        """End `backward`."""
        self._leave(self._backward, span)
        if self._updates is not None or not self._cycle.batches:
            self._end_backward()

    @guarded
    def _end_backward(self) -> None:
        if self._updates is not None:
            self._updates.note()
            self._stepped = self._timeline.step_by_now
        self._begin_input()

    def _prove(self) -> None:
        """A backward pass shows that what was fetched and called before it was for training."""
        for found in self._fetched:
            if not found.is_proven:
                found.is_proven = found.trains = True
                found.before = None
                loader = found.loader()
                if loader is not None:
                    self._roles.setdefault(loader, {})[found.gradients] = True
                if not self.run.claimed_by:
                    self.run.begin_pass()
                    self._describe_loader(found)
            if found.in_hand:
                self._samples += found.in_hand.popleft()
        self._fetched = [found for found in self._fetched if found.in_hand]
        for known in self._called:
            known.trains = True
        self._called.clear()

    def _describe_loader(self, found: Pass) -> None:
        if number(found.workers) is not None:
            self.run.gauge("dataloader_workers", found.workers)
        if found.nominal and self.run.batch_size is None:
            self.run.gauge("batch_size", found.nominal)

    def _step_by_hand(self) -> None:
        """The program applied the gradients of the step before itself: that step is over."""
        self._cycle.step_by_hand()
        self._mark_within_batch()

    def begin_optimizer(self, optimizer: Any) -> None:
        """Begin the step of an optimizer. One that is called by another is a part of it."""
        try:
            if (get_ident() != self._thread or not self._is_owner or self.run.silent) and not self._own():
                return
            if not self.counts(optimizer):
                return
            if self._captures.current is not None:
                self._captures.current.add("optimizer")
                return
            self.open_optimizer(id(optimizer))
        except Exception as error:
            tolerate(error, "observing an optimizer")

    def end_optimizer(self, optimizer: Any) -> None:
        """End it."""
        try:
            if not self._elsewhere():
                self.close_optimizer(id(optimizer))
                if self._steady is not None and not self._inside:
                    self._note_if_steady(self._steady)
        except Exception as error:
            tolerate(error, "observing an optimizer")

    def counts(self, optimizer: Any) -> bool:
        """Return whether an optimizer's steps count."""
        return self.all_optimizers or optimizer in self._optimizers

    def open_optimizer(self, key: int) -> None:
        """Begin `optimizer`, with the optimizer of this id."""
        if key in self._inside and self._cycle.backwards > self._backwards_before:
            self._leave_optimizers()  # its last step was left by an exception; else a class calls another's step
        if not self._inside:
            if self._evaluations.state is not TRAINING or self._input.is_open:
                self._close_for_training()
            if self._updates is not None:
                self._updates = None
                self._look_for_gpu()
            cycle = self._cycle
            if cycle.optimizers and cycle.begins_with(key) and cycle.backwards and not self.run.claimed_by:
                self._mark_within_batch()
            self._backwards_before = self._cycle.backwards
            self.optimizer_span = self._enter(self._optimizing)
        self._inside.append(key)

    def close_optimizer(self, key: int) -> None:
        """End `optimizer`."""
        if key not in self._inside:
            return
        while self._inside.pop() != key:  # one inside was left by an exception
            pass
        if not self._inside:
            self._leave(self._optimizing, self.optimizer_span)
            self._stepped_with(key)

    def _note_if_steady(self, steady: SteadyLoop) -> None:
        """Note events instead of processing them, if the last steps were plain training from one loader."""
        timeline, found, before = self._timeline, self._pass, self._ended
        self._ended = timeline.mark
        if (
            found is None
            or not self._cycle.batches
            or not self._is_training(found)
            or not self._input.has_modules  # else the forward pass is to be found
            or self._called
            or self._updates is not None
            or self._captures.current is not None
            or self._others_step
            or timeline.listener is not None
            or timeline.current is not timeline.other
            or timeline.mark - before > SHORT * timeline.interval
        ):
            self._plain_steps = 0
            return
        self._plain_steps += 1
        if self._plain_steps > steady.patience:
            self._plain_steps = 0
            self.stop_timing()
            steady.begin(found, gradients_off=self._evaluations.gradients_off)

    @property
    def processing_seconds(self) -> float:
        """Seconds that the processing of noted events has taken so far."""
        return 0.0 if self._steady is None else self._steady.processing_seconds

    def stop_timing(self) -> None:
        """Stop timing, because another observer takes over."""
        if self._timed is not None:
            self._timed.stop()

    def _stepped_with(self, key: int) -> None:
        self.optimizer_steps += 1
        self._stepped = self._timeline.step_by_now
        is_complete = self._cycle.stepped(key)
        if self._cycle.batches:
            if is_complete:
                self._mark()
            return
        if not self.run.claimed_by and not self._someone_else_steps():
            self.run.step_of(key)
            self._steps = self._timeline.steps
        self._begin_input()

    @guarded
    def release_tensors(self) -> None:
        """Drop all references to tensors."""
        self._input.release()
        if self._updates is not None:
            if not self._elsewhere() and self._updates.is_applied():
                self._step_by_hand()
            self._updates.release()

    def gradients_of(self, function: Callable[..., Any], arguments: tuple[Any, ...], options: Any) -> Any:
        """Let `torch.autograd.grad` compute gradients, which no optimizer need follow."""
        if self._elsewhere() or self._timeline.current.name not in BETWEEN or self._captures.current is not None:
            return function(*arguments, **options)
        if self._updates is not None and self._updates.are_made_by(arguments, options):
            return self.backward(function, arguments, options)
        self._input.end(computes_gradients=True)
        if all(found.predicted for found in self._fetched):
            self._prove()
        with self._backward:
            result = function(*arguments, **options)
        self._begin_input()
        return result

    @guarded
    def begin_capture(self, graph: Any) -> None:
        """A CUDA graph is captured: what is called now is done only when the graph is replayed."""
        if not self._elsewhere():
            self._captures.begin(graph)

    def end_capture(self) -> None:
        """The graph is complete."""
        self._captures.current = None

    def replayed(self, graph: Any, function: Callable[..., Any], arguments: tuple[Any, ...], options: Any) -> Any:
        """Let a CUDA graph do what was captured in it."""
        held = self._captures.contents(graph)
        if held is None or self._elsewhere() or self._timeline.current.name not in BETWEEN:
            return function(graph, *arguments, **options)
        phase = self._backward if "backward" in held else self._optimizing if held else self._forward
        self._close_for_training()
        if held:
            self._prove()
            self._updates = None
            self._timeline.held = False
        span = self._enter(phase)
        try:
            return function(graph, *arguments, **options)
        finally:
            self._leave(phase, span)
            if "optimizer" in held and self._cycle.batches:
                self._stepped_with(id(graph))
            elif "optimizer" in held:
                self._mark()
            else:
                self._begin_input()

    def scaled_step(self, scaler: Any, function: Callable[..., Any], arguments: tuple[Any, ...], options: Any) -> Any:
        """Let a gradient scaler step its optimizer, or leave it where gradients are not finite."""
        if not self._own():
            return function(scaler, *arguments, **options)
        self._updates = None
        before = self.optimizer_steps
        result = function(scaler, *arguments, **options)
        if scaler.is_enabled():
            self.skip_step(int(self.optimizer_steps == before))
        return result

    def skip_step(self, steps: int = 1) -> None:
        """Count steps that a gradient scaler left out."""
        self._skipped += steps
        self.run.report(amp_skipped_steps=self._skipped)

    def _leave_optimizers(self) -> None:
        if self._inside:
            self._inside.clear()
            self._optimizing.__exit__()
            if self.device is not None:
                self.device.forget_open()

    # Copies, communication, files

    def copied(self, tensor: Any, function: Callable[..., Any], arguments: tuple[Any, ...], options: Any) -> Any:
        """Let a tensor be moved to the GPU, perhaps from the host's memory."""
        if self.device is None or not tensor.is_cpu or self._elsewhere() or not self._timeline.looping:
            return function(tensor, *arguments, **options)
        span = self.begin_copy()
        try:
            return function(tensor, *arguments, **options)
        finally:
            self.end_copy(span)

    def begin_copy(self, _: None = None) -> Span | None:
        """Begin `host_copy`."""
        return self._enter(self._copy)

    def end_copy(self, span: Span | None) -> None:
        """End `host_copy`."""
        self._leave(self._copy, span)

    def communicated(self, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Let ranks communicate."""
        if self._elsewhere() or not self._timeline.looping:
            return function(*arguments, **options)
        self._communication.__enter__()
        # On a stream of its own, communication overlaps with the computation, and delays nothing.
        beside = self.device is None or self._communication.hidden or not self.device.on_main_stream()
        span = None if beside or self.device is None else self.device.begin("communication")
        try:
            return function(*arguments, **options)
        finally:
            self._leave(self._communication, span)

    def stored(self, phase: str, function: Callable[..., Any], arguments: tuple[Any, ...], options: Any) -> Any:
        """Let a checkpoint be written or read, or a trainer evaluate, unless it is part of loading or computing."""
        timeline, initialization = self._timeline, self._timeline.initialization
        if not self._elsewhere() and phase in ROLLOUT_PHASES and timeline.current.is_rollout:
            with self.run.phase(phase):
                return function(*arguments, **options)
        if self._elsewhere() or timeline.current.name not in BETWEEN or self._input.drawing:
            return function(*arguments, **options)
        if not timeline.looping:
            rebooking.snapshot(timeline)
            began = initialization.seconds
            result = function(*arguments, **options)
            rebooking.snapshot(timeline)
            rebooking.move(initialization, timeline.phase(phase), initialization.seconds - began)
            return result
        self._input.end()
        if self._cycle.optimizers and phase == "evaluation":  # inside of which no step can end
            self._mark()
        ignored = self.calls.ignored
        self.calls.ignored = ignored or phase in ROLLOUT_PHASES  # calls of modules there are no part of the training
        try:
            with self.run.phase(phase):
                result = function(*arguments, **options)
        finally:
            self.calls.ignored = ignored
        self._begin_input()
        if phase == "checkpoint":
            self._input.follow(timeline.phase(phase), is_in_step=not self._cycle.is_waiting)
        return result

    # Steps

    def _mark(self, opening: Phase | None = None) -> bool:
        """Mark a step's boundary, unless the program marks them; return whether the opening phase is open."""
        self._cycle.end()
        if not self.run.claimed_by and not self._someone_else_steps():
            timeline = self._timeline
            timeline.step(opening)
            self._steps = timeline.steps
        return opening is not None and opening.opened

    def _mark_within_batch(self) -> None:
        """Mark a boundary although the loop has not requested another batch: several steps use one."""
        batches = min(self._cycle.batches, 1)
        self._mark()
        self._cycle.use_again(batches)

    def _someone_else_steps(self) -> bool:
        if self._timeline.steps != self._steps:
            self._others_step = True
        return self._others_step

    def _begin_with(self, before: Snapshot) -> None:
        """Begin the loop when the first pass began, for the start of a loader's workers is a wait for data."""
        self._wait.__enter__()
        self._wait.__exit__()
        rebooking.rebook(self._timeline, before, self._wait, ("initialization",))
        self._wait.occurrences = 0

    def _own(self) -> bool:
        """Return whether this thread is the loop's, which is the first one to compute gradients."""
        if self.run.silent:
            return False
        thread = get_ident()
        if thread != self._thread:
            if self._is_owner:
                return False
            self._thread = thread
            if self._wait.opened:
                self._wait.__exit__()
            self.calls.ignored = False
        self._is_owner = True
        return True

    def _elsewhere(self) -> bool:
        return self.run.silent or get_ident() != self._thread

    def _begin_input(self) -> None:
        """A phase ended: where no loader gives the batches, find out who does."""
        timeline = self._timeline
        if self._steady is not None and self._steady.is_replaying:
            return
        if self._cycle.batches and (self._input.has_modules or not timeline.steps):
            return
        if not timeline.looping or timeline.current.name != "other" or self.run.claimed_by:
            return
        if self._wait.occurrences <= self._waits + self._input.moves:  # else the program times its own waits
            self._input.begin(has_batch=self._cycle.batches > 0)

    def _enter(self, phase: Phase) -> Span | None:
        phase.__enter__()
        return None if self.device is None or phase.hidden else self.device.begin(phase.name)

    def _leave(self, phase: Phase, span: Span | None) -> None:
        if self.device is not None:
            self.device.end(span)
        phase.__exit__()

    # Reports

    @guarded
    def _refresh(self) -> None:
        if self.is_closed:
            return
        timeline = self._timeline
        if self.run.ending:
            self._finish()
        for found in self._fetched:
            if found.trains is None and found.before is not None:
                if found.predicted or not self._is_used(found) or timeline.current.name not in BETWEEN:
                    found.before = rebooking.snapshot(timeline)  # what this report contains can't be moved any more
                else:
                    self._decide(found)
        self._evaluations.reported()
        self._input.forget()
        prefetched, seconds = self._before.prefetched.take()
        self._prefetching += seconds
        samples, self._samples = self._samples + prefetched, 0
        if samples and self._counts_samples and self.run.batch_size is None:
            self.run.add("samples", samples)
        if self._prefetching:
            self.run.value("prefetch_seconds", self._prefetching)
        graphs = _compiled_graphs()
        if graphs is not None:
            before, self._graphs = self._graphs, graphs
            self.run.add("recompilations", graphs - before if graphs >= before else graphs)
        self._look_for_gpu()
        if self._timed is not None and self._steady is not None:
            timed = self._timed.added(self._steady if self._steady.is_open else self)
            self._overhead.add(timed, self._steady.processing_seconds)
        if self.device is not None:
            self.device.read()
            report_allocator(torch.cuda, self.run)
            for model in self._reduced:
                if waited := self._reducers.setdefault(model, ReducerClock()).read(model):
                    self.device.move("backward", "communication", waited)

    def _finish(self) -> None:
        """Count the last step, if the loop was left before it requested another batch."""
        if self._elsewhere():
            return
        self._input.end()
        if self._updates is not None and self._updates.is_by_hand and self._updates.is_pending:
            self._cycle.optimizers.add(BY_HAND)
        if self._cycle.optimizers and not self.run.claimed_by and not self._someone_else_steps():
            self._cycle.optimizers.clear()
            self._timeline.end_last_step(self._stepped)

    def _look_for_gpu(self) -> None:
        if self.device is None and torch.cuda.is_initialized():
            self.device = DeviceClock(torch.cuda, self.run)
            self._gpu_found()


def _compiled_graphs() -> int | None:
    """Return how many graphs `torch.compile` made since it was reset; None where it is not in use."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return None if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])
