"""One step as it went: which phases on the run's thread, which spans on any.

While nothing is recorded, phases cost what they always cost: a recording listens to the timeline's clock, which is
read exactly where one phase gives way to another.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Protocol

    from stallscope.training.shim.session import Session
    from stallscope.training.shim.timeline import Phase, Timeline

    class Interval(Protocol):
        """The context manager of `span`."""

        def __enter__(self) -> object:
            """Begin."""

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            """End."""


MAX_MOMENTS = 200_000
"""Most changes of phase, and most spans, of one recording; the rest of the step is left out."""


class Span:
    """An interval on one thread, with a name."""

    __slots__ = ("_recording", "began", "ended", "name", "thread", "thread_name")

    def __init__(self, recording: Recording, name: object) -> None:
        self._recording = recording
        self.name = name
        self.began = 0.0
        self.ended: float | None = None
        """None while it lasts."""
        self.thread = 0
        self.thread_name = ""

    def __enter__(self) -> None:
        self.thread = threading.get_native_id()
        self.thread_name = threading.current_thread().name
        self.began = self._recording.clock()
        if len(self._recording.spans) < MAX_MOMENTS:
            self._recording.spans.append(self)

    def __exit__(self, *_: object) -> None:
        self.ended = self._recording.clock()


class Recording:
    """Listens from its creation until `stop`."""

    def __init__(self, run: Session) -> None:
        global _recording
        timeline = run.timeline
        self._run = run
        self._timeline = timeline
        self.clock = timeline.now
        """The timeline's clock, as it is without listening."""
        self.began = timeline.mark
        """When the step began; for one that begins later, when what comes before it did."""
        self.ended = self.began
        self.zero = run.wall_time() - self.clock()
        """Unix time of the timeline's zero."""
        self.thread = threading.get_native_id()
        self.thread_name = threading.current_thread().name
        self.moments: list[tuple[float, tuple[Phase, ...]]] = []
        """Moments, and the phases that were open up to each, the innermost last."""
        self.spans: list[Span] = []
        timeline.now = self._listen
        _recording = self

    @property
    def over(self) -> bool:
        """True if the run has ended, or this is a forked child."""
        return self._run.silent

    @property
    def stopped(self) -> bool:
        """True if it no longer listens."""
        return self._timeline.now == self.clock

    @property
    def complete(self) -> bool:
        """True if nothing was left out."""
        return len(self.moments) < MAX_MOMENTS and len(self.spans) < MAX_MOMENTS

    def stop(self) -> None:
        """Listen no more."""
        global _recording
        self.ended = self._timeline.mark  # the end of the step, not the time of this call
        self._timeline.now = self.clock
        if _recording is self:
            _recording = None

    def _listen(self) -> float:
        now = self.clock()
        if len(self.moments) < MAX_MOMENTS:
            timeline = self._timeline
            self.moments.append((now, open_phases(timeline)))
        return now


def open_phases(timeline: Timeline) -> tuple[Phase, ...]:
    """Return the open phases, the outermost first."""
    found = [timeline.current]
    while found[-1].around is not found[-1]:
        found.append(found[-1].around)
    return tuple(reversed(found))


_NO_SPAN: Interval = nullcontext()
_recording: Recording | None = None


def span(name: str) -> Interval:
    """Show a `with` block by name in traces, on the thread that runs it; free while no step is traced.

        with stallscope.span("augment"):
            batch = augment(batch)

    Spans nest, overlap phases freely, and appear in traces alone: for metrics there is `Run.phase`.
    """
    recording = _recording
    if recording is None or recording.over:
        return _NO_SPAN
    return Span(recording, name)
