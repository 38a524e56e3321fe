"""Attribute the time of copies, collectives, checkpoints and evaluations that a PyTorch program calls itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stallscope.training.integrations.pytorch_evaluation import BETWEEN
from stallscope.training.integrations.pytorch_state import LoopPart, LoopState
from stallscope.training.shim import rebooking
from stallscope.training.shim.timeline import ROLLOUT_PHASES

if TYPE_CHECKING:
    from stallscope.training.integrations.pytorch_device import Span


class Operations(LoopPart):
    """Functions that are a phase each."""

    def __init__(self, state: LoopState) -> None:
        super().__init__(state)
        self._copy = state.run.phase("host_copy")
        self._communication = state.run.phase("communication")

    def copied(self, tensor: Any, function: Callable[..., Any], arguments: tuple[Any, ...], options: Any) -> Any:
        """Let a tensor be moved to the GPU, perhaps from the host's memory."""
        state = self._state
        if state.device is None or not tensor.is_cpu or state.thread.is_elsewhere() or not state.timeline.looping:
            return function(tensor, *arguments, **options)
        span = self.begin_copy()
        try:
            return function(tensor, *arguments, **options)
        finally:
            self.end_copy(span)

    def begin_copy(self, _: None = None) -> Span | None:
        """Begin `host_copy`."""
        return self._state.enter(self._copy)

    def end_copy(self, span: Span | None) -> None:
        """End `host_copy`."""
        self._state.leave(self._copy, span)

    def communicated(self, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Let ranks communicate."""
        state, device = self._state, self._state.device
        if state.thread.is_elsewhere() or not state.timeline.looping:
            return function(*arguments, **options)
        self._communication.__enter__()
        # On a stream of its own, communication overlaps with the computation, and delays nothing.
        delays = device is not None and not self._communication.hidden and device.on_main_stream()
        span = device.begin("communication") if device is not None and delays else None
        try:
            return function(*arguments, **options)
        finally:
            state.leave(self._communication, span)

    def stored(self, phase: str, function: Callable[..., Any], arguments: tuple[Any, ...], options: Any) -> Any:
        """Let a checkpoint be written or read, or a trainer evaluate, unless it is part of loading or computing."""
        state, timeline = self._state, self._state.timeline
        if state.thread.is_elsewhere():
            return function(*arguments, **options)
        if phase in ROLLOUT_PHASES and timeline.current.is_rollout:
            with state.run.phase(phase):
                return function(*arguments, **options)
        if timeline.current.name not in BETWEEN or state.input.drawing:
            return function(*arguments, **options)
        if not timeline.looping:
            initialization = timeline.initialization
            rebooking.snapshot(timeline)
            began = initialization.seconds
            result = function(*arguments, **options)
            rebooking.snapshot(timeline)
            rebooking.move(initialization, timeline.phase(phase), initialization.seconds - began)
            return result
        state.input.end()
        if state.cycle.optimizers and phase == "evaluation":  # inside of which no step can end
            state.mark()
        ignored = state.calls.ignored
        state.calls.ignored = ignored or phase in ROLLOUT_PHASES  # calls of modules there are no part of the training
        try:
            with state.run.phase(phase):
                result = function(*arguments, **options)
        finally:
            state.calls.ignored = ignored
        state.begin_input()
        if phase == "checkpoint":
            state.input.follow(timeline.phase(phase), is_in_step=not state.cycle.is_waiting)
        return result
