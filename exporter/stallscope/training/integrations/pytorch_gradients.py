"""Attribute the time of a PyTorch loop's gradients to `backward`, and learn from each of them what trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stallscope.training.integrations.pytorch_cycle import BY_HAND
from stallscope.training.integrations.pytorch_evaluation import BETWEEN, TRAINING
from stallscope.training.integrations.pytorch_state import LoopPart, LoopState, guarded
from stallscope.training.integrations.pytorch_updates import Updates
from stallscope.training.shim.tolerance import tolerate

if TYPE_CHECKING:
    from stallscope.training.integrations.pytorch_device import Span
    from stallscope.training.integrations.pytorch_loaders import Loaders
    from stallscope.training.integrations.pytorch_modules import Modules


class Gradients(LoopPart):
    """The gradients that a loop computes, and the updates that the program makes of them without an optimizer."""

    def __init__(self, state: LoopState, loaders: Loaders, modules: Modules, updates: Updates) -> None:
        """Begin without gradients.

        Args:
            state: the loop's state.
            loaders: the loop's loaders.
            modules: the modules that the loop calls.
            updates: recognises updates by the program itself.
        """
        super().__init__(state)
        self._loaders = loaders
        self._modules = modules
        self._backward = state.run.phase("backward")
        self.updates: Updates | None = updates
        """Recognises updates by the program itself; None once an optimizer has stepped."""

    def backward(self, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Let gradients be computed."""
        if not self._thread.take():
            self._thread.exclude()
            return function(*arguments, **options)
        if self._captures.current is not None:
            self._captures.current.add("backward")
            return function(*arguments, **options)
        calls, ignored = self._calls, self._calls.ignored
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
                self._state.train(computes_gradients=True)
            if self._loaders.unproven or self._modules.unproven:
                self.prove()
            if self.updates is not None:
                if self.updates.is_applied():
                    self._step_by_hand()
                self.updates.expect(arguments)
            self._cycle.begin_backward()
            self._timeline.held = False
        except Exception as error:
            tolerate(error, "observing a backward pass")
        return self._state.enter(self._backward)

    def close_backward(self, span: Span | None = None) -> None:
        """End `backward`."""
        self._state.leave(self._backward, span)
        if self.updates is not None or not self._cycle.batches:
            self._end_backward()

    def gradients_of(self, function: Callable[..., Any], arguments: tuple[Any, ...], options: Any) -> Any:
        """Let `torch.autograd.grad` compute gradients, which no optimizer need follow."""
        is_between = self._timeline.current.name in BETWEEN
        if self._thread.is_elsewhere() or not is_between or self._captures.current is not None:
            return function(*arguments, **options)
        if self.updates is not None and self.updates.are_made_by(arguments, options):
            return self.backward(function, arguments, options)
        self._input.end(computes_gradients=True)
        if all(found.predicted for found in self._loaders.unproven):
            self.prove()
        with self._backward:
            result = function(*arguments, **options)
        self._state.begin_input()
        return result

    def prove(self) -> None:
        """A backward pass shows that what was fetched and called before it was for training."""
        self._loaders.prove()
        self._modules.prove()

    @guarded
    def release_tensors(self) -> None:
        """Drop all references to tensors."""
        self._input.release()
        if self.updates is not None:
            if not self._thread.is_elsewhere() and self.updates.is_applied():
                self._step_by_hand()
            self.updates.release()

    def finish(self) -> None:
        """Complete the last step, if the program updates its parameters itself."""
        if self.updates is not None and self.updates.is_by_hand and self.updates.is_pending:
            self._cycle.optimizers.add(BY_HAND)

    @guarded
    def _end_backward(self) -> None:
        if self.updates is not None:
            self.updates.note()
            self._state.stepped = self._timeline.step_by_now
        self._state.begin_input()

    def _step_by_hand(self) -> None:
        """The program applied the gradients of the step before itself: that step is over."""
        self._cycle.step_by_hand()
        self._state.mark_within_batch()
