"""The GPU's own clock for a PyTorch loop: events on its stream around phases, read once they have passed."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from stallscope.training.shim.run import Run
from stallscope.training.shim.tolerance import tolerate

_MOST_EVENTS = 512
"""Events that are made at most: where the GPU lags further behind than that, occurrences go untimed."""


@dataclass(slots=True, eq=False)
class Span:
    """One occurrence of a phase on the stream."""

    phase: str
    began: Any
    outer: Span | None
    ended: Any = None
    inner: float = 0.0
    """Seconds of the spans that were opened inside this one."""
    waited: float = 0.0
    """Seconds that the loop had waited for data until then."""


class DeviceClock:
    """Reports to a run how long the GPU took from the beginning of each phase to its end, without ever waiting for it.

    An event is a mark that the GPU stamps when it gets there. Marks are put on the current stream, where the phase's
    work is queued; while that stream is being captured into a graph there are none. Work that the GPU has not passed
    when a report is due is reported later. CUDA must be initialised already, since this class must not do so.
    """

    def __init__(self, cuda: Any, run: Run) -> None:
        self._cuda = cuda
        self._run = run
        self._free: list[Any] = []
        self._made = 0
        self._open: Span | None = None
        self._queued: deque[Span] = deque()
        self._owed: dict[str, float] = {}
        self._broken = False
        self._own_work = run.timeline.own_work
        self._own_work.on_device = True  # the host only queues the work
        self._forward = self._length = self._waited = 0.0
        self._spans = self._usual_spans = 0
        self._phases = run.timeline.phases
        self.unprocessed = 0.0
        """Seconds of data wait that are noted and not processed, so that the phase lacks them."""

    def begin(self, phase: str) -> Span | None:
        """Mark a phase's beginning; None where it can't be timed."""
        if self._broken or (begun := self._mark()) is None:
            return None
        wait = self._phases.get("data_wait")
        self._open = Span(phase, begun, self._open, waited=self.unprocessed + (0.0 if wait is None else wait.seconds))
        return self._open

    def end(self, span: Span | None) -> None:
        """Mark its end."""
        if span is None:
            return
        self._open = span.outer
        span.ended = None if self._broken else self._mark()
        if span.ended is not None:
            self._queued.append(span)

    def forget_open(self) -> None:
        """A phase was left without its end, by an exception."""
        self._open = None

    def on_main_stream(self) -> bool:
        """True if work is queued on the stream that the model computes on."""
        return bool(self._cuda.current_stream() == self._cuda.default_stream())

    def move(self, phase: str, other: str, seconds: float) -> None:
        """Book time of one phase to another, once that much of the first has been measured."""
        self._owed[phase] = self._owed.get(phase, 0.0) + seconds
        self._run.gpu_time(other, seconds)

    def read(self) -> None:
        """Report all work that the GPU has passed by now."""
        try:
            # A stream that is being captured forbids even queries.
            if self._broken or self._cuda.is_current_stream_capturing():
                return
            while self._queued and self._queued[0].ended.query():
                self._report_span(self._queued.popleft())
        except Exception as error:
            self._give_up(error)

    def _report_span(self, span: Span) -> None:
        elapsed = span.began.elapsed_time(span.ended) / 1e3
        self._free += (span.began, span.ended)
        if span.outer is not None:
            span.outer.inner += elapsed
        seconds = max(elapsed - span.inner, 0.0)
        self._add_own_work(span.phase, seconds, span.waited)
        if owed := self._owed.get(span.phase):
            paid = min(owed, seconds)
            self._owed[span.phase] = owed - paid
            seconds -= paid
        self._run.gpu_time(span.phase, seconds)

    def _add_own_work(self, phase: str, seconds: float, waited: float) -> None:
        """Compare each step with the one before. Only the backward pass has waits for other ranks."""
        self._spans += 1
        self._length += seconds
        if phase == "forward":
            self._forward += seconds
        elif phase == "optimizer":
            if self._spans == self._usual_spans:
                self._own_work.add_forward(self._forward, self._length, waited=waited - self._waited)
            else:
                self._own_work.interrupt()  # an evaluation, or another number of micro-batches
            self._usual_spans, self._spans = self._spans, 0
            self._forward = self._length = 0.0
            self._waited = waited

    def _mark(self) -> Any:
        try:
            if self._cuda.is_current_stream_capturing():
                return None
            if self._free:
                event = self._free.pop()
            elif self._made < _MOST_EVENTS:
                self._made += 1
                event = self._cuda.Event(enable_timing=True)
            else:
                return None
            event.record()
        except Exception as error:
            self._give_up(error)
            return None
        return event

    def _give_up(self, error: Exception) -> None:
        # A GPU that fell off fails every call from now on; the training will notice by itself.
        self._broken = True
        self._queued.clear()
        tolerate(error, "timing the GPU")


def report_allocator(cuda: Any, run: Run) -> None:
    """Report the memory of PyTorch's allocator on the current GPU; it reads only the allocator's statistics."""
    statistics = cuda.memory_stats_as_nested_dict()
    if not statistics:
        return
    run.gauge("allocator_reserved_bytes", statistics["reserved_bytes"]["all"]["current"])
    run.gauge("allocator_used_bytes", statistics["allocated_bytes"]["all"]["current"])
    run.gauge("allocator_peak_bytes", statistics["allocated_bytes"]["all"]["peak"])
    run.count("allocator_retries", statistics["num_alloc_retries"])
    run.count("out_of_memory", statistics["num_ooms"])


class ReducerClock:
    """How long a DistributedDataParallel model's backward passes wait for other ranks, by the reducer's own clock.

    The reducer times the first ten iterations and then one in a hundred. What it last measured between the end of
    computing and the end of communicating stands for the iterations since.
    """

    def __init__(self) -> None:
        self._iteration = -1

    def read(self, model: Any) -> float:
        """Seconds of exposed communication since the last call."""
        data = model._get_ddp_logging_data()  # noqa: SLF001 - there is no other way to it
        iteration = data.get("iteration", -1)
        computed, communicated = data.get("backward_compute_time_end"), data.get("backward_comm_time_end")
        if iteration < 0 or not computed or not communicated:
            return 0.0
        passed = iteration - self._iteration
        self._iteration = iteration
        return float(max(communicated - computed, 0) * max(passed, 0) / 1e9)


class Reducers:
    """The reducers of all `DistributedDataParallel` models."""

    def __init__(self, models: Iterable[Any]) -> None:
        """Time reducers.

        Args:
            models: the models, more of which may be made later.
        """
        self._models = models
        self._clocks: weakref.WeakKeyDictionary[Any, ReducerClock] = weakref.WeakKeyDictionary()

    def report(self, device: DeviceClock) -> None:
        """Report the waits for other ranks since the last report."""
        for model in self._models:
            if waited := self._clocks.setdefault(model, ReducerClock()).read(model):
                device.move("backward", "communication", waited)
