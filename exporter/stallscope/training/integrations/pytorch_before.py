"""PyTorch calls before the loop begins: evaluations, restores and the first forward pass.

Nothing shows yet that it will train, so no run is started for it; it is only noted, and booked once the loop begins.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

from stallscope.training.integrations.pytorch_batches import Prefetched, leading_dimension
from stallscope.training.integrations.pytorch_forward import ModuleCalls
from stallscope.training.integrations.pytorch_input import FirstInput
from stallscope.training.shim import lifetime, rebooking
from stallscope.training.shim.run import Run

_MOST_CALLS = 64
_APART = 0.05
"""Seconds between two calls of modules after which they are not of one forward pass."""


class Before:
    """Notes of what happened in the main thread."""

    def __init__(self, calls: ModuleCalls) -> None:
        """Note from now on.

        Args:
            calls: the observed calls of modules.
        """
        self._observed = calls
        calls.listener = self
        self._input = FirstInput()
        self._drawn = 0.0
        self._is_storing = False
        self.prefetched = Prefetched()
        self._calls: deque[tuple[float, float]] = deque(maxlen=_MOST_CALLS)
        self._began: float | None = None
        self._gradients_off: float | None = None
        self._is_evaluation = False
        self._seconds: dict[str, float] = {}

    def release_tensors(self) -> None:
        """Drop all references to tensors."""
        self._input.release()

    def prepared(self) -> None:
        """Something was prepared that a loop uses, which may begin now: observe how its first batch is drawn."""
        if threading.current_thread() is threading.main_thread() and not lifetime.watched():
            self._input.begin()

    def mode_switched(self, trains: bool) -> None:
        """A module was switched to training or to evaluation mode."""
        self.prepared()

    def begin_forward(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """A module is called."""
        if threading.current_thread() is not threading.main_thread():
            return False
        if torch.is_grad_enabled():
            self._input.end_with_call(arguments, options)
            self._began = time.monotonic()
            if self._input.seconds:
                self._drawn, self._input.seconds = self._input.seconds, 0.0
        else:
            self._input.end()
            self._began = time.monotonic() if self._calls else None  # else it may be a teacher's part of the step
        self._is_evaluation = self._is_evaluation or self._began is None
        self._observed.ignored = True
        return True

    def end_forward(self) -> None:
        """It returned or raised."""
        self._observed.ignored = False
        if self._began is not None:
            self._calls.append((self._began, time.monotonic()))
            self.prepared()  # a loop may draw its next batch before it computes gradients

    def gradients_switched(self) -> None:
        """A context may have switched gradients off, or on again."""
        if threading.current_thread() is not threading.main_thread():
            return
        if not torch.is_grad_enabled():
            if self._gradients_off is None:
                self._gradients_off = time.monotonic()
                self._is_evaluation = False
        elif self._gradients_off is not None:
            if self._is_evaluation:
                self._spent("evaluation", self._gradients_off)
                self._calls.clear()
            self._gradients_off = None
            self.prepared()

    def next_batch(self, iterator: Any, following: Callable[[Any], Any]) -> Any:
        """Let a thread that is not the main one fetch a batch, for a loop that has not begun."""
        began = time.monotonic()
        try:
            batch = following(iterator)
        finally:
            self.prefetched.add(0, time.monotonic() - began)
        self.prefetched.add(leading_dimension(batch), 0.0)
        return batch

    def stored(self, phase: str, function: Callable[..., Any], arguments: tuple[Any, ...], options: Any) -> Any:
        """Let a checkpoint be written or read."""
        if self._is_storing or threading.current_thread() is not threading.main_thread():
            return function(*arguments, **options)
        self._is_storing = True
        began = time.monotonic()
        try:
            return function(*arguments, **options)
        finally:
            self._is_storing = False
            self._spent(phase, began)

    def _spent(self, phase: str, began: float) -> None:
        self._seconds[phase] = self._seconds.get(phase, 0.0) + time.monotonic() - began

    def book(self, run: Run, backward_began: float | None) -> None:
        """Book it to a run whose loop begins now.

        Args:
            run: a run on the monotonic clock, which has booked nothing but initialization.
            backward_began: when the backward pass began that the loop begins with, which makes the forward pass before
                it a part of the first step; None where the loop begins with something else.
        """
        self._input.end()
        drawn_since = self._input.seconds
        timeline = run.timeline
        rebooking.snapshot(timeline)
        for name, seconds in self._seconds.items():
            if 0.0 < seconds < timeline.initialization.seconds:
                rebooking.move(timeline.initialization, timeline.phase(name), seconds)
        calls, drawn = list(self._calls), self._drawn
        self._calls.clear()  # another loop may begin later
        self._seconds = {}
        if backward_began is not None and calls:
            self._begin_loop(run, calls, drawn)
            if 0.0 < drawn_since < timeline.other.seconds:
                rebooking.move(timeline.other, timeline.phase("data_wait"), drawn_since)
            backward = timeline.phase("backward")  # in which the run was made
            rebooking.move(timeline.other, backward, min(timeline.now() - backward_began, timeline.other.seconds))
            backward.occurrences = 0

    @property
    def functions(self) -> set[CodeType]:
        """Functions that were found to draw batches."""
        return self._input.functions

    def _begin_loop(self, run: Run, calls: list[tuple[float, float]], drawn: float) -> None:
        timeline = run.timeline
        forward = timeline.phase("forward")
        last = calls.pop()
        passes = [last]
        while calls and passes[0][0] - calls[-1][1] < max(_APART, last[1] - last[0]):
            passes.insert(0, calls.pop())
        began = max(passes[0][0] - drawn, timeline.now() - timeline.initialization.seconds)
        timeline.initialization.seconds -= timeline.mark - began
        timeline.mark = began
        timeline.begin_loop(began)
        rebooking.snapshot(timeline)
        for start, end in passes:
            rebooking.move(timeline.other, forward, end - max(start, began))
        if drawn:
            rebooking.move(timeline.other, timeline.phase("data_wait"), passes[0][0] - began)
