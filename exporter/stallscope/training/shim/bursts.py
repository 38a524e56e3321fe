"""One burst of stack samples: the lines of code that are executed in each phase, for ten seconds."""

from __future__ import annotations

import sys
import time
from _thread import get_ident, start_new_thread

from stallscope.training.protocol.vocabulary import MAX_CODE_LINES, MAX_LABEL_LENGTH
from stallscope.training.shim import worker_samples
from stallscope.training.shim.code_location import entry_of, is_inside, is_waiting, spot_of
from stallscope.training.shim.timeline import NOT_LOST
from stallscope.training.shim.tolerance import tolerate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from stallscope.training.shim.code_location import Spot
    from stallscope.training.shim.timeline import Timeline
    from stallscope.training.shim.worker_samples import Counts, Entry

_LEAST_SHARE = 0.02
"""Minimum share of a phase for which a line is reported."""
_WORKERS_LATE = 60.0
"""Maximum seconds to wait for the workers to begin: a worker begins with its next batch."""


class Line:
    """A line of the program, and its share of the time of a phase."""

    __slots__ = ("function", "location", "share", "workers")

    def __init__(self, location: str, function: str, share: float, workers: int) -> None:
        self.location = location
        self.function = function
        self.share = share
        self.workers = workers
        """Number of worker processes in which the line was sampled; 0 if the training process executes it."""


class Burst:
    """One burst of samples, in a thread that ends by itself."""

    def __init__(self, timeline: Timeline, least_seconds: float = 0.4) -> None:
        """Prepare a burst for the loop in this thread.

        Args:
            timeline: the timeline of the run.
            least_seconds: minimum sampled seconds of a phase for a result.
        """
        self.booked = {name: phase.seconds for name, phase in timeline.phases.items()}
        """Seconds of each phase when the burst began."""
        self.cost = 0.0
        """CPU seconds of the thread."""
        self.samples_all = False
        """True if the phases of the GPU are sampled too."""
        self._timeline = timeline
        self._least_seconds = least_seconds
        self._thread = get_ident()
        self._channel = worker_samples.channel()
        self._samples: list[_Sample] = []
        self._is_stopped = self._is_done = False
        self._began = time.monotonic()

    @property
    def is_over(self) -> bool:
        """True if all samples were taken, including those of the workers."""
        if not self._is_done or self._channel is None or not any(sample.waits for sample in self._samples):
            return self._is_done
        age = time.monotonic() - self._began
        # Workers begin with their next batch, so the last one ends after this process.
        return age >= 2.0 * worker_samples.SECONDS and (age >= _WORKERS_LATE or bool(self._channel.counts()))

    @property
    def seconds(self) -> dict[str, float]:
        """Sampled seconds of each phase."""
        found: dict[str, float] = {}
        for sample in self._samples:
            found[sample.phase] = found.get(sample.phase, 0.0) + sample.seconds
        return found

    def start(self) -> None:
        """Start the thread, and the bursts of the workers."""
        self._timeline.rebooked = self._rebook
        if self._channel is not None:
            self._channel.begin()
        try:
            start_new_thread(self._sample, ())
        except RuntimeError as error:
            self._is_done = True
            tolerate(error, "sampling stacks")

    def stop(self) -> None:
        """End the thread with its next sample, and the bursts of the workers."""
        self._is_stopped = True
        self._timeline.rebooked = None
        if self._channel is not None:
            self._channel.end()

    def lines(self) -> dict[str, list[Line]]:
        """Return the lines of each phase that was sampled for long enough, the largest share first."""
        workers = self._channel.counts() if self._channel is not None else {}
        found: dict[str, list[Line]] = {}
        for phase, total in self.seconds.items():
            if total < self._least_seconds or (phase in NOT_LOST and not self.samples_all):
                continue
            samples = [sample for sample in self._samples if sample.phase == phase]
            direct: Counts = {}
            helping: Counts = dict(workers) if phase == "data_wait" else {}
            waited = 0.0
            for sample in samples:
                for spot in sample.helpers:
                    _add(helping, entry_of(spot), sample.seconds)
                if sample.waits:
                    waited += sample.seconds
                elif sample.spot is not None:
                    _add(direct, entry_of(sample.spot), sample.seconds)
            helped = sum(seconds for seconds, _ in helping.values())
            for key, (seconds, number) in helping.items() if helped else ():
                _add(direct, key, waited * seconds / helped, number)
            lines = [line for line in _lines(direct, total) if line.share >= _LEAST_SHARE]
            if lines:
                found[phase] = lines[:MAX_CODE_LINES]
        return found

    def _sample(self) -> None:
        try:
            spots_of_others, ticks = worker_samples.spots_of_others, worker_samples.ticks
            timeline = self._timeline
            for now, seconds in ticks():
                if self._is_stopped:
                    break
                peek = timeline.peek
                phase = (peek() if peek is not None else "") or timeline.current.name
                if phase in NOT_LOST and not self.samples_all:
                    continue
                frames = sys._current_frames()  # noqa: SLF001 - no public function returns the stacks
                frame = frames.get(self._thread)
                if frame is None:  # the loop's thread has ended
                    break
                if phase == "other" and is_inside(frame, timeline.input_functions):
                    phase = "data_wait"
                waits = phase == "data_wait" and is_waiting(frame)
                helpers = spots_of_others(frames, self._thread) if waits else []
                self._samples.append(_Sample(now, seconds, phase, None if waits else spot_of(frame), waits, helpers))
                del frames, frame  # they keep the local variables of the program alive
            self.cost = time.thread_time()
        except Exception as error:
            tolerate(error, "sampling stacks")
        finally:
            self._is_done = True

    def _rebook(self, began: float, ended: float, target: str, sources: Collection[str]) -> None:
        """Move the samples of an interval to another phase, as the timeline moves its time."""
        for sample in self._samples:
            if began <= sample.moment <= ended and sample.phase in sources:
                sample.phase = target


class _Sample:
    __slots__ = ("helpers", "moment", "phase", "seconds", "spot", "waits")

    def __init__(
        self, moment: float, seconds: float, phase: str, spot: Spot | None, waits: bool, helpers: list[Spot]
    ) -> None:
        self.moment = moment
        self.seconds = seconds
        """Seconds that the sample represents."""
        self.phase = phase
        self.spot = spot
        self.waits = waits
        """True if the loop waits for data from other threads or processes."""
        self.helpers = helpers
        """Lines of the threads that the loop waits for."""


def _add(counts: Counts, key: Entry, seconds: float, workers: int = 0) -> None:
    before, seen = counts.get(key, (0.0, 0))
    counts[key] = (before + seconds, max(seen, workers))


def _lines(counts: Counts, total: float) -> list[Line]:
    """Return lines sorted by share, each with the library function in which it spends most of its time, if any."""
    lines: dict[tuple[str, str], list[tuple[float, int, str]]] = {}
    for (location, function, beneath), (seconds, workers) in counts.items():
        lines.setdefault((location, function), []).append((seconds, workers, beneath))
    found = []
    for (location, function), parts in lines.items():
        seconds = sum(part[0] for part in parts)
        most = max(parts)
        if most[2] and most[0] > 0.5 * seconds and len(function) + len(most[2]) + 3 <= MAX_LABEL_LENGTH:
            function = f"{function} > {most[2]}"
        found.append(Line(location, function, min(seconds / total, 1.0), max(part[1] for part in parts)))
    found.sort(key=lambda line: (-line.share, line.location))
    return found
