"""Attribute the time of a PyTorch loop's CUDA graphs to the phases that each of them contains."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stallscope.training.integrations.pytorch_evaluation import BETWEEN
from stallscope.training.integrations.pytorch_state import LoopPart, LoopState, guarded

if TYPE_CHECKING:
    from stallscope.training.integrations.pytorch_gradients import Gradients
    from stallscope.training.integrations.pytorch_optimizers import Optimizers


class Replays(LoopPart):
    """The captures and the replays of a loop's graphs."""

    def __init__(self, state: LoopState, gradients: Gradients, optimizers: Optimizers) -> None:
        """Begin without graphs.

        Args:
            state: the loop's state.
            gradients: the gradients that the loop computes.
            optimizers: the loop's optimizers.
        """
        super().__init__(state)
        self._gradients = gradients
        self._optimizers = optimizers
        self._forward = state.run.phase("forward")
        self._backward = state.run.phase("backward")
        self._optimizing = state.run.phase("optimizer")

    @guarded
    def begin_capture(self, graph: Any) -> None:
        """A CUDA graph is captured: what is called now is done only when the graph is replayed."""
        if not self._state.thread.is_elsewhere():
            self._captures.begin(graph)

    def end_capture(self) -> None:
        """The graph is complete."""
        self._captures.current = None

    def replayed(self, graph: Any, function: Callable[..., Any], arguments: tuple[Any, ...], options: Any) -> Any:
        """Let a CUDA graph do what was captured in it."""
        state, held = self._state, self._captures.contents(graph)
        if held is None or state.thread.is_elsewhere() or state.timeline.current.name not in BETWEEN:
            return function(graph, *arguments, **options)
        phase = self._backward if "backward" in held else self._optimizing if held else self._forward
        state.train()
        if held:
            self._gradients.prove()
            self._gradients.updates = None
            state.timeline.held = False
        span = state.enter(phase)
        try:
            return function(graph, *arguments, **options)
        finally:
            state.leave(phase, span)
            if "optimizer" in held and state.cycle.batches:
                self._optimizers.stepped(id(graph))
            elif "optimizer" in held:
                state.mark()
            else:
                state.begin_input()
