"""Find the lines of code in which a run loses time, with short bursts of stack samples.

If the run loses a tenth of a minute, or of the first ten seconds, or more in a phase of the host, a thread samples the
stack of the loop's thread for ten seconds, 20 times a second, and ends. Each sample counts for the open phase, and for
the innermost frame of the program's own code. While the loop waits for data, samples of its workers, and of the threads
that it waits for, are used instead.

A burst can be requested too (`protocol.stack_request`). It samples all phases, and its result is also written for the
exporter.

Between two bursts, the time of a phase is divided among its lines as in the newest burst that sampled this phase. So
the seconds of a line are an estimate that increases with the seconds of its phase.
"""

from __future__ import annotations

import sys
import time
from _thread import get_ident, start_new_thread
from math import inf

from stallscope.common.standard_library import standard_library
from stallscope.training.protocol.vocabulary import MAX_CODE_LINES, MAX_LABEL_LENGTH
from stallscope.training.shim import worker_samples
from stallscope.training.shim.tolerance import switched_off, tolerate
from stallscope.training.shim.writing import quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from stallscope.training.shim.code_location import Spot
    from stallscope.training.shim.run import Run
    from stallscope.training.shim.timeline import Timeline
    from stallscope.training.shim.worker_samples import Counts, Entry

WINDOW = 60.0
"""Seconds over which the time lost in a phase is measured."""
FIRST_WINDOW = 10.0
"""Seconds of the first such measurement, so that a short run has lines too."""
MUCH = 0.1
"""Share of the window: a phase that loses at least this much is sampled."""
AGAIN = 600.0
"""Seconds until a phase that still loses this much is sampled again."""
PAUSE = 60.0
"""Minimum seconds from the end of a burst to the next one."""
_BUSY = 0.8
"""Share of the time with work on the GPU, from which on the GPU limits the run."""
_ON_GPU = ("host_copy", "forward", "backward", "communication", "optimizer")
_NOT_LOST = (*_ON_GPU, "initialization", "restore", "paused")
"""Phases that are sampled only on request."""
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


def lines_of(run: Run) -> Mapping[str, Sequence[Line]]:
    """Return up to five lines of each sampled phase, sorted by share, the largest first."""
    return {} if run.silent or run.hot_lines is None else run.hot_lines.lines


