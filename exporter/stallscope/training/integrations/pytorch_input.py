"""Find out how a loop without a data loader draws its batches, and book that time as `data_wait`.

`pytorch_input_calls` finds the calls. Observing takes time, so only some intervals between phases are observed; the
others are estimated from them. After a checkpoint, what exceeds the usual `other` of a step is the rest of the
checkpoint: an upload, for example.
"""

from __future__ import annotations

import sys
import time
from random import Random
from types import FrameType
from typing import Any

from stallscope.training.integrations.pytorch_input_calls import InputCalls
from stallscope.training.shim import rebooking
from stallscope.training.shim.run import Run
from stallscope.training.shim.timeline import Phase

_FIRST = 64
"""Intervals that are all observed, to learn what usually happens in them."""
_SHARE = 0.005
"""Share of the loop's time that observing may take."""
_EVENT_COST = 2e-6
"""Seconds that one event of the profiling hook takes, about."""
_SWITCH_COST = 30e-6 if sys.version_info >= (3, 12) else 1e-6
"""Seconds that setting the hook takes, about: from 3.12 on, code has to be instrumented for it."""
_MOST_EVENTS = 4096
"""Events that are observed of one interval before the loop begins."""
_MOST_PLACES = 16
"""Intervals of a step that are distinguished; the last of these stands for all that follow."""
_BEFORE_LOOP = 0.1
"""Seconds that observing may take before the loop begins, besides its share of the time. A program that never trains
calls its modules without end."""
_UNUSUAL = 4.0
"""Multiple of the newest observed interval from which a longer one contains something else, such as an upload."""


class LoopInput(InputCalls):
    """The intervals of a loop."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._timeline = run.timeline
        self._other = run.timeline.other
        self._wait = run.timeline.phase("data_wait")
        self.own_waits = -1 if self._wait.opened else self._wait.occurrences
        """Waits for data that the loop has booked; all others are the program's own."""
        self._intervals = 0
        self._due = 0
        """Number of the next interval to observe. At a fixed distance, it could always be the same one of a step."""
        self._random = Random(0)  # noqa: S311 - not for secrets; the program's own generator stays as it is
        self._cost = _SWITCH_COST
        """Seconds that observing the newest observed interval took, about."""
        self._forward = run.timeline.phase("forward")
        self._steps = -1
        self._place = 0
        """Number of intervals of the step before the present one, up to a limit."""
        self._usual: dict[tuple[str, int], tuple[float, float, float]] = {}
        """Seconds of input, of the forward pass, and of all else in the newest observed interval, by what ended it and
        its place in the step: a step may draw one batch and call several modules."""
        self._stored: Phase | None = None
        """The checkpoint that the present interval follows."""
        self._stored_at = 0.0
        self._usual_rest = 0.0
        """Seconds of `other` that the step usually has from there on."""

    def follow(self, checkpoint: Phase, *, is_in_step: bool) -> None:
        """Note that a checkpoint has ended: the code up to the next phase may belong to it.

        Args:
            checkpoint: its phase.
            is_in_step: whether the code that each step has may follow.
        """
        timeline, other = self._timeline, self._other
        spent = self._seconds()
        rebooking.snapshot(timeline)
        self._stored, self._stored_at = checkpoint, spent
        self._usual_rest = max(spent / max(timeline.steps, 1) - (spent - other.mark), 0.0) if is_in_step else 0.0
        self.is_open = True

    def end(self, *, computes_gradients: bool = False) -> None:
        """End the interval where a phase begins that is not a call of a module."""
        super().end(computes_gradients=computes_gradients)
        self._extend_checkpoint()

    def end_with_call(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """End the interval where a module is called."""
        super().end_with_call(arguments, options)
        self._extend_checkpoint()

    def forget(self) -> None:
        """Prepare for a report."""
        super().forget()
        checkpoint = self._stored
        self._extend_checkpoint()
        self._stored, self._stored_at = checkpoint, self._seconds()

    def _extend_checkpoint(self) -> None:
        if self._stored is None:
            return
        checkpoint, self._stored = self._stored, None
        spent = self._seconds() - self._stored_at
        usual = min(spent, self._usual_rest)
        self._usual_rest -= usual
        if spent > usual:
            rebooking.extend(self._timeline, checkpoint, spent - usual)

    def _is_due(self) -> bool:
        self._intervals += 1
        timeline = self._timeline
        self._place = min(self._place + 1, _MOST_PLACES) if timeline.steps == self._steps else 0
        self._steps = timeline.steps
        if self._is_observed:
            self._cost = _SWITCH_COST + self._events * _EVENT_COST
            step = timeline.step_seconds / max(timeline.steps, 1)
            period = max(int(3.0 * self._cost / (_SHARE * step + 1e-9)), 1)
            self._due = self._intervals + period + self._random.randrange(period)
        return self._intervals <= _FIRST or self._intervals >= self._due

    def _seconds(self) -> float:
        timeline, other = self._timeline, self._other
        return other.seconds + (timeline.now() - timeline.mark if timeline.current is other else 0.0)

    def _move(self, seconds: float) -> None:
        moved = self._move_to(self._wait, seconds)
        if moved > 0.0:
            self._moved += moved
            self.own_waits += 1

    def _compute(self, seconds: float) -> None:
        self._move_to(self._forward, seconds)

    def _move_to(self, phase: Phase, seconds: float) -> float:
        """Book seconds of `other` as a phase; return how many `other` had of them."""
        timeline = self._timeline
        timeline.settle()
        timeline.book(timeline.now())
        seconds = min(seconds, self._other.seconds)
        if seconds > 0.0:
            rebooking.move(self._other, phase, seconds)
        return seconds

    def _settle(self, ended_by: str) -> None:
        """Learn from an interval that was observed; estimate what another one held."""
        began, self._began = self._began or 0.0, None
        if self._is_observed:
            if self._stored is None:
                self._usual[ended_by, self._place] = (self._moved, self._computed, self._seconds() - began)
            return
        moved, computed, rest = self._usual.get((ended_by, self._place), (0.0, 0.0, 0.0))
        if moved + computed > 0.0:
            elapsed, usual = self._seconds() - began, moved + computed + rest
            share = 1.0 if elapsed > _UNUSUAL * usual else elapsed / usual
            self._move(share * moved)
            if computed > 0.0:
                self._compute(share * computed)


class FirstInput(InputCalls):
    """The time before a loop's first call of a module, in which its first batch was drawn.

    Anything may happen then, so the number of observed events is limited.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        """Seconds in which the first batch was drawn, by the end of the newest interval."""
        self._since = time.monotonic()
        self._spent = 0.0

    def begin(self, *, has_batch: bool = False) -> None:
        """Begin to observe, once more."""
        self._stop()
        self.seconds = 0.0
        super().begin(has_batch=has_batch)

    def _is_due(self) -> bool:
        if self._is_observed:
            self._spent += _SWITCH_COST + self._events * _EVENT_COST
        return self._spent < _BEFORE_LOOP + _SHARE * (time.monotonic() - self._since)

    def _seconds(self) -> float:
        return time.monotonic()

    def _move(self, seconds: float) -> None:
        self.seconds = self._moved = seconds

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        super()._profile(frame, event, argument)
        if self._events > _MOST_EVENTS:
            self._stop()
            self._began = None
