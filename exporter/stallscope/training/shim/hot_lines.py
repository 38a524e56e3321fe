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

from math import inf

from stallscope.common.standard_library import standard_library
from stallscope.training.shim.timeline import DEVICE_PHASES, NOT_LOST
from stallscope.training.shim.tolerance import switched_off
from stallscope.training.shim.writing import quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stallscope.training.shim.bursts import Burst, Line
    from stallscope.training.shim.timeline import Timeline

    Spent = dict[str, tuple[float, float]]
    """Seconds of each phase, by the host's clock and by the GPU's."""

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


class HotLines:
    """Starts bursts for a run, and keeps their results. Used only in the thread of the loop."""

    def __init__(
        self,
        timeline: Timeline,
        uses_gpu: Callable[[], bool],
        burst: Callable[[Timeline], Burst] | None = None,
        since: tuple[float, Spent] | None = None,
    ) -> None:
        """Start without lines.

        Args:
            timeline: the timeline of the run.
            uses_gpu: returns whether the run computes on GPUs, as far as known.
            burst: creates a burst; `Burst` by default.
            since: when the loop began, by the clock of the timeline, and the time of its phases by then.
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
        self._began, self._before = (-inf, {}) if since is None else since
        self._window = FIRST_WINDOW
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
            self._burst = self._new_burst()
            self._burst.samples_all = deliver is not None
            self._burst.start()
        elif deliver is not None:
            self._burst.samples_all = True
        self._deliver = deliver or self._deliver

    def _new_burst(self) -> Burst:
        if self._make is not None:
            return self._make(self._timeline)
        with standard_library():
            from stallscope.training.shim.bursts import Burst

        return Burst(self._timeline)

    def close(self) -> None:
        """Stop the active burst."""
        if self._burst is not None:
            self._burst.stop()
            self._burst = self._deliver = None

    def written(self) -> str:
        """Return the lines as a JSON field of a report; empty without lines."""
        phases = []
        for phase, seconds in self._seconds.items():
            lines = [
                f'{{"location":{quoted(location)},"function":{quoted(function)},"seconds":{spent:.3f}}}'
                for (location, function), spent in seconds.items()
            ]
            phases.append(f"{quoted(phase)}:[{','.join(lines)}]")
        return f'"code":{{{",".join(phases)}}}' if phases else ""

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
        if sum(on_gpu.get(name, 0.0) for name in DEVICE_PHASES) >= _BUSY * elapsed:
            self._wanted.clear()
            return
        for name, phase in phases.items():
            # The GPU may still have work while the host waits for data.
            hides = name == "data_wait" and phase.gpu_seconds is not None
            lost = on_gpu[name] if hides else spent[name]
            if name in NOT_LOST or (name == "other" and not self._knows_other(spent)):
                continue
            if lost >= MUCH * elapsed:
                self._wanted.add(name)
            elif not phase.announced:
                self._wanted.discard(name)

    def _knows_other(self, spent: Mapping[str, float]) -> bool:
        """Return whether `other` is lost time: if no forward pass is measured, `other` may contain it."""
        phases = self._timeline.phases
        on_gpu = any(phases[name].gpu_seconds for name in DEVICE_PHASES if name in phases)
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
            if phase in NOT_LOST:
                continue
            former = self._seconds.get(phase, {})
            keys = [(line.location, line.function) for line in lines]
            self._seconds[phase] = {key: former.get(key, 0.0) for key in keys}
            if phase not in self.lines:
                self._booked[phase] = burst.booked.get(phase, 0.0)
            self.lines[phase] = lines


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
