"""Attribute the time of a PyTorch loop to steps and phases, from what its loaders, modules and optimizers do.

What trains is decided by a backward pass. Until one follows, time is booked as if it trained or evaluated as before, no
report is sent, and `Timeline.rebook` moves the time once it is known.

| events | processed by |
|---|---|
| all, first | `Observers`: the observer that receives them |
| loaders and their batches | `Loaders` |
| calls of modules | `Modules` |
| gradients, swapped tensors | `Gradients` |
| steps of optimizers and of gradient scalers | `Optimizers` |
| CUDA graphs | `Replays` |
| copies, collectives, checkpoints, a trainer's evaluations | `Operations` |
| contexts without gradients, modes of modules | `Evaluations` |

What they have in common is in `LoopState`: the thread, the step's cycle, the evaluation, the code between phases.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from stallscope.training.integrations.pytorch_device import Reducers, report_allocator
from stallscope.training.integrations.pytorch_forward import ModuleCalls
from stallscope.training.integrations.pytorch_gradients import Gradients
from stallscope.training.integrations.pytorch_loaders import Loaders
from stallscope.training.integrations.pytorch_modules import Modules
from stallscope.training.integrations.pytorch_observers import CLOSED, Observers
from stallscope.training.integrations.pytorch_operations import Operations
from stallscope.training.integrations.pytorch_optimizers import Optimizers
from stallscope.training.integrations.pytorch_replays import Replays
from stallscope.training.integrations.pytorch_state import LoopState, guarded
from stallscope.training.integrations.pytorch_updates import Updates
from stallscope.training.shim.run import Run
from stallscope.training.shim.tolerance import tolerate

if TYPE_CHECKING:
    from stallscope.training.integrations.pytorch_batches import Pass
    from stallscope.training.integrations.pytorch_before import Before

_PATIENCE = 16
"""Updates by the program after which an optimizer that was never seen to step is held not to be in use."""


class Loop:
    """One loop: which events belong to it, and to which phase.

    It holds modules, optimizers and loaders weakly. The loop belongs to the thread that computes gradients and steps
    the optimizers. Other threads are not part of it, nor are forked processes.
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
            direct: directs events to an observer.
            gpu_found: called once CUDA is initialised.
            has_optimizers: whether the program has optimizers of PyTorch.
            counts_samples: whether to count samples by the size of batches.
        """
        self.run = run
        self.state = state = LoopState(run, calls, gpu_found)
        state.input.functions |= before.functions
        state.input.sampled |= before.functions
        run.timeline.input_functions = state.input.sampled
        updates = Updates(_PATIENCE if has_optimizers else 0)
        self._modules = Modules(state, models)
        self._loaders = Loaders(state, self._modules, loaders, before.prefetched, counts_samples=counts_samples)
        self._gradients = Gradients(state, self._loaders, self._modules, updates)
        self._optimizers = Optimizers(state, self._gradients, optimizers)
        replays = Replays(state, self._gradients, self._optimizers)
        operations = Operations(state)
        self._reducers = Reducers(reduced)
        self._graphs = CompiledGraphs(run)
        self.modules = self._modules.known
        """Modules that were called, by their ids."""
        self.counts_all_optimizers = self._optimizers.counts_all
        """True if the steps of all optimizers count."""

        # Events. Each has a method that processes it, called without a method of this class in between.
        self.begin_pass = self._loaders.begin_pass
        self.next_batch = self._loaders.next_batch
        self.begin_fetch = self._loaders.begin_fetch
        self.end_fetch = self._loaders.end_fetch
        self.fail_fetch = self._loaders.fail_fetch
        self.begin_forward = self._modules.begin_forward
        self.end_forward = self._modules.end_forward
        self.open_forward = self._modules.open_forward
        self.close_forward = self._modules.close_forward
        self.backward = self._gradients.backward
        self.open_backward = self._gradients.open_backward
        self.close_backward = self._gradients.close_backward
        self.gradients_of = self._gradients.gradients_of
        self.release_tensors = self._gradients.release_tensors
        self.counts = self._optimizers.counts
        self.begin_optimizer = self._optimizers.begin_optimizer
        self.open_optimizer = self._optimizers.open_optimizer
        self.close_optimizer = self._optimizers.close_optimizer
        self.scaled_step = self._optimizers.scaled_step
        self.skip_step = self._optimizers.skip_step
        self.begin_capture = replays.begin_capture
        self.end_capture = replays.end_capture
        self.replayed = replays.replayed
        self.copied = operations.copied
        self.begin_copy = operations.begin_copy
        self.end_copy = operations.end_copy
        self.communicated = operations.communicated
        self.stored = operations.stored

        self._observers = Observers(self, direct)
        run.watch(self._refresh)

    @property
    def misses_steps(self) -> bool:
        """True if gradients were computed, and no step was found."""
        return self.state.thread.is_certain and self.state.timeline.steps == 0

    @property
    def optimizer_steps(self) -> int:
        """Steps of optimizers."""
        return self._optimizers.steps

    @property
    def processing_seconds(self) -> float:
        """Seconds that the processing of noted events has taken so far."""
        return self._observers.steady.processing_seconds

    def close(self) -> None:
        """Stop observing."""
        self._observers.close()
        state = self.state
        state.timeline.held = False
        state.input.end()
        state.abandon_optimizers()
        state.evaluations.end()

    def end_optimizer(self, optimizer: Any) -> None:
        """End the step of an optimizer. If the steps repeat, another observer receives the next events."""
        try:
            state = self.state
            if not state.thread.is_elsewhere():
                self._optimizers.close_optimizer(id(optimizer))
                if not state.stepping:
                    self._observers.stepped(self._plain_pass(), gradients_off=state.evaluations.gradients_off)
        except Exception as error:
            tolerate(error, "observing an optimizer")

    @guarded
    def gradients_switched(self, off: bool | None = None) -> None:
        """Take note that a context may have switched gradients off, or on again.

        Args:
            off: whether gradients are off; None: read it from PyTorch.
        """
        if not self.state.thread.is_elsewhere():
            self.state.evaluations.switch_gradients(off=not torch.is_grad_enabled() if off is None else off)

    @guarded
    def mode_switched(self, trains: bool) -> None:
        """Take note that a module was switched to training or to evaluation mode."""
        if not self.state.thread.is_elsewhere():
            self.state.evaluations.switch_mode(trains=trains)

    def _plain_pass(self) -> Pass | None:
        """Return the pass that the batches of the step came from; None if the step was not plain training."""
        state, found = self.state, self._loaders.current
        if (
            found is None
            or not state.cycle.batches
            or not self._loaders.goes_on(found)
            or not state.input.has_modules  # else the forward pass is to be found
            or self._modules.unproven
            or self._gradients.updates is not None
            or state.captures.current is not None
            or state.others_step
            or state.timeline.listener is not None
            or state.timeline.current is not state.timeline.other
        ):
            return None
        return found

    @guarded
    def _refresh(self) -> None:
        """Prepare for a report."""
        state = self.state
        if self._observers.state == CLOSED:
            return
        if self.run.ending and not state.thread.is_elsewhere():
            state.input.end()
            self._gradients.finish()
            state.end_last_step()
        self._loaders.decide_before_report()
        state.evaluations.reported()
        state.input.forget()
        self._loaders.report()
        self._graphs.report()
        state.look_for_gpu()
        self._observers.reported()
        if state.device is not None:
            state.device.read()
            report_allocator(torch.cuda, self.run)
            self._reducers.report(state.device)


class CompiledGraphs:
    """The graphs that `torch.compile` makes."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._before = _compiled_graphs() or 0

    def report(self) -> None:
        """Report the graphs since the last report."""
        graphs = _compiled_graphs()
        if graphs is not None:
            before, self._before = self._before, graphs
            self._run.add("recompilations", graphs - before if graphs >= before else graphs)


def _compiled_graphs() -> int | None:
    """Return how many graphs `torch.compile` made since it was reset; None where it is not in use."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return None if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])
