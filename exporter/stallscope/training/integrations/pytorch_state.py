"""State of a PyTorch loop, and the transitions that its events have in common.

The state is composed of machines, each with a table of its own:

| machine | states | table |
|---|---|---|
| `thread` | predicted, certain | `pytorch_thread` |
| `evaluations` | training, suspected, evaluating | `pytorch_evaluation` |
| `cycle` | between steps, in a step, stepped; in each, waiting for a batch or not | `pytorch_cycle` |
| `input` | open between two phases while it is unknown where the next batch comes from, else closed | `pytorch_input` |

| transition | `evaluations` | `cycle` | `input` | called by |
|---|---|---|---|---|
| `begin_wait` | | stepped → between steps | | request of a batch |
| `train` | → training | | closed | all that only training does: batches for it, gradients, optimizers |
| `begin_evaluation` | → evaluating | stepped → between steps | closed | batches and calls that are not trained from |
| `mark` | | → between steps | | the end of a step |
| `mark_within_batch` | | → between steps or in a step | | the end of a step whose batch is used again |
| `begin_input` | | | open, unless a loader gives the batches | the end of a phase |
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from stallscope.training.integrations.pytorch_captures import Captures
from stallscope.training.integrations.pytorch_cycle import StepCycle
from stallscope.training.integrations.pytorch_device import DeviceClock, Span
from stallscope.training.integrations.pytorch_evaluation import Evaluations
from stallscope.training.integrations.pytorch_input import LoopInput
from stallscope.training.integrations.pytorch_thread import LoopThread
from stallscope.training.shim import rebooking
from stallscope.training.shim.run import Run
from stallscope.training.shim.timeline import Phase
from stallscope.training.shim.tolerance import tolerate

if TYPE_CHECKING:
    from stallscope.training.integrations.pytorch_forward import ModuleCalls
    from stallscope.training.shim.rebooking import Snapshot

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


class LoopState:
    """The state of one loop."""

    def __init__(self, run: Run, calls: ModuleCalls, gpu_found: Callable[[], None]) -> None:
        """Begin between two steps, in the calling thread.

        Args:
            run: receives steps and phases.
            calls: the observed calls of modules.
            gpu_found: called once CUDA is initialised.
        """
        self.run = run
        self.timeline = run.timeline
        self.calls = calls
        self.wait = run.phase("data_wait")
        self.thread = LoopThread(run, self._move)
        self.cycle = StepCycle()
        self.captures = Captures()
        self.input = LoopInput(run)
        self.evaluations = Evaluations(run.timeline, run.phase("evaluation"), self._close_step, self.begin_input)
        self.is_replaying = False
        """True while noted events are processed."""
        self.stepped = 0.0
        """Seconds of the current step when its parameters were updated."""
        self.others_step = False
        """True if the program or another integration marks the steps."""
        self._own_steps = run.timeline.steps
        # The GPU
        self.device: DeviceClock | None = None
        self._gpu_found = gpu_found
        # The optimizer that steps
        self._optimizing = run.phase("optimizer")
        self.stepping: list[int] = []
        """Optimizers inside of their step, the outermost first."""
        self.optimizer_span: Span | None = None

    # Phases

    def enter(self, phase: Phase) -> Span | None:
        """Open a phase, on the GPU too."""
        phase.__enter__()
        return None if self.device is None or phase.hidden else self.device.begin(phase.name)

    def leave(self, phase: Phase, span: Span | None) -> None:
        """Close a phase."""
        if self.device is not None:
            self.device.end(span)
        phase.__exit__()

    def enter_optimizer(self) -> None:
        """Open `optimizer`."""
        self.optimizer_span = self.enter(self._optimizing)

    def leave_optimizer(self) -> None:
        """Close `optimizer`."""
        self.leave(self._optimizing, self.optimizer_span)

    def abandon_optimizers(self) -> None:
        """Close `optimizer` if the step of an optimizer was left by an exception."""
        if self.stepping:
            self.stepping.clear()
            self._optimizing.__exit__()
            if self.device is not None:
                self.device.forget_open()

    def begin_wait(self) -> None:
        """Begin the wait for a batch, which ends the step before if its optimizer has stepped."""
        try:
            if self.stepping:
                self.abandon_optimizers()
            self.input.own_waits += 1
            if not (self.cycle.optimizers and self.mark(self.wait)):
                self.wait.__enter__()
        except Exception as error:
            tolerate(error, "observing a loader")

    def begin_input(self) -> None:
        """A phase ended: where no loader gives the batches, find out who does."""
        timeline, has_batch = self.timeline, self.cycle.batches > 0
        if self.is_replaying or (has_batch and (self.input.has_modules or not timeline.steps)):
            return
        if not timeline.looping or timeline.current.name != "other" or self.run.claimed_by:
            return
        if self.wait.occurrences <= self.input.own_waits:  # else the program times its own waits
            self.input.begin(has_batch=has_batch)

    # Training and evaluation

    def train(self, *, computes_gradients: bool = False) -> None:
        """Training goes on: whatever was an evaluation is over."""
        self.evaluations.end()
        if self.input.is_open:
            self.input.end(computes_gradients=computes_gradients)
        self.evaluations.forget()

    def begin_evaluation(self, since: Snapshot | None = None) -> None:
        """Begin an evaluation.

        Args:
            since: when it began; by default when it was suspected, else now.
        """
        self.input.end()
        self.abandon_optimizers()
        self.evaluations.open(since, in_context=not torch.is_grad_enabled())

    # Steps

    def marks_steps(self) -> bool:
        """Return whether the loop marks its steps: neither the program nor another integration does."""
        if self.run.claimed_by:
            return False
        if self.timeline.steps != self._own_steps:
            self.others_step = True
        return not self.others_step

    def mark(self, opening: Phase | None = None) -> bool:
        """Mark a step's boundary, unless the program marks them; return whether the opening phase is open."""
        self.cycle.end()
        if self.marks_steps():
            timeline = self.timeline
            timeline.step(opening)
            self._own_steps = timeline.steps
        return opening is not None and opening.opened

    def mark_step_of(self, optimizer: int) -> None:
        """Mark a boundary in a loop without batches, where the first of several optimizers begins a step."""
        if self.marks_steps():
            self.run.step_of(optimizer)
            self._own_steps = self.timeline.steps

    def mark_within_batch(self) -> None:
        """Mark a boundary although the loop has not requested another batch: several steps use one."""
        batches = min(self.cycle.batches, 1)
        self.mark()
        self.cycle.use_again(batches)

    def end_last_step(self) -> None:
        """Count the last step, if the loop was left before it requested another batch."""
        if self.cycle.optimizers and self.marks_steps():
            self.cycle.optimizers.clear()
            rebooking.end_last_step(self.timeline, self.stepped)

    def look_for_gpu(self) -> None:
        """Time the phases on the GPU from now on, if CUDA is initialised."""
        if self.device is None and torch.cuda.is_initialized():
            self.device = DeviceClock(torch.cuda, self.run)
            self._gpu_found()

    def _close_step(self) -> None:
        """Mark the step before an evaluation, if its optimizer has stepped."""
        if self.cycle.optimizers:
            self.mark()

    def _move(self) -> None:
        """Close what was opened in the thread that is not the loop's."""
        if self.wait.opened:
            self.wait.__exit__()
        self.calls.ignored = False


class LoopPart:
    """A part of a loop, which processes some of its events. It reads the state's objects as its own attributes."""

    def __init__(self, state: LoopState) -> None:
        self._state = state
        self._calls = state.calls
        self._captures = state.captures
        self._cycle = state.cycle
        self._evaluations = state.evaluations
        self._input = state.input
        self._run = state.run
        self._thread = state.thread
        self._timeline = state.timeline
