"""Find out from contexts, modes and loaders when a PyTorch loop evaluates.

A machine of three states:

| state | meaning | it is left by |
|---|---|---|
| `TRAINING` | nothing suggests an evaluation | `suspect`, `open` |
| `SUSPECTED` | gradients or a mode were switched off between steps: this may be evaluation | `open`, `forget` |
| `EVALUATING` | the phase `evaluation` is open | `end` |

The loop decides when an evaluation begins. What ends it depends on how it began: a context without gradients, a module
in evaluation mode, or the iterator that its batches come from.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stallscope.training.shim import rebooking
from stallscope.training.shim.timeline import STEP_PHASES

if TYPE_CHECKING:
    from stallscope.training.shim.rebooking import Snapshot
    from stallscope.training.shim.timeline import Phase, Timeline

TRAINING = "training"
SUSPECTED = "suspected"
EVALUATING = "evaluating"
BETWEEN = ("initialization", "other")
"""Phases between those that the loop opens."""
_EVALUATED = (*STEP_PHASES, "initialization")
"""Phases whose time may turn out to have been an evaluation."""


class Evaluations:
    """The evaluations of one loop."""

    __slots__ = (
        "_close_step",
        "_ended",
        "_in_context",
        "_iterator",
        "_mode_of_current",
        "_phase",
        "_since",
        "_timeline",
        "_until",
        "called",
        "gradients_off",
        "in_mode",
        "state",
    )

    def __init__(
        self, timeline: Timeline, phase: Phase, close_step: Callable[[], None], ended: Callable[[], None]
    ) -> None:
        """Begin in the state `TRAINING`.

        Args:
            timeline: the timeline of the loop.
            phase: its phase `evaluation`.
            close_step: called before an evaluation begins, once its time is moved: a step may be complete.
            ended: called after an evaluation has ended.
        """
        self._timeline = timeline
        self._phase = phase
        self._close_step = close_step
        self._ended = ended
        self.state = TRAINING
        """One of the three states."""
        self.gradients_off = False
        """True if a context has switched gradients off."""
        self.called = False
        """True if modules in evaluation mode were called with gradients while an evaluation was suspected."""
        self.in_mode = False
        """True if a module was switched to evaluation mode since the training."""
        self._since: Snapshot | None = None
        """When a suspected evaluation may have begun."""
        self._until: Snapshot | None = None
        """When the newest call of such a module ended."""
        self._in_context = False
        """True if the evaluation is inside of a context without gradients, and ends with that."""
        self._mode_of_current = False
        """True if a module was switched to evaluation mode for the evaluation."""
        self._iterator: weakref.ref[Any] | None = None
        """The iterator that the batches of the evaluation come from, if known."""

    def suspect(self) -> None:
        """An evaluation may begin now: `TRAINING` becomes `SUSPECTED` between phases. No report is sent meanwhile."""
        if self.state is TRAINING and self._timeline.current.name in BETWEEN:
            self.state = SUSPECTED
            self._since = rebooking.snapshot(self._timeline)
            self._timeline.held = True

    def forget(self) -> None:
        """Training goes on: `SUSPECTED` becomes `TRAINING`."""
        self._since = self._until = None
        self.called = self.in_mode = False
        if self.state is SUSPECTED:
            self.state = TRAINING

    def switch_gradients(self, *, off: bool) -> None:
        """Take note that a context has switched gradients off, or on again."""
        if off == self.gradients_off:
            return
        self.gradients_off = off
        if off:
            self.suspect()
        elif self.state is EVALUATING:
            if self._in_context:
                goes_on = self._mode_of_current
                self.end()
                if goes_on:  # if another context follows before the training, the time between them is evaluation too
                    self.suspect()
                    self.in_mode = True
        elif self.state is SUSPECTED and not self.called and not self.in_mode:
            self._since = None
            self.state = TRAINING

    def switch_mode(self, *, trains: bool) -> None:
        """Take note that a module was switched to training or to evaluation mode."""
        if not trains:
            self.suspect()
            self.in_mode = True
            return
        if self.state is EVALUATING:
            if not self._in_context:
                self.end()
        elif self._since is not None and self._until is not None:
            rebooking.rebook(self._timeline, self._since, self._phase, _EVALUATED, self._until)
        self.forget()

    def note_call(self) -> None:
        """A call of a module has ended, while `called`: it belongs to the suspected evaluation."""
        self._until = rebooking.snapshot(self._timeline)

    def open(self, since: Snapshot | None = None, *, in_context: bool) -> None:
        """Begin an evaluation: any state becomes `EVALUATING`.

        Args:
            since: when it began; by default when it was suspected, else now.
            in_context: whether gradients are off, so that it ends when they are on again.
        """
        timeline, phase = self._timeline, self._phase
        since = self._since if since is None else since
        before = phase.occurrences
        if since is not None:
            rebooking.rebook(timeline, since, phase, _EVALUATED)
        self._close_step()
        in_mode = self.in_mode
        self.forget()
        timeline.held = False
        self.state = EVALUATING
        self._in_context, self._mode_of_current, self._iterator = in_context or self.gradients_off, in_mode, None
        phase.__enter__()
        if not phase.hidden:
            phase.occurrences = before + 1

    def end(self) -> None:
        """End the evaluation, if there is one: `EVALUATING` becomes `TRAINING`."""
        if self.state is EVALUATING:
            self.state = TRAINING
            self._iterator = None
            self._phase.__exit__()
            self._ended()

    def goes_on(self, *, gradients: bool) -> bool:
        """Return whether a call belongs to the evaluation; end it if a function has switched gradients on again.

        Args:
            gradients: whether the call computes with gradients.
        """
        if self.state is not EVALUATING:
            return False
        if self._in_context and gradients:
            self.gradients_off = False
            self.end()
            return False
        self._timeline.report_if_due()
        return True

    @property
    def lacks_iterator(self) -> bool:
        """True during an evaluation whose batches come from no iterator that is known."""
        return self.state is EVALUATING and self._iterator is None

    def follow(self, iterator: Any, dropped: Callable[[weakref.ref[Any]], None]) -> None:
        """Take the batches of the evaluation to come from this iterator.

        Args:
            iterator: the iterator.
            dropped: called when the program has dropped it.
        """
        if self.state is EVALUATING:
            self._iterator = weakref.ref(iterator, dropped)

    def is_from(self, iterator: Any) -> bool:
        """Return whether the batches of the evaluation come from an iterator."""
        return self.state is EVALUATING and self._iterator is not None and self._iterator() is iterator

    def follows(self, reference: weakref.ref[Any]) -> bool:
        """Return whether a reference is that of the evaluation's iterator."""
        return self.state is EVALUATING and reference is self._iterator

    def leave(self) -> None:
        """The iterator has no more batches: end the evaluation, unless it lasts until gradients are on again."""
        if self.state is EVALUATING:
            if self._in_context:
                self._iterator = None
            else:
                self.end()

    def reported(self) -> None:
        """A report contains the time up to now, which cannot be moved any more."""
        if self._since is not None:
            self._since = rebooking.snapshot(self._timeline)
        self._until = None
