"""Note the events of a loop whose steps repeat, and process many of them at a time.

Processing an event takes a few microseconds while its code is in the caches, and eight times as long between the
training's own operations, which replace it. Noting the time of an event takes one microsecond. So while a loop trains
from one loader, events are noted, and the loop processes them a few hundred at a time, each with the time at which it
happened. Any other use of the run's timeline processes the noted events first. An event that a plain step does not have
ends the noting.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from math import inf
from threading import get_ident
from typing import TYPE_CHECKING, Any

from torch import is_grad_enabled

from stallscope.training.shim.tolerance import tolerate

if TYPE_CHECKING:
    from stallscope.training.integrations.pytorch_batches import Pass
    from stallscope.training.integrations.pytorch_device import Span
    from stallscope.training.integrations.pytorch_observed import Observed

STEPS_REPEAT = "steps repeat"
STEPS_DIFFER = "steps differ"
"""Events of `Observers`."""
_ENOUGH_EVENTS = 3 * 256
"""Length of the list of events, with three values each, at which they are processed."""
_MOST_EVENTS = 3 * 4096
"""Its length at most, where no optimizer steps."""
SHORT = 0.5
"""Length of a step, as a share of the time between reports, up to which its events are noted. During a longer step,
reports are sent between its phases."""
_PATIENCE = 2
"""Plain steps in a row after which events are noted. The number doubles each time that the noting ends soon."""
_MOST_PATIENCE = 256
_SOON = 16
"""Optimizer steps. A noting that contains fewer ended soon."""


class _EndsNoting:
    """A method of the loop. Its call ends the noting, because a plain step contains no such event."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, steady: SteadyLoop, owner: type) -> Any:
        return getattr(steady.live(), self._name)


