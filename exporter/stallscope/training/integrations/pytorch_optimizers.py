"""Attribute the time of a PyTorch loop's optimizers to `optimizer`, and find its steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from stallscope.training.integrations.pytorch_evaluation import TRAINING
from stallscope.training.integrations.pytorch_state import LoopPart, LoopState
from stallscope.training.shim.tolerance import tolerate

if TYPE_CHECKING:
    from stallscope.training.integrations.pytorch_gradients import Gradients


class Optimizers(LoopPart):
    """The optimizers of a loop. It holds them weakly."""

    def __init__(self, state: LoopState, gradients: Gradients, optimizers: Iterable[Any]) -> None:
        """Begin without steps.

        Args:
            state: the loop's state.
            gradients: the gradients that the loop computes.
            optimizers: whose steps count; none: all.
        """
        super().__init__(state)
        self._gradients = gradients
        self._stepping = state.stepping
        self._counted = weakref.WeakSet(optimizers)
        self.counts_all = not self._counted
        """True if the steps of all optimizers count."""
        self.steps = 0
        """Steps of optimizers."""
        self._skipped = 0
        """Steps that a gradient scaler left out."""
        self._backwards_before = 0
        """Backward passes of the step when the present optimizer began to step."""

    def counts(self, optimizer: Any) -> bool:
        """Return whether an optimizer's steps count."""
        return self.counts_all or optimizer in self._counted

    def begin_optimizer(self, optimizer: Any) -> None:
        """Begin the step of an optimizer. One that is called by another is a part of it."""
        try:
            if not self._thread.take() or not self.counts(optimizer):
                return
            if self._captures.current is not None:
                self._captures.current.add("optimizer")
                return
            self.open_optimizer(id(optimizer))
        except Exception as error:
            tolerate(error, "observing an optimizer")

    def open_optimizer(self, key: int) -> None:
        """Begin `optimizer`, with the optimizer of this id."""
        state, cycle = self._state, self._cycle
        if key in self._stepping and cycle.backwards > self._backwards_before:
            state.abandon_optimizers()  # its last step was left by an exception; else a class calls another's step
        if not self._stepping:
            if state.evaluations.state is not TRAINING or state.input.is_open:
                state.train()
            if self._gradients.updates is not None:
                self._gradients.updates = None
                state.look_for_gpu()
            if cycle.optimizers and cycle.begins_with(key) and cycle.backwards and not self._run.claimed_by:
                state.mark_within_batch()
            self._backwards_before = cycle.backwards
            state.enter_optimizer()
        self._stepping.append(key)

    def close_optimizer(self, key: int) -> None:
        """End `optimizer`."""
        if key not in self._stepping:
            return
        while self._stepping.pop() != key:  # one inside was left by an exception
            pass
        if not self._stepping:
            self._state.leave_optimizer()
            self.stepped(key)

    def stepped(self, key: int) -> None:
        """Count the step of an optimizer, which may complete a step of the loop."""
        state = self._state
        self.steps += 1
        state.stepped = state.timeline.step_by_now
        is_complete = self._cycle.stepped(key)
        if not self._cycle.batches:
            state.mark_step_of(key)
            state.begin_input()
        elif is_complete:
            state.mark()

    def scaled_step(self, scaler: Any, function: Callable[..., Any], arguments: tuple[Any, ...], options: Any) -> Any:
        """Let a gradient scaler step its optimizer, or leave it where gradients are not finite."""
        if not self._thread.take():
            return function(scaler, *arguments, **options)
        self._gradients.updates = None
        before = self.steps
        result = function(scaler, *arguments, **options)
        if scaler.is_enabled():
            self.skip_step(int(self.steps == before))
        return result

    def skip_step(self, steps: int = 1) -> None:
        """Count steps that a gradient scaler left out."""
        self._skipped += steps
        self._run.report(amp_skipped_steps=self._skipped)
