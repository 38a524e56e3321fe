"""Direct the events of a PyTorch loop to one observer at a time.

| state | the observer | it is left by |
|---|---|---|
| `PROCESSING` | the loop processes each event | `STEPS_REPEAT`, `TIMING_BEGINS` |
| `NOTING` | `SteadyLoop` notes events, of which the loop processes many at a time | `STEPS_DIFFER`, `TIMING_BEGINS` |
| `TIMED_PROCESSING` | `TimedLoop` times the calls of the loop | `STEPS_REPEAT`, `TIMING_ENDS` |
| `TIMED_NOTING` | `TimedLoop` times the calls of `SteadyLoop` | `STEPS_DIFFER`, `TIMING_ENDS` |
| `CLOSED` | none: another loop is observed | nothing |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stallscope.training.integrations.pytorch_cost import TIMING_BEGINS, TIMING_ENDS, Overhead, TimedLoop
from stallscope.training.integrations.pytorch_steady import SHORT, STEPS_DIFFER, STEPS_REPEAT, SteadyLoop

if TYPE_CHECKING:
    from stallscope.training.integrations.pytorch_batches import Pass
    from stallscope.training.integrations.pytorch_observed import Observed, Observing

PROCESSING = "processing"
NOTING = "noting"
TIMED_PROCESSING = "timed processing"
TIMED_NOTING = "timed noting"
CLOSED = "closed"
TRANSITIONS = {
    PROCESSING: {STEPS_REPEAT: NOTING, TIMING_BEGINS: TIMED_PROCESSING},
    NOTING: {STEPS_DIFFER: PROCESSING, TIMING_BEGINS: TIMED_NOTING},
    TIMED_PROCESSING: {STEPS_REPEAT: NOTING, TIMING_ENDS: PROCESSING},
    TIMED_NOTING: {STEPS_DIFFER: PROCESSING, TIMING_ENDS: NOTING},
    CLOSED: {},
}
"""The state after each event; an event that is not listed changes nothing."""


class Observers:
    """The observers of one loop, and which of them receives the events."""

    def __init__(self, loop: Observed, direct: Callable[[Any], None]) -> None:
        """Direct events to the loop, and time its first steps unless the run's clock is scripted.

        Args:
            loop: processes events.
            direct: directs events to an observer.
        """
        self._direct = direct
        self.state = PROCESSING
        """One of the states."""
        self.steady = SteadyLoop(loop, self.change)
        """Notes events."""
        self._timed = None if loop.run.is_scripted else TimedLoop(loop, self.change)
        self._untimed: dict[str, Observing] = {PROCESSING: loop, NOTING: self.steady}
        self._untimed |= {TIMED_PROCESSING: loop, TIMED_NOTING: self.steady}
        self._timeline = loop.run.timeline
        self._overhead = Overhead(loop.run)
        self._plain_steps = 0
        """Plain steps in a row."""
        self._ended = 0.0
        """Time of the newest step, in seconds of the run's clock."""
        direct(loop)
        self.reported()

    def change(self, event: str) -> None:
        """Direct events to the observer of the state that follows."""
        after = TRANSITIONS[self.state].get(event)
        if after is None:
            return
        self.state = after
        is_timed = after in (TIMED_PROCESSING, TIMED_NOTING)
        if self._timed is not None and not is_timed:
            self._timed.stop()
        self._direct(self._timed if is_timed else self._untimed[after])

    def stepped(self, training: Pass | None, *, gradients_off: bool) -> None:
        """Note events from now on, if the steps repeat.

        Args:
            training: the pass that the batches of the newest step came from, if the step was plain training.
            gradients_off: whether gradients are off.
        """
        timeline, before = self._timeline, self._ended
        self._ended = timeline.mark
        if training is None or timeline.mark - before > SHORT * timeline.interval:
            self._plain_steps = 0
            return
        self._plain_steps += 1
        if self._plain_steps > self.steady.patience and STEPS_REPEAT in TRANSITIONS[self.state]:
            self._plain_steps = 0
            self.steady.begin(training, gradients_off=gradients_off)

    def reported(self) -> None:
        """Add the cost of the steps since the last report to the run's overhead, and time the next ones."""
        if self._timed is not None:
            seconds = self._timed.added(self._untimed[self.state])
            self._overhead.add(seconds, self.steady.processing_seconds)

    def close(self) -> None:
        """Process the noted events, and direct no more."""
        self.steady.end()
        self.state = CLOSED