class SteadyLoop:
    """Replaces a loop while its steps repeat.

    Its methods run between the operations of the training, so each does as little as it can. That is why the ends of
    fetches, forward and backward passes append their events themselves, without a call of `_note`, and why the class
    has slots and no `__getattr__`, which makes each access to an attribute slower. An event is three values of one flat
    list: a tuple that is kept takes memory that is not in the caches, and is work for the garbage collector.
    """

    __slots__ = (
        "_add",
        "_all_optimizers",
        "_began",
        "_begin_fetch",
        "_calls",
        "_change",
        "_clock",
        "_close_backward",
        "_close_forward",
        "_close_optimizer",
        "_device",
        "_end_fetch",
        "_ended",
        "_events",
        "_gradients_off",
        "_iterator",
        "_loop",
        "_modules",
        "_moment",
        "_open_backward",
        "_open_forward",
        "_open_optimizer",
        "_optimizer_span",
        "_pass",
        "_span",
        "_state",
        "_stepping",
        "_thread",
        "_timeline",
        "_waiting",
        "is_open",
        "patience",
        "processing_seconds",
        "run",
        "steps",
    )

    begin_capture = _EndsNoting()
    begin_pass = _EndsNoting()
    communicated = _EndsNoting()
    end_capture = _EndsNoting()
    gradients_of = _EndsNoting()
    release_tensors = _EndsNoting()
    replayed = _EndsNoting()
    stored = _EndsNoting()

    def __init__(self, loop: Observed, change: Callable[[str], None]) -> None:
        """Prepare to note events.

        Args:
            loop: processes them.
            change: called when the noting begins and when it ends.
        """
        self._loop = loop
        self._state = loop.state
        self._all_optimizers = loop.counts_all_optimizers
        self._change = change
        self.run = loop.run
        self.is_open = False
        """True while events are noted."""
        self.steps = 0
        """Optimizer steps that were noted so far."""
        self.patience = _PATIENCE
        """Plain steps in a row after which to begin."""
        self.processing_seconds = 0.0
        """Seconds that the processing of noted events has taken so far."""
        self._timeline = loop.run.timeline
        self._clock = self._timeline.now
        self._calls = loop.state.calls
        self._modules = loop.modules
        self._events: list[Any] = []  # time, function that processes the event, its argument; time, …
        self._add = self._events.extend
        self._moment = 0.0
        self._waiting = 0  # optimizer steps that are noted and not processed
        self._began = 0  # steps when the noting began
        self._ended = 0.0  # the newest optimizer step, in seconds of the run's clock
        self._thread = 0
        self._pass: Pass | None = None
        self._iterator: Callable[[], Any] = _nothing
        self._gradients_off = False
        self._device = loop.state.device
        self._span: Span | None = None
        self._optimizer_span: Span | None = None
        self._stepping = 0  # id of the outermost optimizer that steps
        self._begin_fetch: Callable[[Any], None] = loop.begin_fetch
        self._end_fetch: Callable[[int], None] = _nothing
        self._open_forward, self._close_forward = loop.open_forward, loop.close_forward
        self._open_backward, self._close_backward = loop.open_backward, loop.close_backward
        self._open_optimizer, self._close_optimizer = loop.open_optimizer, loop.close_optimizer

    @property
    def optimizer_steps(self) -> int:
        """Steps of optimizers."""
        return self._loop.optimizer_steps + self._waiting

    def begin(self, training: Pass, *, gradients_off: bool) -> None:
        """Note events from now on, while batches come from this pass."""
        self.is_open = True
        self._thread = get_ident()
        self._pass = training
        self._iterator = training.iterator
        self._end_fetch = functools.partial(self._loop.end_fetch, training)
        self._gradients_off = gradients_off
        self._began = self.steps
        self._clock = self._timeline.now
        self._ended = self._clock()
        self._device = self._state.device
        self._timeline.pending = self.settle
        self._timeline.peek = self._open_phase
        self._change(STEPS_REPEAT)

    def end(self) -> None:
        """Process the noted events; from now on, the loop processes events as they happen."""
        if not self.is_open or get_ident() != self._thread:
            return
        self.is_open = False
        self._timeline.pending = self._timeline.peek = None
        self._process()
        self._state.optimizer_span = self._optimizer_span
        self._optimizer_span, self._stepping = None, 0
        self.patience = _PATIENCE if self.steps - self._began >= _SOON else min(2 * self.patience, _MOST_PATIENCE)
        self._change(STEPS_DIFFER)

    def settle(self) -> None:
        """Process the noted events, and go on."""
        if self._events and get_ident() == self._thread:
            self._timeline.pending = None
            self._process()
            self._timeline.pending = self.settle

    def next_batch(self, iterator: Any, following: Callable[[Any], Any]) -> Any:
        """Let a loader's iterator return its next batch."""
        found: Any = self._pass
        if (
            self._iterator() is not iterator
            or get_ident() != self._thread
            or not is_grad_enabled()
            or self._timeline.listener is not None
        ):
            return self.live().next_batch(iterator, following)
        began = self._clock()
        self._add((began, self._begin_fetch, found))
        calls = self._calls
        calls.ignored = True
        try:
            batch = following(iterator)
        except BaseException as error:
            calls.ignored = False
            self.end()
            self._loop.fail_fetch(found, iterator, error)
            raise
        calls.ignored = False
        dimension = found.dimension(batch)
        if self.is_open:
            now = self._clock()
            self._add((now, self._end_fetch, dimension))
            if self._device is not None:
                self._device.unprocessed += now - began
        else:
            self._end_fetch(dimension)
        return batch

    def begin_forward(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """Begin a module's call."""
        known = self._modules.get(id(module))
        if known is None or known.module() is not module or get_ident() != self._thread or not is_grad_enabled():
            return bool(self.live().begin_forward(module, arguments, options))
        if not known.is_observed:
            return False
        if not known.trains or len(self._events) > _MOST_EVENTS:
            return bool(self.live().begin_forward(module, arguments, options))
        self._calls.ignored = True
        self._add((self._clock(), self._open_forward, None))
        if self._device is not None:
            self._span = None if self._timeline.current.outside else self._device.begin("forward")
        return True

    def end_forward(self) -> None:
        """End a module's call."""
        self._calls.ignored = False
        if self._device is not None:
            self._device.end(self._span)
        if self.is_open:
            self._add((self._clock(), self._close_forward, None))
        else:
            self._close_forward(None)

    def backward(self, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Let gradients be computed."""
        if get_ident() != self._thread:
            return self._loop.backward(function, arguments, options)
        calls, device = self._calls, self._device
        ignored = calls.ignored
        calls.ignored = True
        self._add((self._clock(), self._open_backward, ()))
        span = None if device is None else device.begin("backward")
        try:
            return function(*arguments, **options)
        finally:
            calls.ignored = ignored
            if device is not None:
                device.end(span)
            if self.is_open:
                self._add((self._clock(), self._close_backward, None))
            else:
                self._close_backward(None)

    def begin_optimizer(self, optimizer: Any) -> None:
        """Begin the step of an optimizer."""
        if get_ident() != self._thread or not (self._all_optimizers or self._loop.counts(optimizer)):
            return
        key = id(optimizer)
        self._add((self._clock(), self._open_optimizer, key))
        if not self._stepping:  # else the optimizer is a part of another
            self._stepping = key
            if self._device is not None:
                self._optimizer_span = self._device.begin("optimizer")

    def end_optimizer(self, optimizer: Any) -> None:
        """End the step of an optimizer. Process the noted events if there are enough, or if a report is due."""
        if get_ident() != self._thread or not (self._all_optimizers or self._loop.counts(optimizer)):
            return
        key = id(optimizer)
        if self._stepping == key:
            self._stepping = 0
            self.steps += 1
            self._waiting += 1
            if self._device is not None:
                self._device.end(self._optimizer_span)
                self._optimizer_span = None
        now = self._clock()
        self._add((now, self._close_optimizer, key))
        if len(self._events) >= _ENOUGH_EVENTS:
            self.settle()
        if now >= self._timeline.due:
            self._publish()
        if now - self._ended > SHORT * self._timeline.interval:
            self.end()
        self._ended = now

    def scaled_step(self, scaler: Any, function: Callable[..., Any], arguments: tuple[Any, ...], options: Any) -> Any:
        """Let a gradient scaler step its optimizer, or leave it where gradients are not finite."""
        if get_ident() != self._thread:
            return function(scaler, *arguments, **options)
        before = self.optimizer_steps
        result = function(scaler, *arguments, **options)
        if scaler.is_enabled() and self.optimizer_steps == before:
            self.live().skip_step()
        return result

    def copied(self, tensor: Any, function: Callable[..., Any], arguments: tuple[Any, ...], options: Any) -> Any:
        """Let a tensor be moved to the GPU."""
        device = self._device
        if device is None or not tensor.is_cpu or get_ident() != self._thread:
            return function(tensor, *arguments, **options)
        self._note(self._loop.begin_copy, None)
        span = device.begin("host_copy")
        try:
            return function(tensor, *arguments, **options)
        finally:
            device.end(span)
            self._note(self._loop.end_copy, None)

    def gradients_switched(self) -> None:
        """Take note that a context may have switched gradients off, or on again."""
        off = not is_grad_enabled()
        if off != self._gradients_off and get_ident() == self._thread:
            self._gradients_off = off
            self._note(self._loop.gradients_switched, off)

    def mode_switched(self, trains: bool) -> None:
        """Take note that a module was switched to training or to evaluation mode."""
        if get_ident() != self._thread:
            return
        if trains:
            self._note(self._loop.mode_switched, True)
        else:
            self.live().mode_switched(trains)

    def live(self) -> Observed:
        """End the noting, and return the loop, which processes the next event at once."""
        self.end()
        return self._loop

    def _open_phase(self) -> str:
        """Return the phase that the newest noted event has opened; an empty string without one. For any thread."""
        loop = self._loop
        opening = {
            self._begin_fetch: "data_wait",
            loop.begin_copy: "host_copy",
            self._open_forward: "forward",
            self._open_backward: "backward",
            self._open_optimizer: "optimizer",
        }
        for process in reversed(self._events[-9:][1::3]):
            if process not in (loop.gradients_switched, loop.mode_switched):
                return opening.get(process, "other")
        return ""

    def _note(self, process: Callable[[Any], object], argument: Any) -> None:
        """Note an event; if the noting has ended since it was checked, process it at once."""
        if self.is_open:
            self._add((self._clock(), process, argument))
        else:
            process(argument)

    def _publish(self) -> None:
        try:
            self._timeline.publish(self._clock())
            self._device = self._state.device
        except Exception as error:
            tolerate(error, "sending a report")

    def _process(self) -> None:
        """Process all events, each with the time at which it happened."""
        began = time.thread_time()
        timeline, state, calls, events = self._timeline, self._state, self._calls, self._events
        device, ignored, due, clock = state.device, calls.ignored, timeline.due, timeline.now
        state.device, timeline.due, timeline.now, state.is_replaying = None, inf, self._now, True
        try:
            values = iter(events)
            for self._moment, process, argument in zip(values, values, values, strict=True):
                process(argument)
        except Exception as error:
            tolerate(error, "observing a loop")
        finally:
            events.clear()
            state.device, timeline.due, timeline.now, state.is_replaying = device, due, clock, False
            self._waiting = 0
            if device is not None:
                device.unprocessed = 0.0
            calls.ignored = ignored
            self.processing_seconds += time.thread_time() - began

    def _now(self) -> float:
        return self._moment


def _nothing(*_: object) -> None:
    """Stand for an iterator that is not known, and for the end of its fetches."""
