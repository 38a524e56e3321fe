"""Measure what observing a PyTorch loop costs, in the loop itself.

A tight loop of the same calls would show a fifth of it: the training replaces what the caches held in between. So for a
few steps after each report, each call of the loop's observer is timed, without the work that it contains and without
the reading of the clock. The clock is the thread's CPU time: time that other programs take from the loop is not a cost
of the shim. While events are only noted (`pytorch_steady`), their processing is timed as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stallscope.training.integrations.pytorch_observed import Observed, Observing
    from stallscope.training.shim.run import Run

TIMING_BEGINS = "timing begins"
TIMING_ENDS = "timing ends"
"""Events of `Observers`."""
_STEPS = 8
"""Steps that are timed after each report."""
_READINGS = 16
"""Readings of the clock, of which the quickest is what one takes."""
_SKIPPED = 2
"""Steps before them, in which the caches lack this code too."""


class Overhead:
    """Adds to a run's overhead what observing a loop costs, in place of what booking its steps usually costs."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._measured = 0.0
        self._added = 0.0
        self._booked_before = run.booking_overhead

    def add(self, seconds: float, processing: float) -> None:
        """Add what the steps since the last report cost.

        Args:
            seconds: for the calls of the loop's observer.
            processing: for the processing of noted events, since the beginning.
        """
        self._measured += seconds
        beyond = self._measured + processing - (self._run.booking_overhead - self._booked_before)
        if beyond > self._added:
            self._run.add_overhead(beyond - self._added)
            self._added = beyond


class TimedLoop:
    """Replaces a loop, and times its calls."""

    def __init__(self, loop: Observed, change: Callable[[str], None]) -> None:
        """Prepare to time.

        Args:
            loop: observes.
            change: called when the timing begins and when it is complete.
        """
        self._loop = loop
        self._observer: Observing = loop
        self._change = change
        self._clock = time.thread_time
        self._reading = min(-(self._clock() - self._clock()) for _ in range(_READINGS))  # of the clock, in seconds
        self._seconds = 0.0
        self._first = self._last = self._reported = 0
        self._skipped = 0
        self.is_timing = False
        """True while calls are timed."""
        self.run = loop.run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._observer, name)

    def added(self, observer: Observing) -> float:
        """Return the seconds that the steps since the last call cost, and time the next ones.

        Args:
            observer: observes at present.
        """
        steps = self._loop.optimizer_steps
        timed = (self._last if not self.is_timing else steps) - self._first
        added = self._seconds / timed * (steps - self._reported) if timed > 0 else 0.0
        if timed > 0 or not self.is_timing:
            self._first, self._reported, self._seconds, self._skipped = steps, steps, 0.0, _SKIPPED
            self._observer = observer
            self.is_timing = True
            self._change(TIMING_BEGINS)
        return added

    def stop(self) -> None:
        """Stop timing, because another observer takes over."""
        if self.is_timing:
            self.is_timing = False
            self._last = self._loop.optimizer_steps

    def next_batch(self, iterator: Any, following: Callable[[Any], Any]) -> Any:
        """Time a fetch."""
        return self._timed(lambda function: self._observer.next_batch(iterator, function), following)

    def backward(self, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Time a backward pass."""
        return self._timed(lambda inner: self._observer.backward(inner, arguments, options), function)

    def begin_forward(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """Time the beginning of a module's call."""
        began = self._clock()
        result = self._observer.begin_forward(module, arguments, options)
        self._seconds += self._clock() - began - self._reading
        return result

    def end_forward(self) -> None:
        """Time its end."""
        began = self._clock()
        self._observer.end_forward()
        self._seconds += self._clock() - began - self._reading

    def begin_optimizer(self, optimizer: Any) -> None:
        """Time the beginning of an optimizer's step."""
        began = self._clock()
        self._observer.begin_optimizer(optimizer)
        self._seconds += self._clock() - began - self._reading

    def end_optimizer(self, optimizer: Any) -> None:
        """Time its end, which may be the last that is timed."""
        processing = self._loop.processing_seconds
        began = self._clock()
        self._observer.end_optimizer(optimizer)
        if not self.is_timing:
            return
        self._seconds += self._clock() - began - self._reading - (self._loop.processing_seconds - processing)
        self._last = self._observer.optimizer_steps
        if self._skipped:
            self._skipped -= 1
            self._first, self._seconds = self._last, 0.0
        elif self._last - self._first >= _STEPS:
            self.is_timing = False
            self._change(TIMING_ENDS)

    def _timed(self, observed: Callable[[Callable[..., Any]], Any], function: Callable[..., Any]) -> Any:
        clock, contained = self._clock, 0.0

        def inner(*arguments: Any, **options: Any) -> Any:
            nonlocal contained
            began = clock()
            try:
                return function(*arguments, **options)
            finally:
                contained += clock() - began

        began = clock()
        try:
            return observed(inner)
        finally:
            self._seconds += clock() - began - contained - 2.0 * self._reading