class HotLines:
    """Starts bursts for a run, and keeps their results. Used only in the thread of the loop."""

    def __init__(
        self, timeline: Timeline, uses_gpu: Callable[[], bool], burst: Callable[[Timeline], Burst] | None = None
    ) -> None:
        """Start without lines.

        Args:
            timeline: the timeline of the run.
            uses_gpu: returns whether the run computes on GPUs, as far as known.
            burst: creates a burst; `Burst` by default.
        """
        self.lines: dict[str, list[Line]] = {}
        """By phase, the result of the newest burst that sampled the phase."""
        self.cost = 0.0
        """CPU seconds of all bursts in this process."""
        self._timeline = timeline
        self._uses_gpu = uses_gpu
        self._make = burst
        self._seconds: dict[str, dict[tuple[str, str], float]] = {}
        self._booked: dict[str, float] = {}
        self._began = -inf
        self._window = FIRST_WINDOW
        self._before: dict[str, tuple[float, float]] = {}
        self._wanted: set[str] = set()
        self._tried: dict[str, float] = {}
        self._ended = -inf
        self._burst: Burst | None = None
        self._deliver: Callable[[str], object] | None = None

    def refresh(self, now: float, *, last: bool = False) -> None:
        """Start or end a burst if it is due, and estimate the seconds of each line. Called before each report."""
        burst = self._burst
        if burst is None:
            if not self._timeline.looping:
                return
            self._judge(now)
            if not last and self._is_due(now):
                self.begin(now)
        elif last or burst.is_over:
            self._burst = None
            self._ended = now
            self._take(burst)
        for phase, lines in self.lines.items():
            booked = self._timeline.phases[phase].seconds
            added = max(booked - self._booked[phase], 0.0)
            self._booked[phase] = booked
            for line in lines:
                self._seconds[phase][line.location, line.function] += added * line.share

    def begin(self, now: float, deliver: Callable[[str], object] | None = None) -> None:
        """Start a burst unless one is active, even if the run loses no time. Does nothing if bursts are disabled.

        Args:
            now: by the clock of the timeline.
            deliver: called once with the result, in the format of `protocol.stacks`; the new or active burst then
                samples all phases from now on.
        """
        if switched_off("STALLSCOPE_STACKS"):
            return
        if self._burst is None:
            sampled = {phase for phase in self._wanted if self._is_sampled_by_now(phase)}
            self._wanted -= sampled
            self._tried.update(dict.fromkeys(sampled, now))
            self._burst = (self._make or Burst)(self._timeline)
            self._burst.samples_all = deliver is not None
            self._burst.start()
        elif deliver is not None:
            self._burst.samples_all = True
        self._deliver = deliver or self._deliver

    def close(self) -> None:
        """Stop the active burst."""
        if self._burst is not None:
            self._burst.stop()
            self._burst = self._deliver = None

    def written(self) -> str:
        """Return the lines as a JSON field of a report, with a leading comma; empty without lines."""
        phases = []
        for phase, seconds in self._seconds.items():
            lines = [
                f'{{"location":{quoted(location)},"function":{quoted(function)},"seconds":{spent:.3f}}}'
                for (location, function), spent in seconds.items()
            ]
            phases.append(f"{quoted(phase)}:[{','.join(lines)}]")
        return f',"code":{{{",".join(phases)}}}' if phases else ""

    def _judge(self, now: float) -> None:
        """Find the phases in which the run has lost much of the last minute, or of the first seconds."""
        elapsed = now - self._began
        if elapsed < min(self._window, WINDOW):
            return
        phases = self._timeline.phases
        before = self._before
        self._began = now
        self._before = {name: (phase.seconds, phase.gpu_seconds or 0.0) for name, phase in phases.items()}
        if elapsed == inf:
            return
        self._window = WINDOW
        spent = {name: self._before[name][0] - before.get(name, (0.0, 0.0))[0] for name in phases}
        on_gpu = {name: self._before[name][1] - before.get(name, (0.0, 0.0))[1] for name in phases}
        if sum(on_gpu.get(name, 0.0) for name in _ON_GPU) >= _BUSY * elapsed:
            self._wanted.clear()
            return
        for name, phase in phases.items():
            # The GPU may still have work while the host waits for data.
            hides = name == "data_wait" and phase.gpu_seconds is not None
            lost = on_gpu[name] if hides else spent[name]
            if name in _NOT_LOST or (name == "other" and not self._knows_other(spent)):
                continue
            if lost >= MUCH * elapsed:
                self._wanted.add(name)
            elif not phase.announced:
                self._wanted.discard(name)

    def _knows_other(self, spent: Mapping[str, float]) -> bool:
        """Return whether `other` is lost time: if no forward pass is measured, `other` may contain it."""
        phases = self._timeline.phases
        on_gpu = any(phases[name].gpu_seconds for name in _ON_GPU if name in phases)
        return spent.get("forward", 0.0) > 0.0 and (on_gpu or not self._uses_gpu())

    def _is_due(self, now: float) -> bool:
        return now - self._ended >= PAUSE and any(
            self._is_sampled_by_now(phase) and now - self._tried.get(phase, -inf) >= AGAIN for phase in self._wanted
        )

    def _is_sampled_by_now(self, name: str) -> bool:
        """Return whether a burst that starts now would sample the phase, because it is in each step or open."""
        phase = self._timeline.phases[name]
        return phase.opened or not phase.announced

    def _take(self, burst: Burst) -> None:
        burst.stop()
        self.cost += burst.cost
        found = burst.lines()
        if self._deliver is not None:
            deliver, self._deliver = self._deliver, None
            deliver(_encoded(burst.seconds, found))
        for phase, lines in found.items():
            if phase in _NOT_LOST:
                continue
            former = self._seconds.get(phase, {})
            keys = [(line.location, line.function) for line in lines]
            self._seconds[phase] = {key: former.get(key, 0.0) for key in keys}
            if phase not in self.lines:
                self._booked[phase] = burst.booked.get(phase, 0.0)
            self.lines[phase] = lines


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
        with standard_library():
            from stallscope.training.shim.code_location import entry_of

        workers = self._channel.counts() if self._channel is not None else {}
        found: dict[str, list[Line]] = {}
        for phase, total in self.seconds.items():
            if total < self._least_seconds or (phase in _NOT_LOST and not self.samples_all):
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
            with standard_library():
                from stallscope.training.shim.code_location import is_inside, is_waiting, spot_of
                from stallscope.training.shim.worker_samples import spots_of_others, ticks

            timeline = self._timeline
            for now, seconds in ticks():
                if self._is_stopped:
                    break
                phase = timeline.open_now
                if phase in _NOT_LOST and not self.samples_all:
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


def _encoded(seconds: Mapping[str, float], lines: Mapping[str, Sequence[Line]]) -> str:
    """Return the result of a burst in the format of `protocol.stacks`."""
    phases = []
    for phase, sampled in seconds.items():
        entries = [
            f"[{quoted(line.location)},{quoted(line.function)},{line.share:.4f},{line.workers}]"
            for line in lines.get(phase, ())
        ]
        phases.append(f'{quoted(phase)}:{{"seconds":{sampled:.3f},"lines":[{",".join(entries)}]}}')
    return f"{{{','.join(phases)}}}"


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
